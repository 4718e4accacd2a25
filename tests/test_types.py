"""The nouns hold what they promise, whatever is put in."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.types import (
    DreamFault,
    DreamGymError,
    Ending,
    EnvFault,
    Episode,
    StepResult,
    Task,
    Turn,
    WorldFault,
)

TASK = Task("t", "take the key")


def episode(*rewards: float, ending: Ending = Ending.DONE) -> Episode:
    turns = [Turn(f"s{i}", f"a{i}", r, f"s{i + 1}") for i, r in enumerate(rewards)]
    return Episode(TASK, tuple(turns), ending, "real")


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, -0.1, 1.0001, 2, -5e-324])
def test_no_world_can_pay_outside_of_zero_to_one(reward: float) -> None:
    with pytest.raises(ValueError, match="not in"):
        StepResult("s", reward)


@given(st.floats(0.0, 1.0))
def test_any_reward_inside_is_paid_as_it_is(reward: float) -> None:
    assert StepResult("s", reward).reward == reward


@pytest.mark.parametrize("ending", Ending)
def test_only_a_broken_world_is_a_fault(ending: Ending) -> None:
    assert ending.is_fault == (ending in (Ending.ENV_FAULT, Ending.DREAM_FAULT))


@pytest.mark.parametrize("ending", Ending)
def test_only_a_world_that_says_so_makes_a_success(ending: Ending) -> None:
    assert episode(0.0, 1.0, ending=ending).success == (ending is Ending.DONE)
    assert not episode(0.0, 0.0, ending=ending).success


def test_an_episodes_reward_is_the_sum_over_its_turns() -> None:
    assert episode(0.25, 0.0, 0.5).reward == 0.75
    assert episode().reward == 0


@pytest.mark.parametrize("ending", Ending)
def test_a_transition_per_turn_and_only_the_last_of_a_finished_episode_is_done(
    ending: Ending,
) -> None:
    steps = list(episode(0.0, 0.0, 1.0, ending=ending).transitions())
    assert [step.history for step in steps] == [
        (),
        (("s0", "a0"),),
        (("s0", "a0"), ("s1", "a1")),
    ]
    assert [(s.state, s.action, s.next_state) for s in steps] == [
        (f"s{i}", f"a{i}", f"s{i + 1}") for i in range(3)
    ]
    assert [step.reward for step in steps] == [0.0, 0.0, 1.0]
    assert [step.done for step in steps] == [False, False, ending is Ending.DONE]


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        (WorldFault("HANG"), Ending.ENV_FAULT),
        (EnvFault("CRASH", "code 9"), Ending.ENV_FAULT),
        (DreamFault("EMPTY", "x"), Ending.DREAM_FAULT),
    ],
)
def test_a_fault_knows_its_class_and_how_the_episode_ends(
    fault: WorldFault, ending: Ending
) -> None:
    assert fault.ending is ending
    assert str(fault).startswith(fault.kind)
    assert not isinstance(fault, DreamGymError)  # it ends an episode, not the program


@pytest.mark.parametrize("noun", [TASK, StepResult("s", 0.0), episode(1.0)])
def test_nouns_do_not_change(noun: object) -> None:
    for field in dataclasses.fields(noun):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(noun, field.name, None)
