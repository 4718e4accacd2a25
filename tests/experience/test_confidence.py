"""Confidence is worth what held-out answers say it is."""

from __future__ import annotations

import math
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from dreamgym.experience.confidence import (
    RAW,
    Calibration,
    auroc,
    calibrate,
    calibration_error,
    reliability,
)
from dreamgym.types import DreamGymError


def drawn(slope: float, offset: float, number: int) -> tuple[list[float], list[bool]]:
    rng = np.random.default_rng(0)
    logprobs = -np.exp(-rng.uniform(0, 9, number))
    chance = 1 / (1 + np.exp(-(slope * -np.log(-logprobs) + offset)))
    return logprobs.tolist(), (rng.random(number) < chance).tolist()


@pytest.mark.parametrize(("slope", "offset"), [(0.6, -1.0), (1.5, -3.0), (0.4, 2.0)])
def test_the_sigmoid_that_made_the_answers_is_found(slope: float, offset: float) -> None:
    fitted = calibrate(*drawn(slope, offset, 20_000))
    assert fitted.num == 20_000
    assert math.isclose(fitted.slope, slope, rel_tol=0.12)
    assert math.isclose(fitted.offset, offset, rel_tol=0.12)
    assert fitted(-1e-4) > fitted(-1e-2) > fitted(-1.0)


def test_few_errors_among_many_do_not_turn_the_sigmoid_round() -> None:
    """Newton's whole step overshot here once, and the surest answers came out the least sure."""
    rng = random.Random(0)
    logprobs = [-math.exp(-rng.uniform(4, 9)) for _ in range(600)] + [-0.15] * 12
    fitted = calibrate(logprobs, [True] * 597 + [False] * 3 + [i % 2 == 0 for i in range(12)])
    assert fitted.slope > 0


@pytest.mark.parametrize("right", [[], [True] * 4, [False] * 4])
def test_where_nothing_can_be_told_the_raw_confidence_stays(right: list[bool]) -> None:
    assert calibrate([-0.1] * len(right), right) is RAW
    assert calibrate([math.nan] * len(right), right) is RAW
    assert RAW(math.log(0.25)) == pytest.approx(0.25) and math.isnan(RAW(math.nan))


def test_the_edges_overflow_nowhere() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (RAW, Calibration(2.0, -3.0, 9), Calibration(1e6, 0.0, 9)):
            assert all(0 <= made(x) <= 1 for x in (0.0, -0.0, -1e-12, -1.0, -1e9))


def test_auroc_is_the_chance_that_the_right_one_scores_higher() -> None:
    rng = random.Random(1)
    scores = [rng.choice([0.1, 0.2, 0.3, 0.9]) for _ in range(60)]
    right = [rng.random() < score + 0.2 for score in scores]
    pairs = [
        (a > b) + (a == b) / 2
        for a, y in zip(scores, right, strict=True)
        for b, z in zip(scores, right, strict=True)
        if y and not z
    ]
    found = auroc(scores, right)
    assert found is not None and math.isclose(found, sum(pairs) / len(pairs))
    assert auroc(scores, [True] * 60) is None


def test_bins_hold_every_answer_once_and_their_gap_is_the_error() -> None:
    bins = reliability([0.1, 0.9, 0.2, 0.8], [False, True, True, True], bins=2)
    assert bins == [(pytest.approx(0.15), 0.5, 2), (pytest.approx(0.85), 1.0, 2)]
    assert calibration_error(bins) == pytest.approx((0.35 * 2 + 0.15 * 2) / 4)
    assert math.isnan(calibration_error([]))
    assert sum(n for _, _, n in reliability([0.5] * 7, [True] * 7)) == 7


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = Calibration(0.5, -1.25, 40)
    made.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == made
    assert Calibration.load(tmp_path / "none.json") is RAW


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"slope":"a","offset":1,"num":2}', '{"slope":NaN,"offset":1,"num":2}']
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(DreamGymError, match="fit again"):
        Calibration.load(tmp_path / "c.json")
