"""The trust boundary of the replay buffer: what is refused, why, and when two rows are the same."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum, auto
from typing import Any

from dreamgym.replay.text import clean_text, fold, lost_characters
from dreamgym.types import Episode, Task, Turn

MAX_CHARS = 200_000
"""Of one state or action; a longer page is quarantined: no context window could show it whole."""


class Reason(StrEnum):
    """Why a row was quarantined; the class is what reports count."""

    BAD_JSON = auto()
    BAD_UTF8 = auto()
    TORN = auto()  # the file ends inside this line
    DUPLICATE_KEY = auto()
    BAD_NUMBER = auto()  # NaN, Infinity, or a number that overflows to it
    BAD_FIELD = auto()  # missing, or of another type
    BAD_REWARD = auto()
    EMPTY_STATE = auto()
    NO_TURNS = auto()
    TOO_LONG = auto()
    TASK_CONFLICT = auto()  # the task's id already stands for another instruction
    UNKNOWN_GAME = auto()
    REPLAY_DIFFERS = auto()  # the engine does not answer what the log says


class BadRow(ValueError):
    """A row the store refuses; `reason` is the class that is counted."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where an episode comes from."""

    run: str
    agent: str  # who acted: expert, random, policy, human ...
    split: str = ""
    model: str = ""  # the weights behind the agent, where there are any
    env: str = ""


@dataclass(frozen=True, slots=True)
class AddResult:
    """What became of one episode."""

    outcome: str  # added, duplicate or quarantined
    episode_id: str = ""  # of the stored copy; empty when quarantined
    near_duplicate: bool = False
    sanitised: bool = False
    reason: Reason | None = None


@dataclass(slots=True)
class Report:
    """What became of many rows."""

    rows: int = 0
    added: int = 0
    exact_duplicates: int = 0
    near_duplicates: int = 0  # kept; equal to an earlier one but for case, spaces and numbers
    sanitised: int = 0
    longest_state: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For programs and `--json`."""
        return asdict(self)

    def count(self, result: AddResult, episode: Episode | None = None) -> None:
        """Count one result, and the longest state of the episode it is about."""
        self.rows += 1
        self.added += result.outcome == "added"
        self.exact_duplicates += result.outcome == "duplicate"
        self.near_duplicates += result.near_duplicate
        self.sanitised += result.sanitised
        if result.reason is not None:
            self.quarantined[result.reason] = self.quarantined.get(result.reason, 0) + 1
        if episode is not None:
            lengths = (len(text) for t in episode.turns for text in (t.state, t.next_state))
            self.longest_state = max(self.longest_state, *lengths, 0)


def check_turn(turn: Turn, *, last: bool = True) -> Turn:
    """The turn with its text cleaned; BadRow where it cannot be stored."""
    state, action, next_state = map(clean_text, (turn.state, turn.action, turn.next_state))
    if not state.strip():
        raise BadRow(Reason.EMPTY_STATE, "a state without text")
    # Only the end of an episode may show nothing: a world that closed, a completion cut short.
    if not last and not next_state.strip():
        raise BadRow(Reason.EMPTY_STATE, "a next state without text before the episode's end")
    longest = max(len(state), len(action), len(next_state))
    if longest > MAX_CHARS:
        raise BadRow(Reason.TOO_LONG, f"{longest:,} characters, {MAX_CHARS:,} are the limit")
    reward = check_reward(turn.reward)
    return replace(turn, state=state, action=action, next_state=next_state, reward=reward)


def check_reward(reward: object) -> float:
    """The reward as a float in [0, 1]; a bool is no number here."""
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        raise BadRow(Reason.BAD_REWARD, f"{reward!r} is no number")
    if not math.isfinite(reward) or not 0 <= reward <= 1:
        raise BadRow(Reason.BAD_REWARD, f"{reward!r} is not in [0, 1]")
    return float(reward)


def check_episode(episode: Episode) -> Episode:
    """The episode with all its text cleaned; BadRow where it cannot be stored."""
    if not episode.turns and not episode.ending.is_fault:
        raise BadRow(Reason.NO_TURNS, "an episode without turns that no fault ended")
    end = len(episode.turns) - 1
    turns = tuple(check_turn(turn, last=i == end) for i, turn in enumerate(episode.turns))
    return replace(
        episode, task=check_task(episode.task), turns=turns, fault=clean_text(episode.fault)
    )


def check_task(task: Task) -> Task:
    """The task with all its text cleaned; BadRow where it has no id."""
    if not task.id.strip():
        raise BadRow(Reason.BAD_FIELD, "a task without an id")
    if len(task.first_state) > MAX_CHARS:
        raise BadRow(Reason.TOO_LONG, f"a first state of {len(task.first_state):,} characters")
    return replace(
        task,
        id=clean_text(task.id),
        instruction=clean_text(task.instruction),
        first_state=clean_text(task.first_state),
        kind=clean_text(task.kind),
        parent=clean_text(task.parent),
    )


def original_text(turn: Turn) -> str | None:
    """The turn's text as ASCII JSON where cleaning cannot be undone, else None."""
    texts = (turn.state, turn.action, turn.next_state)
    return json.dumps(texts) if any(map(lost_characters, texts)) else None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:32]


def turn_hash(turn: Turn) -> str:
    """Names the content of one checked turn."""
    return _digest([turn.state, turn.action, turn.next_state, turn.reward, turn.valid])


def content_hash(episode: Episode) -> str:
    """Names the content of one checked episode: equal only for exact copies of one attempt."""
    turns = [turn_hash(turn) for turn in episode.turns]
    return _digest([episode.world, episode.task.id, episode.ending, episode.fault, turns])


def near_hash(episode: Episode) -> str:
    """Equal for episodes that differ only in case, spaces, numbers or the task's id."""
    texts = [[fold(t.state), fold(t.action), fold(t.next_state)] for t in episode.turns]
    return _digest([episode.world, texts])


def parse_json(text: str) -> Any:
    """json.loads without its surprises: NaN, overflow and repeated keys are refused (P025)."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except BadRow:
        raise
    except RecursionError as error:
        raise BadRow(Reason.BAD_JSON, "nested too deeply") from error
    except ValueError as error:
        raise BadRow(Reason.BAD_JSON, str(error)) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadRow(Reason.DUPLICATE_KEY, f"the key {twice!r} stands twice in one object")
    return result


def _refuse_constant(name: str) -> float:
    raise BadRow(Reason.BAD_NUMBER, f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadRow(Reason.BAD_NUMBER, f"{text} overflows")
    return number
