"""Success with intervals, and how far a dream agrees with the real world."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dreamgym.envs.base import MakeEnv
from dreamgym.llm.base import LLM
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.types import Ending, Episode, Task, World

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

    def metrics(self, prefix: str) -> dict[str, float]:
        low, high = self.success.interval
        return {
            f"{prefix}/success": self.success.value,
            f"{prefix}/success_low": low,
            f"{prefix}/success_high": high,
            f"{prefix}/episodes": float(self.success.total),
            f"{prefix}/mean_turns": self.mean_turns,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an evaluation keeps of an episode."""

    kind: str
    ending: Ending
    success: bool
    num_turns: int

    @classmethod
    def of(cls, episode: Episode) -> Outcome:
        return cls(episode.task.kind, episode.ending, episode.success, len(episode.turns))

    def __post_init__(self) -> None:  # it may come from another process, as text
        object.__setattr__(self, "ending", Ending(self.ending))


def summarise(outcomes: Sequence[Outcome]) -> Evaluation:
    """Rates over episodes, faults apart."""
    valid = [o for o in outcomes if not o.ending.is_fault]
    kinds = sorted({o.kind for o in valid})
    return Evaluation(
        success=Rate(sum(o.success for o in valid), len(valid)),
        by_kind={
            kind: Rate(
                sum(o.success for o in valid if o.kind == kind), sum(o.kind == kind for o in valid)
            )
            for kind in kinds
        },
        endings=Counter(str(o.ending) for o in outcomes),
        mean_turns=sum(o.num_turns for o in valid) / len(valid) if valid else math.nan,
    )


async def evaluate(
    policy: LLM,
    tasks: Sequence[Task],
    make_env: MakeEnv,
    config: RolloutConfig,
    *,
    world: World,
    seed: int,
    first: int = 0,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Evaluation:
    """One attempt at every task. `first` is the first one's number where they are part of a list:
    the samples follow from it."""
    once = config.model_copy(update={"group_size": 1})
    groups = await collect(
        policy, tasks, make_env, once, world=world, seed=seed, first=first, on_episode=on_episode
    )
    return summarise([Outcome.of(group.episodes[0]) for group in groups])
