"""Chooses tasks by reward entropy and grows harder variants of those that are half solved."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import Annotated

from pydantic import Field

from dreamgym.curriculum.clusters import cluster
from dreamgym.curriculum.entropy import group_returns, reward_entropy
from dreamgym.experience.model import ExperienceModel
from dreamgym.settings import Settings
from dreamgym.types import DreamFault, Group, Task

MOST = 0.25  # of the entropy of returns in {0, 1}: an untried task counts as half solved


class CurriculumConfig(Settings):
    tasks_per_step: int = 80
    """Groups per update."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """λ: at most this share of a step's tasks are variants; the rest keeps real ones covered."""
    variants_per_step: int = 2
    """Variants asked for after each step; 0 switches task generation off."""
    clusters: Annotated[int, Field(ge=1)] = 16
    """Of like tasks. PPO takes reward entropy over a cluster, GRPO over a task's own attempts."""
    floor: float = 0.02
    """Entropy every task keeps, so that none is dropped for good."""


class Curriculum:
    """Entropy per task, a pool of variants with their lineage, and counts of what was refused."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: CurriculumConfig,
        *,
        seed: int,
        held_out: Collection[str] = (),
        by_cluster: bool = False,
    ) -> None:
        """`held_out` holds `task_hash`es that no variant may equal; `by_cluster` is PPO's entropy,
        whose group is not one task's attempts but a cluster's."""
        self.config, self.seed = config, seed
        self.tasks = list(tasks)
        self.variants: list[Task] = []
        self.entropy: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        self._known = {task_hash(task) for task in tasks} | set(held_out)
        self._cluster: dict[str, int] = {}
        if by_cluster and tasks:
            numbers = cluster([task.instruction for task in tasks], config.clusters, seed=seed)
            self._cluster = {t.id: n for t, n in zip(tasks, numbers, strict=True)}

    def sample(self, step: int) -> list[Task]:
        """Distinct tasks for one step, by entropy; at most λ of them variants."""
        rng = random.Random(f"{self.seed}/{step}")
        number = self.config.tasks_per_step
        most = int(self.config.share * number)
        variants = _draw(self.variants, min(most, len(self.variants)), self._weight, rng)
        tasks = _draw(self.tasks, min(number - len(variants), len(self.tasks)), self._weight, rng)
        # λ is a share of what is drawn: where real tasks are few, so are variants
        while len(variants) > self.config.share * (len(tasks) + len(variants)):
            variants.pop()
        return tasks + variants

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

    async def grow(self, groups: Sequence[Group], model: ExperienceModel, step: int) -> list[Task]:
        """Write variants of this step's most unequal tasks; keep what the world can hold."""
        scored = [g.task for g in groups if self.entropy.get(g.task.id, 0.0) > 0]
        seeds = sorted(scored, key=lambda task: -self.entropy[task.id])
        grown = []
        for index, seed_task in enumerate(seeds[: self.config.variants_per_step]):
            number = random.Random(f"{self.seed}/{step}/{index}").randrange(2**31)
            variant = await self._vary(seed_task, model, number)
            if variant is not None:
                self.variants.append(variant)
                self._join_cluster(variant)
                grown.append(variant)
        return grown

    async def _vary(self, parent: Task, model: ExperienceModel, number: int) -> Task | None:
        instruction = await model.vary(parent, number)
        if not instruction:
            self.refused["EMPTY"] += 1
            return None
        variant = replace(
            parent,
            instruction=instruction,
            first_state=model.text.retell(parent.first_state, instruction),
            parent=parent.id,
            generation=parent.generation + 1,
        )
        key = task_hash(variant)
        variant = replace(variant, id=f"variant/{key[:16]}")
        if key in self._known:
            self.refused["DUPLICATE"] += 1
            return None
        self._known.add(key)
        try:
            await model.imagine(variant, number)
        except DreamFault as fault:
            self.refused[fault.kind] += 1
            return None
        return variant

    def _join_cluster(self, variant: Task) -> None:
        """A harder task is still of its parent's kind."""
        if self._cluster:
            self._cluster[variant.id] = self._cluster[variant.parent]

    def state(self) -> str:
        """Everything that resuming needs, as JSON."""
        return json.dumps(
            {
                "variants": [asdict(task) for task in self.variants],
                "entropy": self.entropy,
                "refused": self.refused,
                "known": sorted(self._known),
            }
        )

    def restore(self, state: str) -> None:
        data = json.loads(state)
        self.variants = [Task(**task) for task in data["variants"]]
        for variant in self.variants:
            self._join_cluster(variant)
        self.entropy = data["entropy"]
        self.refused = Counter(data["refused"])
        self._known = set(data["known"])


def task_hash(task: Task) -> str:
    """What makes a task the same task: its place and its instruction, whatever case and spacing."""
    words = " ".join(f"{task.first_state}\n{task.instruction}".lower().split())
    return hashlib.sha256(words.encode()).hexdigest()


def _draw(
    tasks: Sequence[Task], number: int, weight: Callable[[Task], float], rng: random.Random
) -> list[Task]:
    """A weighted draw without replacement (Efraimidis and Spirakis)."""
    keys = [(rng.random() ** (1 / weight(task)), i) for i, task in enumerate(tasks)]
    return [tasks[i] for _, i in sorted(keys, reverse=True)[:number]]
