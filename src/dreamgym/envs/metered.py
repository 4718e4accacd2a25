"""A real world that may only be asked so many times: a hard budget of transitions."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from dreamgym.envs.base import Env, MakeEnv
from dreamgym.types import EnvFault, StepResult, Task

SPENT = "BUDGET_SPENT"


@dataclass(slots=True)
class Meter:
    """Transitions left; None is no bound."""

    left: int | None = None

    @property
    def spent(self) -> bool:
        return self.left is not None and self.left <= 0

    def carries(self, transitions: float, keep: float = 0.0) -> int:
        """How many times so many transitions are still there, beside those to keep."""
        if self.left is None:
            return sys.maxsize
        return max(0, int((self.left - keep) // transitions))

    def take(self) -> None:
        """One transition; raises EnvFault where there is none left, before the world is asked."""
        if self.spent:
            raise EnvFault(SPENT, "the budget of real transitions is used up")
        if self.left is not None:
            self.left -= 1


class MeteredEnv:
    """An env that counts what it is asked."""

    def __init__(self, env: Env, meter: Meter) -> None:
        self._env, self._meter = env, meter

    async def start(self, task: Task) -> str:
        return await self._env.start(task)

    async def step(self, action: str) -> StepResult:
        self._meter.take()
        return await self._env.step(action)

    async def close(self) -> None:
        await self._env.close()


def metered(make_env: MakeEnv, meter: Meter) -> MakeEnv:
    """The same worlds, all on one meter."""
    return lambda task, group: MeteredEnv(make_env(task, group), meter)
