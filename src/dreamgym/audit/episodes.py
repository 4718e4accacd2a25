"""Whole episodes: success in the real world, in the dream, and of the dream's actions when awake.

CR, the consistency ratio, is replayed / real (Word2World): a dream in which a policy succeeds by
what would fail in the real world has a low one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamgym.audit.transitions import rate_data
from dreamgym.envs.base import MakeEnv
from dreamgym.evaluate import Rate
from dreamgym.llm.base import LLM
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.types import Episode, Task, WorldFault

OnEpisode = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy's attempts at the same tasks, one a task; faults are None and leave the rates."""

    real: tuple[bool | None, ...]
    dream: tuple[bool | None, ...]
    replayed: tuple[bool | None, ...]
    faults: Mapping[str, int]

    def data(self) -> dict[str, Any]:
        return {
            "real": rate_data(_rate(self.real)),
            "dream": rate_data(_rate(self.dream)),
            "replayed": rate_data(_rate(self.replayed)),
            "consistency": ratio([self]),
            "consistency_faults_fail": ratio([self], faults_fail=True),
            "faults": dict(self.faults),
        }


def _rate(outcomes: Sequence[bool | None]) -> Rate:
    known = [outcome for outcome in outcomes if outcome is not None]
    return Rate(sum(known), len(known))


async def compare(
    policy: LLM,
    tasks: Sequence[Task],
    make_real: MakeEnv,
    make_dream: MakeEnv,
    config: RolloutConfig,
    *,
    seed: int,
    on_episode: OnEpisode = lambda: None,
) -> Compared:
    """Play every task once in either world, then the dream's actions again in the real one."""
    once = config.model_copy(update={"group_size": 1})

    def count(episode: Episode) -> None:
        on_episode()

    lived = await collect(policy, tasks, make_real, once, world="real", seed=seed, on_episode=count)
    dreamt = await collect(
        policy, tasks, make_dream, once, world="dream", seed=seed, on_episode=count
    )
    real = [group.episodes[0] for group in lived]
    dream = [group.episodes[0] for group in dreamt]
    faults: dict[str, int] = {}
    for episode in (*real, *dream):
        if episode.fault:
            faults[episode.fault] = faults.get(episode.fault, 0) + 1
    replayed = await asyncio.gather(
        *(replay(make_real, e.task, [turn.action for turn in e.turns]) for e in dream)
    )
    outcomes = [None if e.ending.is_fault else e.success for e in dream]
    return Compared(
        tuple(None if e.ending.is_fault else e.success for e in real),
        tuple(outcomes),
        # an episode that the dream broke off proves nothing of what its actions would have done
        tuple(None if o is None else r for o, r in zip(outcomes, replayed, strict=True)),
        faults,
    )


async def replay(make_env: MakeEnv, task: Task, actions: Sequence[str]) -> bool | None:
    """Whether a fixed sequence of actions solves a task; None where the world broke."""
    env = make_env(task, 0)
    try:
        await env.start(task)
        for action in actions:
            result = await env.step(action)
            if result.ending is not None:
                return result.reward > 0
        return False
    except WorldFault:
        return None
    finally:
        await env.close()


def ratio(
    policies: Sequence[Compared], *, faults_fail: bool = False, draws: int = 2000
) -> dict[str, float | None]:
    """CR = replayed / real, pooled, with a bootstrap interval over tasks; None where real is 0.

    Tasks whose dream was a fault leave both sides, since nothing is learnt from them; with
    `faults_fail` they count as replayed in vain, which also shows a dream that mostly breaks off.
    """
    pairs = np.array(
        [
            (replayed or 0, real)
            for policy in policies
            for replayed, real, dream in zip(
                policy.replayed, policy.real, policy.dream, strict=True
            )
            if real is not None and (replayed is not None or (faults_fail and dream is None))
        ],
        dtype=float,
    ).reshape(-1, 2)
    if not pairs[:, 1].sum():
        return {"value": None, "low": None, "high": None}
    rng = np.random.default_rng(0)
    sums = pairs[rng.integers(len(pairs), size=(draws, len(pairs)))].sum(axis=1)
    drawn = sums[:, 0] / np.maximum(sums[:, 1], 1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    value = pairs[:, 0].sum() / pairs[:, 1].sum()
    return {"value": float(value), "low": float(low), "high": float(high)}


def rank_agreement(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same policies; None where one ranks them all alike."""
    agree = tied_first = tied_second = 0
    pairs = [(i, j) for i in range(len(first)) for j in range(i)]
    for i, j in pairs:
        a = float(np.sign(first[i] - first[j]))
        b = float(np.sign(second[i] - second[j]))
        agree += int(a * b)
        tied_first += a == 0
        tied_second += b == 0
    scale = math.sqrt((len(pairs) - tied_first) * (len(pairs) - tied_second))
    return agree / scale if scale else None


async def effective_groups(
    policy: LLM,
    tasks: Sequence[Task],
    make_env: MakeEnv,
    config: RolloutConfig,
    *,
    world: str,
    seed: int,
    on_episode: OnEpisode = lambda: None,
) -> Rate:
    """The share of groups whose rewards are not all alike: only those can teach GRPO anything."""
    groups = await collect(
        policy,
        tasks,
        make_env,
        config,
        world="dream" if world == "dream" else "real",
        seed=seed,
        on_episode=lambda episode: on_episode(),
    )
    rewards = [[e.reward for e in g.episodes if not e.ending.is_fault] for g in groups]
    known = [told for told in rewards if len(told) > 1]
    return Rate(sum(len(set(told)) > 1 for told in known), len(known))
