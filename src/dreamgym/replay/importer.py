"""Trajectories from outside into the replay store: ALFWorld's expert logs, and a user's own.

Every line is checked. What cannot be used goes to quarantine with its line number and a reason,
and the report says how much that was; nothing in a file can stop the import.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from rich.table import Table

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import Game
from dreamgym.replay.checks import BadRow, Provenance, Reason, Report, parse_json
from dreamgym.replay.store import ReplayStore
from dreamgym.types import DreamGymError, Ending, Episode, Task, Turn, World

_OLD_PUT = re.compile(r"put (.+) in/on (.+)")
Model = TypeVar("Model", bound=BaseModel)
Convert = Callable[[Any], tuple[Episode, Provenance]]


def _json_text(value: object) -> object:
    """A structured state or action as its JSON text, so that 5 and "5" stay two things (P060)."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return value


def _ending(value: object) -> object:
    return Ending(value) if isinstance(value, str) and value in list(Ending) else value


Text = Annotated[str, BeforeValidator(_json_text)]


class _Strict(BaseModel):
    # Logs carry fields of their own: those are left out, but ours are never guessed or converted.
    model_config = ConfigDict(strict=True, extra="ignore")


class _LogTurn(_Strict):
    state: Text
    action: Text
    reward: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    next_state: Text
    valid: bool = True


class _Log(_Strict):
    task_id: Annotated[str, Field(min_length=1)]
    instruction: str
    turns: list[_LogTurn]
    ending: Annotated[Ending, BeforeValidator(_ending)]
    kind: str = ""
    split: str = ""
    agent: str = "log"
    world: World = "real"


class _OldExpert(_Strict):
    """ALFWorld's own expert files, in the words of its versions before 0.4."""

    task: str
    trial: str
    obs: list[str]
    actions: Annotated[list[str], Field(min_length=1)]


class _DemoStep(_Strict):
    obs: str
    action: str
    reward: float
    done: bool


class _Demo(_Strict):
    """Recorded from today's engine."""

    task: str
    trial: str
    steps: Annotated[list[_DemoStep], Field(min_length=1)]
    final_obs: str


def import_jsonl(path: Path | str, store: ReplayStore) -> Report:
    """A user's own logs: a file (or a folder of them) with one JSON object per line and episode.

    {"task_id": "t1", "instruction": "find the key", "ending": "done",
     "turns": [{"state": "a hall", "action": "open box", "reward": 1, "next_state": "a key"}]}

    `ending` is done, turn_limit, truncated, invalid or env_fault; a reward lies in [0, 1]. A state
    or action may be a JSON object: it is kept as its text. Optional: kind, split, agent, world,
    and `valid` in a turn. Files are UTF-8, plain or .xz.
    """
    path = Path(path)
    files = sorted(f for f in path.iterdir() if ".jsonl" in f.suffixes) if path.is_dir() else [path]
    report = Report()
    for file in files:

        def convert(value: Any, name: str = file.name) -> tuple[Episode, Provenance]:
            log = _validate(_Log, value)
            turns = tuple(Turn(**turn.model_dump()) for turn in log.turns)
            task = Task(log.task_id, log.instruction, turns[0].state if turns else "", log.kind)
            by = Provenance(run=f"import {name}", agent=log.agent, split=log.split)
            return Episode(task, turns, log.ending, log.world), by

        _import(file, store, convert, report)
    return report


def import_alfworld(
    path: Path | str, store: ReplayStore, games: Iterable[Game], *, limit: int | None = None
) -> Report:
    """Expert logs of ALFWorld, the first `limit` lines, lived through again in our engine.

    Logs of versions before 0.4 say `put X in/on Y` and less on arrival: they get today's words.
    Newer ones are compared with what our engine answers, word for word.
    """
    path, report = Path(path), Report()
    by_id = {game.id: game for game in games}

    def convert(value: Any) -> tuple[Episode, Provenance]:
        old = isinstance(value, dict) and "actions" in value
        log = _validate(_OldExpert, value) if old else _validate(_Demo, value)
        game = by_id.get(f"{log.task}/{log.trial}")
        if game is None:
            raise BadRow(Reason.UNKNOWN_GAME, f"{log.task}/{log.trial} is not among the games")
        by = Provenance(run=f"import {path.name}", agent="expert", split=game.split, env="alfworld")
        episode = _replay_old(log, game) if isinstance(log, _OldExpert) else _replay(log, game)
        return episode, by

    _import(path, store, convert, report, limit)
    return report


