"""The nouns: a Task is attempted in Turns, which make an Episode; a Group is a Task's Episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar, Literal

World = Literal["dream", "real"]
By = Literal["world", "model", "rule"]


class Ending(StrEnum):
    """Why an episode stopped. Compare with `is`; a fault is never the agent's failure."""

    DONE = auto()  # the world said so: the reward is final
    TURN_LIMIT = auto()  # we stopped it: a value function may bootstrap from here
    TRUNCATED = auto()  # the policy's completion or its context hit the token limit
    INVALID = auto()  # the policy used up its allowance of malformed actions
    ENV_FAULT = auto()  # the real world broke: never trained on, always counted
    DREAM_FAULT = auto()  # the experience model gave no readable answer: the same

    @property
    def is_fault(self) -> bool:
        return self is Ending.ENV_FAULT or self is Ending.DREAM_FAULT


class DreamGymError(Exception):
    """An error the user can act on: what happened, why, what to do. Shown without a traceback."""

    exit_code: ClassVar[int] = 2


class NothingToLearn(DreamGymError):
    """Update after update in which no group could teach anything: the run is stopped."""

    exit_code = 4


class WorldFault(Exception):
    """A world broke during an episode; `kind` names the class that is counted."""

    ending = Ending.ENV_FAULT

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class EnvFault(WorldFault):
    """A real environment crashed, hung or answered nonsense."""


class DreamFault(WorldFault):
    """The experience model's answer could not be read, or contradicts itself."""

    ending = Ending.DREAM_FAULT


class ModelFault(WorldFault):
    """A language model gave no answer: its server was down, refused, or wrote what is none."""


@dataclass(frozen=True, slots=True)
class Task:
    """An instruction and the world it is to be solved in. Variants name the task they came from."""

    id: str
    instruction: str
    first_state: str = ""  # as the offline logs show it; a dream starts from this text
    kind: str = ""  # the world's own family of tasks, for tables
    parent: str = ""  # the seed task's id, empty for a task of the real world
    generation: int = 0  # 0 for a real task, else its distance from one


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, as whoever counts them for money does; None is not told, never 0."""

    read: int | None = None
    written: int | None = None
    cached: int | None = None  # of those read, how many the server had read before


@dataclass(frozen=True, slots=True)
class Completion:
    """What an LLM wrote: its text, and the tokens exactly as they were sampled."""

    text: str
    ids: tuple[int, ...] = ()  # (T,), with the end token where one was written
    logprobs: tuple[float, ...] = ()  # (T,), of the sampling distribution
    prompt_ids: tuple[int, ...] = ()  # everything the model saw before `ids`
    pieces: tuple[str, ...] = ()  # each token's own text, where the model tells
    finish_reason: Literal["stop", "length"] = "stop"
    usage: Usage | None = None  # where a server counted


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a world answers to one action."""

    state: str
    reward: float
    ending: Ending | None = None
    valid: bool = True  # whether the world accepted the action
    by: By = "world"  # who says so: in a dream the experience model, or a rule that is certain

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward) or not 0.0 <= self.reward <= 1.0:
            raise ValueError(f"reward {self.reward!r} is not in [0, 1]")


@dataclass(frozen=True, slots=True)
class Turn:
    """One state seen, one completion written, one reward paid."""

    state: str
    action: str
    reward: float
    next_state: str
    valid: bool = True
    completion: Completion | None = None  # absent where the agent is not a language model
    by: By = "world"  # who answered


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at one task."""

    task: Task
    turns: tuple[Turn, ...]
    ending: Ending
    world: World
    fault: str = ""  # the class of the fault, where one ended it

    @property
    def reward(self) -> float:
        return sum(turn.reward for turn in self.turns)

    @property
    def success(self) -> bool:
        return self.ending is Ending.DONE and self.reward > 0

    def transitions(self) -> Iterator[Transition]:
        """One per turn; only the last can be done, and only if the world said so."""
        for index, turn in enumerate(self.turns):
            last = index == len(self.turns) - 1
            yield Transition(
                task=self.task,
                history=tuple((t.state, t.action) for t in self.turns[:index]),
                state=turn.state,
                action=turn.action,
                next_state=turn.next_state,
                reward=turn.reward,
                done=last and self.ending is Ending.DONE,
            )


@dataclass(frozen=True, slots=True)
class Group:
    """All attempts at one task that were made from the same start. `(G,)`"""

    task: Task
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    """What the replay buffer holds and the experience model learns (the paper's section 4.1)."""

    task: Task
    history: tuple[tuple[str, str], ...]  # earlier (state, action) pairs of the episode
    state: str
    action: str
    next_state: str
    reward: float
    done: bool
