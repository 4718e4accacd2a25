"""ALFWorld's own engine, one game at a time, and a small server that runs it in a process.

The engine keeps its state in a C library and rewrites `sys.argv`: it is not safe to share, so
`pool.py` starts this module as a worker. Needs the `alfworld` extra; imported only when asked for.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from dreamgym.envs.alfworld.games import Game
from dreamgym.types import DreamGymError

NOTHING_HAPPENS = "Nothing happens."


def require_engine() -> None:
    """Raise a DreamGymError that names the extra where the engine is not installed."""
    missing = [name for name in ("alfworld", "textworld") if importlib.util.find_spec(name) is None]
    if missing:
        raise DreamGymError(
            f"ALFWorld's own engine is not installed ({', '.join(missing)} missing). Run "
            "`pip install 'dreamgym[alfworld]'` (it compiles for some minutes and needs cmake and "
            "g++), or use the `fast` back end, which says the same word for word."
        )


@lru_cache(maxsize=1)
def _patch_engine() -> None:
    """Spare the engine what it does again and again; not a word it says depends on it.

    At each step it parses the same grammar texts, and copies every entity for each sentence it
    tries; at each reset it grounds the same problem twice. The recorded episodes of the unpatched
    engine are a test of this.
    """
    import textworld.envs.pddl.logic as logic
    import textworld.envs.pddl.textgen as textgen
    from textworld.logic import Rule

    textgen._parse_and_convert = _cached(textgen._parse_and_convert)
    Rule.parse_conjunctive_query = _cached(Rule.parse_conjunctive_query)
    textgen.copy_context = _branch
    planner = logic.fast_downward
    planner.pddl2sas = lru_cache(maxsize=2)(planner.pddl2sas)  # one plain, one for its planner


def _branch(context: dict[str, Any]) -> dict[str, Any]:
    """A context whose bindings can be added to; entities and variables are only ever read."""
    return {
        "state": context["state"],
        "facts": context["facts"],
        "variables": dict(context["variables"]),
        "mapping": dict(context["mapping"]),
        "entity_infos": context["entity_infos"],
    }


def _cached(parse: Callable[..., Any]) -> Callable[..., Any]:
    """A cache that hands out copies: the engine writes into what it parsed."""
    cached = lru_cache(maxsize=4096)(parse)

    def parsed(*args: Any, **kwargs: Any) -> Any:
        return copy.deepcopy(cached(*args, **kwargs))

    return parsed


class ReferenceGame:
    """One game in the engine, synchronous, with the interface of `FastGame`."""

    def __init__(self, game: Game) -> None:
        require_engine()
        _patch_engine()
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        wanted = textworld.EnvInfos(feedback=True, won=True, admissible_commands=True)
        with tempfile.TemporaryDirectory(prefix="dreamgym-alfworld-") as folder:
            path = Path(folder) / "game.tw-pddl"
            path.write_text(json.dumps(game_file(game)), encoding="utf-8")
            self._env = textworld.start(str(path), wanted, wrappers=[AlfredDemangler])
        self._commands: list[str] = []

    def reset(self) -> str:
        """Begin the game, or begin it again."""
        state = self._env.reset()
        self._commands = list(state["admissible_commands"])
        return str(state["feedback"])

    def step(self, action: str) -> tuple[str, float, bool, bool]:
        """(state, reward, done, valid) of one action."""
        valid = action.strip() in self._commands
        state, reward, done = self._env.step(action)
        self._commands = list(state["admissible_commands"])
        return str(state["feedback"]), float(reward), bool(done), valid

    def admissible(self) -> list[str]:
        """The commands the engine would accept now, sorted."""
        return self._commands


def game_file(game: Game) -> dict[str, Any]:
    """The content of a `game.tw-pddl`: ALFWorld's own domain and grammar, this game's problem."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise DreamGymError(
            "ALFWorld's own engine is not installed: pip install 'dreamgym[alfworld]'"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    grammar = (folder / "alfred.twl2").read_text(encoding="utf-8")
    return {
        "pddl_domain": (folder / "alfred.pddl").read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL", game.goal),
        "pddl_problem": game.pddl_problem,
        "solvable": True,
    }


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer one JSON line per JSON line: start or reset a game, step, list commands."""
    play: ReferenceGame | None = None
    loaded: dict[str, Any] = {}
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any]
        if request["do"] == "start":
            if request["game"] != loaded:
                play = None  # let go of the old game before the next one loads
                play = ReferenceGame(Game(**request["game"]))
                loaded = request["game"]
            assert play is not None
            answer = {"state": play.reset()}
        elif play is None:
            raise RuntimeError(f"{request['do']!r} before a game was started")
        elif request["do"] == "reset":
            answer = {"state": play.reset()}
        elif request["do"] == "step":
            state, reward, done, valid = play.step(request["action"])
            answer = {"state": state, "reward": reward, "done": done, "valid": valid}
        else:
            answer = {"admissible": play.admissible()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve on standard input and output; whatever the engine prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
