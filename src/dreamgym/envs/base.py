"""The first seam: a world, dreamed or real, for one episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dreamgym.types import StepResult, Task


class Env(Protocol):
    """One world for one episode: made, played, closed. There is no second start.

    `start` and `step` raise `WorldFault` when the world breaks; an action the world refuses is no
    fault but an answer (`valid=False`, reward 0, in the world's own words).
    """

    async def start(self, task: Task) -> str: ...

    async def step(self, action: str) -> StepResult: ...

    async def close(self) -> None: ...


MakeEnv = Callable[[Task, int], Env]
"""(task, group) -> Env. All attempts of one group get the same number, and so the same world."""
