"""The budget of real transitions: exact whoever asks, and never passed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.envs.base import Env
from dreamgym.envs.check import check_env
from dreamgym.envs.metered import SPENT, Meter, metered
from dreamgym.envs.toy import make_toy_env, toy_tasks
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.types import Ending, EnvFault, StepResult, Task

TASKS = toy_tasks(6)


class SlowEnv:
    """A world that lets others go first at every step, counts what it is asked, and never ends."""

    def __init__(self, asked: Counter[str]) -> None:
        self.asked = asked

    async def start(self, task: Task) -> str:
        self.asked["start"] += 1
        return "a room"

    async def step(self, action: str) -> StepResult:
        self.asked["step"] += 1
        await asyncio.sleep(0)
        return StepResult("a room", 0.0)

    async def close(self) -> None:
        self.asked["close"] += 1


@given(budget=st.integers(0, 40), attempts=st.integers(1, 4), turns=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_episodes_at_once_get_the_budget_to_the_last_transition_and_no_further(
    budget: int, attempts: int, turns: int
) -> None:
    asked: Counter[str] = Counter()
    meter = Meter(budget)
    make_env = metered(lambda task, group: SlowEnv(asked), meter)
    config = RolloutConfig(group_size=attempts, max_turns=turns)
    policy = ScriptedLLM(lambda prompt: "look")
    groups = asyncio.run(collect(policy, TASKS, make_env, config, world="real", seed=0))
    wanted = len(TASKS) * attempts * turns
    assert asked["step"] == min(budget, wanted)
    assert meter.left == budget - asked["step"] >= 0
    assert asked["close"] == asked["start"] == len(TASKS) * attempts
    episodes = [episode for group in groups for episode in group.episodes]
    assert sum(len(episode.turns) for episode in episodes) == asked["step"]
    broken = {(episode.ending, episode.fault) for episode in episodes if episode.fault}
    assert broken == ({(Ending.ENV_FAULT, SPENT)} if budget < wanted else set())


def test_where_nothing_is_left_the_world_is_not_asked() -> None:
    asked: Counter[str] = Counter()
    meter = Meter(1)

    async def live() -> None:
        env: Env = metered(lambda task, group: SlowEnv(asked), meter)(TASKS[0], 0)
        await env.start(TASKS[0])
        await env.step("look")
        for _ in range(3):
            with pytest.raises(EnvFault) as caught:
                await env.step("look")
            assert caught.value.kind == SPENT == "BUDGET_SPENT"

    asyncio.run(live())
    assert asked["step"] == 1 and meter.left == 0 and meter.spent


def test_a_step_that_breaks_the_world_was_asked_and_is_counted() -> None:
    class Broken(SlowEnv):
        async def step(self, action: str) -> StepResult:
            raise EnvFault("CRASH")

    meter = Meter(5)
    make_env = metered(lambda task, group: Broken(Counter()), meter)
    policy = ScriptedLLM(lambda prompt: "look")
    config = RolloutConfig(group_size=2)
    asyncio.run(collect(policy, TASKS[:1], make_env, config, world="real", seed=0))
    assert meter.left == 3


def test_a_meter_without_a_bound_never_stops() -> None:
    meter = Meter()
    for _ in range(1000):
        meter.take()
    assert not meter.spent and meter.carries(1e9) == sys.maxsize


@pytest.mark.parametrize(
    ("left", "transitions", "times"),
    [(10, 3.0, 3), (9, 3.0, 3), (2, 3.0, 0), (0, 3.0, 0), (7, 3.5, 2), (-1, 3.0, 0), (10, 10, 1)],
)
def test_a_meter_says_how_often_so_much_is_left(left: int, transitions: float, times: int) -> None:
    assert Meter(left).carries(transitions) == times


def test_a_metered_world_is_a_world() -> None:
    task = toy_tasks(1)[0]
    asyncio.run(check_env(metered(make_toy_env, Meter(10_000)), task))
