"""How a world's text is read: what logs show of hidden things, and which actions it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dreamgym.types import Episode, Task


@dataclass(frozen=True, slots=True)
class Note:
    """What stands between an action and its answer: the cause, and the facts that it changes."""

    reason: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """A log read with hindsight: the facts that held at its start, and a note for every turn."""

    start: Mapping[str, str]  # entity -> sentence
    notes: tuple[Note, ...]


class Solver(Protocol):
    """Plays one task by what it is shown, as an agent would; scripted, no language model."""

    def act(self) -> str: ...

    def observe(self, action: str, next_state: str) -> None: ...


class WorldText(Protocol):
    """One reader per world. It reads text only, so it serves logs, dreams and engines alike."""

    failure: str
    """The world's own words for an action that does not work."""

    def well_formed(self, action: str) -> bool:
        """Whether the action is in the world's grammar; all others fail without asking a model."""
        ...

    def annotate(self, episode: Episode, start: Mapping[str, str] | None = None) -> Annotation:
        """Facts and reasons, from the `start` given, or from what hindsight finds of it."""
        ...

    def changes(self, facts: Mapping[str, str], action: str, next_state: str) -> Sequence[str]:
        """The facts that an answer makes true, a sentence each: what `annotate` notes, live."""
        ...

    def contradiction(self, facts: Mapping[str, str], action: str, next_state: str) -> str:
        """What in an answer cannot be true where these facts hold; empty where nothing is amiss."""
        ...

    def places(self, first_state: str) -> Sequence[str]:
        """The entities whose hidden facts an episode needs from its start."""
        ...

    def start_facts(
        self, instruction: str, first_state: str, known: Mapping[str, str]
    ) -> Mapping[str, str]:
        """A consistent start from facts that may contradict each other or name a thing twice."""
        ...

    def solvable(self, instruction: str, first_state: str, facts: Mapping[str, str]) -> bool:
        """Whether a world with these facts can meet the instruction at all."""
        ...

    def met(self, instruction: str, facts: Mapping[str, str]) -> bool | None:
        """Whether these facts meet the instruction; None where no rule can tell."""
        ...

    def refuses(self, action: str, facts: Mapping[str, str]) -> bool:
        """Whether these facts leave no doubt that the action fails."""
        ...

    def harder(self, seed: str, instruction: str) -> str | None:
        """How an instruction asks for more than its seed; empty where it does not, None where no
        rule can tell."""
        ...

    def solver(self, task: Task) -> Solver | None:
        """One who can play the task in a dream of it; None where nobody has written one."""
        ...

    def meaning(self, task: Task) -> str:
        """What makes two tasks the same, however they are worded: the place, and what is wanted."""
        ...

    def retell(self, first_state: str, instruction: str) -> str:
        """The first state of the same world under another instruction."""
        ...


class PlainText:
    """For a world nobody has written a reader for: no facts, no reasons, every line an action."""

    def __init__(self, failure: str = "Nothing happens.") -> None:
        self.failure = failure

    def well_formed(self, action: str) -> bool:
        return bool(action)

    def annotate(self, episode: Episode, start: Mapping[str, str] | None = None) -> Annotation:
        return Annotation(start or {}, tuple(Note("", ()) for _ in episode.turns))

    def changes(self, facts: Mapping[str, str], action: str, next_state: str) -> Sequence[str]:
        return ()

    def contradiction(self, facts: Mapping[str, str], action: str, next_state: str) -> str:
        return ""

    def places(self, first_state: str) -> Sequence[str]:
        return ()

    def start_facts(
        self, instruction: str, first_state: str, known: Mapping[str, str]
    ) -> Mapping[str, str]:
        return dict(known)

    def solvable(self, instruction: str, first_state: str, facts: Mapping[str, str]) -> bool:
        return True

    def met(self, instruction: str, facts: Mapping[str, str]) -> bool | None:
        return None

    def refuses(self, action: str, facts: Mapping[str, str]) -> bool:
        return False

    def harder(self, seed: str, instruction: str) -> str | None:
        return None

    def solver(self, task: Task) -> Solver | None:
        return None

    def meaning(self, task: Task) -> str:
        return " ".join(f"{task.first_state}\n{task.instruction}".lower().split())

    def retell(self, first_state: str, instruction: str) -> str:
        return first_state