def report_table(report: Report) -> Table:
    """The report for people; `report.as_dict()` is the one for programs."""
    table = Table(title="import", show_header=False)
    for name, value in report.as_dict().items():
        if name != "quarantined":
            table.add_row(name.replace("_", " "), f"{value:,}")
    table.add_row("quarantined", f"{sum(report.quarantined.values()):,}")
    for reason, number in sorted(report.quarantined.items()):
        table.add_row(f"  {reason}", f"{number:,}")
    return table


def _import(
    path: Path, store: ReplayStore, convert: Convert, report: Report, limit: int | None = None
) -> None:
    if not path.is_file():
        raise DreamGymError(f"there is no file {path} to import. Check the path.")
    for number, raw, value in islice(_records(path), limit):
        try:
            if isinstance(value, BadRow):
                raise value
            episode, by = convert(value)
        except BadRow as error:
            report.count(store.quarantine(path.name, number, error, raw))
        else:
            result = store.add_episode(episode, provenance=by, source=path.name, line=number)
            report.count(result, episode)


def _records(path: Path) -> Iterator[tuple[int, str, Any]]:
    """(line number, its text, its value or why it has none) of every line that is not blank."""
    number = 0
    try:
        with lzma.open(path) if path.suffix == ".xz" else open(path, "rb") as lines:
            for number, raw in enumerate(lines, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    yield number, line.decode(errors="replace"), _value(line)
    except (EOFError, lzma.LZMAError) as error:
        yield number + 1, "", BadRow(Reason.TORN, f"the compressed file ends early: {error}")


def _value(line: bytes) -> Any:
    try:
        try:
            return parse_json(line.decode())
        except UnicodeDecodeError as error:
            raise BadRow(Reason.BAD_UTF8, str(error)) from error
    except BadRow as error:
        cut = not line.endswith(b"\n") and error.reason in (Reason.BAD_JSON, Reason.BAD_UTF8)
        return BadRow(Reason.TORN, "the file ends inside this line") if cut else error


def _validate(model: type[Model], value: Any) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        reason = Reason.BAD_REWARD if where.endswith("reward") else Reason.BAD_FIELD
        raise BadRow(reason, f"{where}: {first['msg']}") from error


def _replay_old(log: _OldExpert, game: Game) -> Episode:
    if len(log.obs) != len(log.actions) + 1:
        detail = f"{len(log.obs)} states and {len(log.actions)} actions"
        raise BadRow(Reason.BAD_FIELD, detail)
    episode = _play(game, [_OLD_PUT.sub(r"move \1 to \2", action) for action in log.actions])
    if episode.task.first_state != log.obs[0]:
        raise BadRow(Reason.REPLAY_DIFFERS, "another first state than ours")
    for number, (turn, action, answer) in enumerate(
        zip(episode.turns, log.actions, log.obs[1:], strict=True)
    ):
        # Today's answers only add where one arrives; for `put` they have another verb.
        same = turn.valid and (turn.next_state.endswith(answer) or turn.action != action)
        if not same:
            detail = f"action {number}, {action!r}: ours {turn.next_state!r}, the log's {answer!r}"
            raise BadRow(Reason.REPLAY_DIFFERS, detail)
    return _won(episode)


def _replay(log: _Demo, game: Game) -> Episode:
    episode = _play(game, [step.action for step in log.steps])
    answers = [*(step.obs for step in log.steps[1:]), log.final_obs]
    if episode.task.first_state != log.steps[0].obs:
        raise BadRow(Reason.REPLAY_DIFFERS, "another first state than ours")
    for number, (turn, step, answer) in enumerate(
        zip(episode.turns, log.steps, answers, strict=True)
    ):
        done = number == len(log.steps) - 1 and episode.ending is Ending.DONE
        ours, theirs = (turn.next_state, turn.reward, done), (answer, step.reward, step.done)
        if ours != theirs:
            raise BadRow(Reason.REPLAY_DIFFERS, f"turn {number}: ours {ours}, the log's {theirs}")
    return _won(episode)


def _play(game: Game, actions: list[str]) -> Episode:
    play = FastGame(game)
    state = play.reset()
    task = replace(game.task(), first_state=state)
    turns: list[Turn] = []
    done = False
    for action in actions:
        if done:
            raise BadRow(Reason.REPLAY_DIFFERS, f"the game was won before action {len(turns)}")
        next_state, reward, done, valid = play.step(action)
        turns.append(Turn(state, action, reward, next_state, valid))
        state = next_state
    return Episode(task, tuple(turns), Ending.DONE if done else Ending.TURN_LIMIT, "real")


def _won(episode: Episode) -> Episode:
    if not episode.success:
        raise BadRow(Reason.REPLAY_DIFFERS, "the expert's actions do not win the game")
    return episode
