"""`check_env` passes our worlds and catches worlds that break one rule each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest
from houses import CLEAN_APPLE_SOLUTION, house

from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.envs.check import ContractError, check_env
from dreamgym.envs.toy import ToyEnv, contents_of, make_toy_env, toy_tasks, wanted_by
from dreamgym.types import DreamGymError, EnvFault, StepResult, Task

TASK = toy_tasks(1)[0]


def solution(task: Task) -> tuple[str, str]:
    wanted = wanted_by(task)
    return f"open {({v: k for k, v in contents_of(task).items()})[wanted]}", f"take {wanted}"


def test_the_toy_world_keeps_the_contract() -> None:
    for task in toy_tasks(5):
        asyncio.run(check_env(make_toy_env, task, solution=solution(task)))


def test_the_fast_back_end_keeps_the_contract() -> None:
    world = AlfworldWorld([house()])
    asyncio.run(check_env(world.make_env, world.tasks[0], solution=CLEAN_APPLE_SOLUTION))
    asyncio.run(check_env(world.make_env, world.tasks[0]))


@pytest.mark.engine
def test_the_engine_keeps_the_contract() -> None:
    with AlfworldWorld([house()], "engine", num_workers=2) as world:
        asyncio.run(check_env(world.make_env, world.tasks[0], solution=CLEAN_APPLE_SOLUTION))


def test_a_task_without_a_game_is_refused() -> None:
    world = AlfworldWorld([house()])
    with pytest.raises(DreamGymError, match="none of this world's 1 games"):
        world.make_env(Task(id="variant", instruction="x", parent=house().id), 0)


SHARED: set[str] = set()
CLOCK = count()


class Silent(ToyEnv):
    async def start(self, task: Task) -> str:
        await super().start(task)
        return "  "


class Raising(ToyEnv):
    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        if not result.valid:
            raise EnvFault("refused", action)
        return result


class Paying(ToyEnv):
    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        return result if result.valid else StepResult(result.state, 0.5, valid=False)


class Polite(ToyEnv):
    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        return StepResult(result.state, result.reward, result.ending, valid=True)


@dataclass(slots=True)
class Sharing(ToyEnv):
    opened: set[str] = field(default_factory=lambda: SHARED)


class Endless(ToyEnv):
    async def step(self, action: str) -> StepResult:
        if self._over == "after the ending":
            return StepResult("You are done.", 0.0)
        return await super().step(action)


class Early(ToyEnv):
    async def step(self, action: str) -> StepResult:
        return await super().step(action) if self._started else StepResult("Wait.", 0.0)


class Fickle(ToyEnv):
    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        state = f"{result.state} ({next(CLOCK)})"
        return StepResult(state, result.reward, result.ending, result.valid)


@dataclass(slots=True)
class Cleared(ToyEnv):
    """Shares its boxes with every other one, but closes them all when it starts."""

    opened: set[str] = field(default_factory=lambda: SHARED)

    async def start(self, task: Task) -> str:
        self.opened.clear()
        return await ToyEnv.start(self, task)


class Tupled(ToyEnv):
    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        return (result.state, result.reward)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "broken, said",
    [
        (Silent, "gave the state"),
        (Raising, "is answered with"),
        (Paying, "paid 0.5"),
        (Polite, "answered as valid"),
        (Sharing, "one group, one world"),
        (Endless, "after the ending"),
        (Early, "before start"),
        (Fickle, "one group, one world"),
        (Cleared, "two envs share something"),
        (Tupled, "not a StepResult"),
    ],
)
def test_a_world_that_breaks_one_rule_is_told_which(
    broken: Callable[[Task], ToyEnv], said: str
) -> None:
    SHARED.clear()
    with pytest.raises(ContractError, match=said):
        asyncio.run(check_env(lambda task, group: broken(task), TASK, solution=solution(TASK)))
