"""Intervals over seeds and games, paired differences, and where a curve reaches a level."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.reproduce.stats import difference, reached, success

letters = st.text("01-", min_size=3, max_size=12).filter(lambda text: set(text) - {"-"})


def test_faults_leave_the_mean() -> None:
    assert success({0: ["11-"], 1: ["0-0"]}).mean == pytest.approx(0.5)


def test_games_of_both_splits_count_alike() -> None:
    assert success({0: ["1111", "00"]}).mean == pytest.approx(4 / 6)


def test_one_seeds_interval_is_nearly_wilsons() -> None:
    told = success({0: ["1" * 137 + "0" * 137]})
    half = 1.96 * math.sqrt(0.25 / 274)
    assert told.low == pytest.approx(0.5 - half, abs=0.01)
    assert told.high == pytest.approx(0.5 + half, abs=0.01)


def test_seeds_that_disagree_widen_the_interval() -> None:
    alike = success({seed: ["10" * 100] for seed in range(3)})
    apart = success({0: ["1" * 200], 1: ["10" * 100], 2: ["0" * 200]})
    assert apart.mean == alike.mean == 0.5
    assert apart.high - apart.low > 3 * (alike.high - alike.low)


def test_pairing_sees_what_two_means_do_not() -> None:
    rng = random.Random(0)
    base = "".join(rng.choice("01") for _ in range(200))
    better = "".join("1" if i % 10 == 0 else letter for i, letter in enumerate(base))
    told = difference({0: [better]}, {0: [base]})
    assert told is not None and told.clear == 1 and 0.02 < told.mean < 0.1
    back = difference({0: [base]}, {0: [better]})
    assert back is not None and back.clear == -1 and back.mean == pytest.approx(-told.mean)
    one, other = success({0: [better]}), success({0: [base]})
    assert one.low < other.high  # alone, the two cannot be told apart


def test_only_common_seeds_are_compared() -> None:
    told = difference({0: ["1"], 1: ["1"]}, {1: ["0"], 2: ["0"]})
    assert told is not None and told.seeds == 1
    assert difference({0: ["1"]}, {1: ["0"]}) is None


@given(st.lists(letters, min_size=1, max_size=4).filter(lambda a: len({len(x) for x in a}) == 1))
def test_an_interval_holds_its_mean_and_stays_in_bounds(rows: list[str]) -> None:
    told = success({seed: [row] for seed, row in enumerate(rows)})
    assert 0 <= told.low <= told.high <= 1
    assert told.low - 1e-9 <= told.mean <= told.high + 1e-9 or len(rows[0]) < 6


@pytest.mark.parametrize(
    ("level", "where"), [(0.2, 0.0), (0.5, 10.0), (0.4, 20 / 3), (0.7, 18.0), (0.9, None)]
)
def test_where_a_curve_first_reaches_a_level(level: float, where: float | None) -> None:
    curve = [(0.0, 0.2), (10.0, 0.5), (15.0, 0.45), (20.0, 0.86)]
    told = reached(curve, level)
    expected = {0.7: 15 + 5 * 0.25 / 0.41}.get(level, where)
    assert told == (pytest.approx(expected) if expected is not None else None)
    assert reached([], 0.1) is None and reached([(3.0, 0.4)], 0.4) == 3.0
