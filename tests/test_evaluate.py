"""Wilson's interval against published numbers, and who counts in a rate."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.base import Env
from dreamgym.envs.toy import make_toy_env, toy_expert, toy_tasks
from dreamgym.evaluate import Rate, evaluate, summarise
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.rollout import RolloutConfig
from dreamgym.types import Ending, EnvFault, Episode, Task, Turn

Z_SQUARED = 3.841459


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        (0, 10, 0.0, Z_SQUARED / (10 + Z_SQUARED)),  # 0.2775
        (5, 10, 0.236593, 0.763407),
        (10, 10, 10 / (10 + Z_SQUARED), 1.0),  # 0.7225
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_those_of_the_textbook(
    hits: int, total: int, low: float, high: float
) -> None:
    got = Rate(hits, total).interval
    assert got == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_rate_and_mirrors(drawn: tuple[int, int]) -> None:
    hits, total = drawn
    rate = Rate(hits, total)
    low, high = rate.interval
    assert 0 <= low <= rate.value <= high <= 1
    assert low < high, "not even at 0 and 1 is anything certain"
    mirrored = Rate(total - hits, total).interval
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-9)
    assert rate.half_width == pytest.approx((high - low) / 2)


def test_nothing_measured_says_nothing() -> None:
    assert math.isnan(Rate(0, 0).value) and Rate(0, 0).interval == (0.0, 1.0)
    assert math.isnan(summarise([]).mean_turns)


def test_a_rate_reads_as_a_sentence_part() -> None:
    assert str(Rate(5, 10)) == "50.0% [23.7%, 76.3%] (n=10)"


def attempt(reward: float, ending: Ending = Ending.DONE, kind: str = "pick") -> Episode:
    turns = (Turn("s", "a", 0.0, "n"), Turn("n", "b", reward, "m"))
    return Episode(Task("t", "i", "s", kind), turns, ending, "real")


def test_faults_leave_the_rate_and_are_counted_as_endings() -> None:
    played = [
        attempt(1.0),
        attempt(0.0),
        attempt(0.0, Ending.TURN_LIMIT, kind="heat"),
        attempt(0.0, Ending.ENV_FAULT),
        attempt(0.0, Ending.DREAM_FAULT, kind="cool"),
    ]
    result = summarise(played)
    assert result.success == Rate(1, 3)
    assert result.by_kind == {"heat": Rate(0, 1), "pick": Rate(1, 2)}
    assert result.endings == {
        **{"done": 2, "turn_limit": 1},
        **{"env_fault": 1, "dream_fault": 1},
    }
    assert result.mean_turns == 2.0


def test_a_reward_before_a_cut_is_no_success() -> None:
    assert summarise([attempt(1.0, Ending.TURN_LIMIT)]).success == Rate(0, 1)
    assert summarise([attempt(0.5)]).success == Rate(1, 1)


def test_metrics_carry_the_interval_beside_the_rate() -> None:
    metrics = summarise([attempt(1.0)] * 5 + [attempt(0.0)] * 5).metrics("real")
    assert metrics == pytest.approx(
        {
            **{"real/success": 0.5, "real/success_low": 0.236593, "real/success_high": 0.763407},
            **{"real/episodes": 10.0, "real/mean_turns": 2.0},
        },
        abs=1e-6,
    )


def play_as_expert(prompt: Sequence[Message]) -> str:
    """The toy world's expert; it reads the instruction from the state, where the test put it."""
    instruction = prompt[0].text.split(" Your task: ")[1]
    states = [message.text for message in prompt if message.role == "user"]
    return toy_expert(Task("t", instruction), states)


class ToldEnv:
    """The toy world whose first state tells the task; every third one breaks at once."""

    def __init__(self, inner: Env, task: Task, *, broken: bool) -> None:
        self.inner, self.task, self.broken = inner, task, broken
        self.step, self.close = inner.step, inner.close

    async def start(self, task: Task) -> str:
        if self.broken:
            raise EnvFault("CRASHED", "as every third one does")
        return f"{await self.inner.start(task)} Your task: {task.instruction}"


def test_every_task_is_attempted_once_and_broken_worlds_do_not_count() -> None:
    tasks = toy_tasks(9)
    broken = {task.id for task in tasks[::3]}
    seen: list[Episode] = []

    def make_env(task: Task, group: int) -> ToldEnv:
        return ToldEnv(make_toy_env(task, group), task, broken=task.id in broken)

    result = asyncio.run(
        evaluate(
            ScriptedLLM(play_as_expert),
            tasks,
            make_env,
            RolloutConfig(group_size=8),
            world="real",
            seed=0,
            on_episode=seen.append,
        )
    )
    assert result.success == Rate(6, 6)
    assert result.endings == {"done": 6, "env_fault": 3}
    assert sorted(e.task.id for e in seen) == sorted(task.id for task in tasks)
    assert {e.fault for e in seen} == {"", "CRASHED"}


def test_an_agent_that_only_looks_solves_nothing() -> None:
    policy = ScriptedLLM(lambda prompt: "look")
    config = RolloutConfig(max_turns=4)
    result = asyncio.run(evaluate(policy, toy_tasks(3), make_toy_env, config, world="real", seed=0))
    assert result.success == Rate(0, 3)
    assert result.endings == {"turn_limit": 3} and result.mean_turns == 4.0


def test_success_needs_the_worlds_word_that_it_is_over() -> None:
    episode = attempt(1.0)
    assert episode.success
    for ending in Ending:
        assert replace(episode, ending=ending).success is (ending is Ending.DONE)
