"""Harder tasks (Eq. 6): written by the experience model, let in only if new and reachable."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dreamgym.envs.text import WorldText
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.dry_run import dry_run
from dreamgym.types import DreamFault, Task

_WRITTEN = 4
"""Variants written for each that is wanted: most of a small model's are refused."""
_PROVEN = 2
"""Variants proven for each that is wanted."""
_SOLVER_TURNS = 50


@dataclass(frozen=True, slots=True)
class Variant:
    """A task that the experience model wrote, and what speaks for it."""

    task: Task  # its parent's id and its generation stand in it
    how: str  # in which way it is harder than its parent
    step: int  # after which it was written
    seed_entropy: float  # of its parent then
    solved_in: int | None  # turns of the dry run; None where the world has no solver

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Variant:
        return cls(**{**data, "task": Task(**data["task"])})


def task_hash(task: Task, text: WorldText) -> str:
    """What makes a task the same task: its place and what is wanted there, however it is worded."""
    return hashlib.sha256(text.meaning(task).encode()).hexdigest()


class VariantWriter:
    """Writes variants, and counts what it refuses by class:

    EMPTY, UNREADABLE  what was written is no line of text
    NOT_HARDER         it asks for no more than its seed
    DUPLICATE          that task there is already, maybe in other words
    HELD_OUT           that task is measured on
    UNSOLVABLE ...     no hidden state can hold it; the class of the dream's fault
    UNREACHED          a solver did not get there in a dream of it
    """

    def __init__(
        self, dream: DreamWorld, known: Collection[str], held_out: Collection[str], seed: int
    ) -> None:
        """`known` and `held_out` hold `task_hash`es."""
        self._dream, self._text, self._seed = dream, dream.model.text, seed
        self.known, self._held_out = set(known), frozenset(held_out)
        self.refused: Counter[str] = Counter()

    async def write(
        self, seeds: Sequence[Task], entropy: Mapping[str, float], wanted: int, step: int
    ) -> list[Variant]:
        """At most `wanted` new variants of the first of `seeds`, which all have an entropy."""
        tries = [seeds[i % len(seeds)] for i in range(_WRITTEN * wanted)] if seeds else []
        rng = random.Random(f"{self._seed}/{step}")
        numbers = [rng.randrange(2**31) for _ in tries]
        model = self._dream.model
        written = await asyncio.gather(*map(model.vary, tries, numbers))
        drafts: list[tuple[Task, str, str]] = []
        for parent, instruction in zip(tries, written, strict=True):
            if len(drafts) < _PROVEN * wanted:
                drafts += self._draft(parent, instruction, {key for _, _, key in drafts})
        solved = await asyncio.gather(*(self._prove(task) for task, _, _ in drafts))
        variants: list[Variant] = []
        for (task, how, key), (reached, turns) in zip(drafts, solved, strict=True):
            if reached and len(variants) < wanted:
                self.known.add(key)
                variants.append(Variant(task, how, step, entropy[task.parent], turns))
        return variants

    def _draft(
        self, parent: Task, instruction: str, drafted: Collection[str]
    ) -> list[tuple[Task, str, str]]:
        """The task that an instruction makes of its parent, how it is harder, and its hash."""
        if not instruction.isprintable():  # a line of its own could pass for a state's
            self.refused["UNREADABLE"] += 1
            return []
        how = self._text.harder(parent.instruction, instruction) if instruction else ""
        if not how and how is not None:
            self.refused["NOT_HARDER" if instruction else "EMPTY"] += 1
            return []
        task = replace(
            parent,
            instruction=instruction,
            first_state=self._text.retell(parent.first_state, instruction),
            parent=parent.id,
            generation=parent.generation + 1,
        )
        key = task_hash(task, self._text)
        if key in self._held_out or key in self.known or key in drafted:
            self.refused["HELD_OUT" if key in self._held_out else "DUPLICATE"] += 1
            return []
        task = replace(task, id=f"variant/{key[:16]}")
        self._dream.model.inherit(task)
        return [(task, how or "unknown", key)]

    async def _prove(self, task: Task) -> tuple[bool, int | None]:
        """Whether a hidden state can hold it and a solver reaches it there, and in how many
        turns."""
        solver = self._text.solver(task)
        try:
            if solver is None:
                await self._dream.start_facts(task, self._seed)
                return True, None
            env = self._dream.make_env(task, self._seed)
            turns = await dry_run(env, task, solver, _SOLVER_TURNS)
        except DreamFault as fault:
            self.refused[fault.kind] += 1
            return False, None
        self.refused["UNREACHED"] += not turns
        return turns > 0, turns
