"""The last measurement: rates are what its log says, and it goes on where it stopped."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from dreamgym.envs.alfworld.expert import Expert
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.metrics_log import JsonlLog
from dreamgym.progress import NoProgress
from dreamgym.reproduce.final import costs, evaluation, play_games
from dreamgym.reproduce.run import outcomes
from dreamgym.rollout import RolloutConfig

GAMES = generate_games(3, seed=5)


def log_of(path: Path, *lines: dict[str, object]) -> JsonlLog:
    log = JsonlLog(path / "engine.jsonl")
    for line in lines:
        log.append(line)
    return log


def line(number: int, solved: bool | None, **more: object) -> dict[str, object]:
    game = GAMES[number].id
    return {"game": game, "solved": {"a": solved}, "turns": {"a": 4}, "load_s": 1.0,
            "step_s": 2.0, "steps": 4, **more}  # fmt: skip


def test_a_fault_is_no_failure(tmp_path: Path) -> None:
    with log_of(tmp_path, line(0, True), line(1, False), line(2, None)) as log:
        result = evaluation("a", GAMES, log)
        assert (result.success.hits, result.success.total) == (1, 2)
        assert result.mean_turns == 4 and outcomes(result, GAMES) == "10-"
        assert costs(log) == {"load_s": 1.0, "step_s": 0.5, "workers": 2.0}


def test_what_was_added_later_stands_beside_what_was_there(tmp_path: Path) -> None:
    more = [{"game": g.id, "solved": {"b": True}, "turns": {"b": 2}} for g in GAMES]
    with log_of(tmp_path, *(line(n, False) for n in range(3)), *more) as log:
        assert outcomes(evaluation("a", GAMES, log), GAMES) == "000"
        assert outcomes(evaluation("b", GAMES, log), GAMES) == "111"


def expert(asked: Counter[str]) -> ScriptedLLM:
    """Plays by what stands in its prompt, and counts its first turns."""

    def act(prompt: Sequence[Message]) -> str:
        first = prompt[0].text
        player = Expert(first.rpartition("Your task is to: ")[2].split("\n")[0].rstrip("."), first)
        told = [m.text for m in prompt]
        asked[first] += len(told) == 1
        for action, state in zip(told[1::2], told[2::2], strict=False):
            player.observe(action, state.split("\nTask: ")[0])
        return player.act()

    return ScriptedLLM(act)


@pytest.mark.skipif(
    not (importlib.util.find_spec("alfworld") and importlib.util.find_spec("textworld")),
    reason="the alfworld extra is not installed",
)
def test_it_plays_the_engines_games_once_for_all_and_goes_on(tmp_path: Path) -> None:
    rollout = RolloutConfig(max_turns=40, invalid_limit=40)
    asked: Counter[str] = Counter()

    def run(names: Sequence[str], log: JsonlLog) -> None:
        policies = {name: expert(asked) for name in names}
        asyncio.run(play_games(policies, GAMES, rollout, 0, log, NoProgress()))

    with log_of(tmp_path) as log:
        run(["a", "b"], log)
        assert [set(told["solved"]) for told in log.read()] == [{"a", "b"}] * 3
        assert evaluation("a", GAMES, log).success.total == 3
        before = asked.total()
        run(["a", "b", "c"], log)
        assert asked.total() == before + 3, "only what was missing is played"
        assert outcomes(evaluation("c", GAMES, log), GAMES) == outcomes(
            evaluation("a", GAMES, log), GAMES
        )
        assert costs(log)["step_s"] > 0
