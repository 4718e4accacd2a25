"""Chooses tasks by reward entropy and grows harder variants of those that are half solved."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from dreamgym.curriculum.clusters import cluster
from dreamgym.curriculum.entropy import group_returns, reward_entropy
from dreamgym.curriculum.variants import Variant, VariantWriter, task_hash
from dreamgym.experience.dream import DreamWorld
from dreamgym.settings import Settings
from dreamgym.types import Group, Task

MOST = 0.25  # of the entropy of returns in {0, 1}: an untried task counts as half solved


class CurriculumConfig(Settings):
    tasks_per_step: int = 80
    """Groups per update."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """λ: at most this share of a step's tasks are variants; the rest keeps real ones covered."""
    variants_per_step: Annotated[int, Field(ge=0)] = 4
    """Variants let in after each step at most; 0 switches task generation off."""
    clusters: Annotated[int, Field(ge=1)] = 16
    """Of like tasks. PPO takes reward entropy over a cluster, GRPO over a task's own attempts."""
    floor: float = 0.02
    """Entropy every task keeps, so that none is dropped for good."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One task of one step, and what it was chosen by."""

    task: Task
    entropy: float | None  # of its last attempts, or its cluster's; None before the first

    def data(self) -> dict[str, Any]:
        task = self.task
        return {
            "id": task.id,
            "instruction": task.instruction,
            "entropy": self.entropy,
            "parent": task.parent,
        }


class Curriculum:
    """Entropy per task, a pool of variants with their lineage, and counts of what was refused."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: CurriculumConfig,
        dream: DreamWorld,
        *,
        seed: int,
        held_out: Collection[str] = (),
        by_cluster: bool = False,
    ) -> None:
        """`held_out` holds `task_hash`es that no variant may equal; `by_cluster` is PPO's entropy,
        whose group is not one task's attempts but a cluster's."""
        self.config, self.seed = config, seed
        self.tasks = list(tasks)
        self.variants: list[Variant] = []
        self.entropy: dict[str, float] = {}
        self._text = dream.model.text
        self._dream = dream
        known = {task_hash(task, self._text) for task in tasks}
        self.writer = VariantWriter(dream, known, held_out, seed)
        self._cluster: dict[str, int] = {}
        if by_cluster and tasks:
            numbers = cluster([task.instruction for task in tasks], config.clusters, seed=seed)
            self._cluster = {t.id: n for t, n in zip(tasks, numbers, strict=True)}

    def sample(self, step: int) -> list[Choice]:
        """Distinct tasks for one step, by entropy; at most λ of them variants."""
        rng = random.Random(f"{self.seed}/{step}")
        number = self.config.tasks_per_step
        most = int(self.config.share * number)
        grown = [variant.task for variant in self.variants]
        variants = _draw(grown, min(most, len(grown)), self._weight, rng)
        tasks = _draw(self.tasks, min(number - len(variants), len(self.tasks)), self._weight, rng)
        # λ is a share of what is drawn: where real tasks are few, so are variants
        while len(variants) > self.config.share * (len(tasks) + len(variants)):
            variants.pop()
        return [Choice(task, self.entropy.get(task.id)) for task in tasks + variants]

    def _weight(self, task: Task) -> float:
        return self.entropy.get(task.id, MOST) + self.config.floor

    def record(self, groups: Sequence[Group]) -> None:
        """Half-solved tasks come back more often; a group of faults says nothing."""
        pooled: dict[int, list[float]] = defaultdict(list)
        for group in groups:
            if not (returns := group_returns(group)):
                continue
            if self._cluster:
                pooled[self._cluster[group.task.id]] += returns
            else:
                self.entropy[group.task.id] = reward_entropy(returns)
        if pooled:
            # one return is no spread: such a cluster keeps what was known of it
            spread = {n: reward_entropy(returns) for n, returns in pooled.items() if returns[1:]}
            for task, number in self._cluster.items():
                if number in spread:
                    self.entropy[task] = spread[number]

    async def grow(self, groups: Sequence[Group], step: int) -> list[Variant]:
        """Write variants of this step's most unequal tasks; keep those that are new and
        reachable."""
        wanted = self.config.variants_per_step
        scored = [g.task for g in groups if self.entropy.get(g.task.id, 0.0) > 0]
        if not (wanted and scored):
            return []
        seeds = sorted(scored, key=lambda task: -self.entropy[task.id])
        grown = await self.writer.write(seeds, self.entropy, wanted, step)
        for variant in grown:
            self._let_in(variant)
        return grown

    def _let_in(self, variant: Variant) -> None:
        """A harder task is still of its parent's kind, and in its parent's place."""
        self.variants.append(variant)
        if self._cluster:
            self._cluster[variant.task.id] = self._cluster[variant.task.parent]

    def state(self) -> str:
        """Everything that resuming needs, as JSON."""
        return json.dumps(
            {
                "variants": [variant.data() for variant in self.variants],
                "entropy": self.entropy,
                "refused": self.writer.refused,
            }
        )

    def restore(self, state: str) -> None:
        data = json.loads(state)
        self.variants = []
        for variant in map(Variant.from_data, data["variants"]):
            self._let_in(variant)
            self._dream.model.inherit(variant.task)
            self.writer.known.add(task_hash(variant.task, self._text))
        self.entropy = data["entropy"]
        self.writer.refused.clear()
        self.writer.refused.update(data["refused"])


def _draw(
    tasks: Sequence[Task], number: int, weight: Callable[[Task], float], rng: random.Random
) -> list[Task]:
    """A weighted draw without replacement (Efraimidis and Spirakis)."""
    keys = [(rng.random() ** (1 / weight(task)), i) for i, task in enumerate(tasks)]
    return [tasks[i] for _, i in sorted(keys, reverse=True)[:number]]
