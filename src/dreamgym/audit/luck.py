"""Environment luck: how much the outcome of the very same actions varies from dream to dream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from dreamgym.envs.base import MakeEnv
from dreamgym.types import Episode, WorldFault


@dataclass(frozen=True, slots=True)
class Luck:
    """Fixed action sequences, replayed again and again."""

    sequences: int
    replays: int
    deviation: float | None  # of the reward, mean over sequences; None where all were faults
    success: float | None
    changed: float | None  # share of turns whose state was not the same in every replay
    faults: int

    def data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


async def measure_luck(
    make_env: Callable[[int], MakeEnv],
    episodes: Sequence[Episode],
    replays: int,
    on_episode: Callable[[], None] = lambda: None,
) -> Luck:
    """Replay the actions of each episode `replays` times; `make_env(n)` makes the n-th replay's.

    A replay that the dream broke off has no outcome and is counted.
    """

    async def one(episode: Episode, number: int) -> tuple[float | None, list[str]]:
        told = await _replay(make_env(number), episode)
        on_episode()
        return told

    told = await asyncio.gather(
        *(one(episode, number) for episode in episodes for number in range(replays))
    )
    runs = [told[i * replays : (i + 1) * replays] for i in range(len(episodes))]
    rewards = [[r for r, _ in run if r is not None] for run in runs]
    known = [r for r in rewards if len(r) > 1]
    same: list[bool] = []
    for run in runs:
        shortest = min((len(states) for _, states in run), default=0)
        same += [len({states[turn] for _, states in run}) > 1 for turn in range(shortest)]
    return Luck(
        sequences=len(episodes),
        replays=replays,
        deviation=fmean(map(pstdev, known)) if known else None,
        success=fmean(map(fmean, known)) if known else None,
        changed=fmean(same) if same else None,
        faults=sum(r is None for r, _ in told),
    )


async def _replay(make_env: MakeEnv, episode: Episode) -> tuple[float | None, list[str]]:
    env = make_env(episode.task, 0)
    states: list[str] = []
    try:
        await env.start(episode.task)
        for turn in episode.turns:
            result = await env.step(turn.action)
            states.append(result.state)
            if result.ending is not None:
                return result.reward, states
        return 0.0, states
    except WorldFault:
        return None, states
    finally:
        await env.close()
