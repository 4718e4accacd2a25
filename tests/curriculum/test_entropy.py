"""Eq. 7 by hand and against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.curriculum.entropy import group_returns, reward_entropy
from dreamgym.types import Ending, Episode, Group, Task, Turn

TASK = Task("t", "take the key", "You are in a room.")


def attempt(reward: float, ending: Ending = Ending.DONE) -> Episode:
    return Episode(TASK, (Turn("s", "a", reward, "n"),), ending, "dream")


@pytest.mark.parametrize(
    ("returns", "entropy"),
    [
        ([0.0, 1.0], 0.25),
        ([1.0, 0.0, 0.0, 0.0], 0.1875),  # 1/4 · 3/4
        ([1.0] * 7 + [0.0], 0.109375),  # 7/8 · 1/8
        ([1.0, 1.0, 1.0], 0.0),
        ([0.0] * 8, 0.0),
        ([0.2, 0.4, 0.9], 0.26 / 3),  # mean 0.5: 0.09 + 0.01 + 0.16
        ([0.3], 0.0),
    ],
)
def test_reward_entropy_is_the_variance_of_a_groups_returns(
    returns: list[float], entropy: float
) -> None:
    assert reward_entropy(returns) == pytest.approx(entropy, abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_it_agrees_with_numpy_and_is_highest_for_half_solved(returns: list[float]) -> None:
    got = reward_entropy(returns)
    assert abs(got - float(np.var(np.array(returns)))) < 1e-12
    assert -1e-15 <= got <= 0.25 + 1e-12


def test_a_fault_has_no_return() -> None:
    faults = (attempt(0.0, Ending.DREAM_FAULT), attempt(0.0, Ending.ENV_FAULT))
    group = Group(TASK, (attempt(1.0), attempt(0.0, Ending.TURN_LIMIT), *faults))
    assert group_returns(group) == [1.0, 0.0]
    assert reward_entropy(group_returns(group)) == 0.25
    assert group_returns(Group(TASK, faults)) == []


def test_no_returns_have_no_entropy() -> None:
    with pytest.raises(ValueError, match="without a reward"):
        reward_entropy([])
