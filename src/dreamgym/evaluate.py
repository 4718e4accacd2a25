"""Success with intervals, and how far a dream agrees with the real world."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dreamgym.envs.base import MakeEnv
from dreamgym.llm.base import LLM
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.types import Episode, Task, World

Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate with its 95 % Wilson interval."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval: stays inside [0, 1] and is honest at 0 and 1."""
        if not self.total:
            return (0.0, 1.0)
        n, p, z = self.total, self.value, Z95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        # rounding must not put the rate outside its own interval
        return (max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half)))

    @property
    def half_width(self) -> float:
        low, high = self.interval
        return (high - low) / 2

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}] (n={self.total})"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one policy did on a list of tasks. Faults are no failures: they leave the rate."""

    success: Rate
    by_kind: dict[str, Rate]
    endings: Counter[str]
    mean_turns: float
    outcomes: dict[str, bool]
    """Task id -> solved, to compare two policies task by task."""

    def metrics(self, prefix: str) -> dict[str, float]:
        low, high = self.success.interval
        return {
            f"{prefix}/success": self.success.value,
            f"{prefix}/success_low": low,
            f"{prefix}/success_high": high,
            f"{prefix}/episodes": float(self.success.total),
            f"{prefix}/mean_turns": self.mean_turns,
        }


def summarise(episodes: Sequence[Episode]) -> Evaluation:
    """Rates over episodes, faults apart."""
    valid = [e for e in episodes if not e.ending.is_fault]
    kinds = sorted({e.task.kind for e in valid})
    return Evaluation(
        success=Rate(sum(e.success for e in valid), len(valid)),
        by_kind={
            kind: Rate(
                sum(e.success for e in valid if e.task.kind == kind),
                sum(e.task.kind == kind for e in valid),
            )
            for kind in kinds
        },
        endings=Counter(str(e.ending) for e in episodes),
        mean_turns=sum(len(e.turns) for e in valid) / len(valid) if valid else math.nan,
        outcomes={e.task.id: e.success for e in valid},
    )


async def evaluate(
    policy: LLM,
    tasks: Sequence[Task],
    make_env: MakeEnv,
    config: RolloutConfig,
    *,
    world: World,
    seed: int,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Evaluation:
    """One attempt at every task."""
    once = config.model_copy(update={"group_size": 1})
    groups = await collect(
        policy, tasks, make_env, once, world=world, seed=seed, on_episode=on_episode
    )
    return summarise([group.episodes[0] for group in groups])
