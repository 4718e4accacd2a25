"""How sure an answer is, and whether that says anything: calibration on held-out transitions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dreamgym.run_folder import write_json
from dreamgym.types import DreamGymError


@dataclass(frozen=True, slots=True)
class Calibration:
    """Platt's sigmoid: P(right) = 1 / (1 + exp(-(slope * -log(-logprob) + offset))).

    The logarithm, since mean log-probabilities of a fitted model crowd below zero.
    """

    slope: float
    offset: float
    num: int = 0
    """Held-out transitions it was fitted on; 0 for the raw exp(logprob)."""

    def __call__(self, logprob: float) -> float:
        """P(the next state is exactly right); NaN where the model told no log-probability."""
        if math.isnan(logprob):
            return math.nan
        if not self.num:
            return math.exp(min(0.0, logprob))
        return float(_sigmoid(self.slope * _certainty(logprob) + self.offset))

    def save(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """The raw confidence where nothing was calibrated; DreamGymError for a broken file."""
        if not path.exists():
            return RAW
        try:
            data = json.loads(path.read_text())
            made = cls(float(data["slope"]), float(data["offset"]), int(data["num"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DreamGymError(f"{path} is no calibration: delete it and fit again") from error
        if not (math.isfinite(made.slope) and math.isfinite(made.offset)):
            raise DreamGymError(f"{path} holds numbers that are not finite: delete it, fit again")
        return made


RAW = Calibration(1.0, 0.0)


def calibrate(logprobs: Sequence[float], right: Sequence[bool]) -> Calibration:
    """Fit the sigmoid by Newton's method, with Platt's smoothed targets.

    Returns the raw confidence where all answers are right, or all wrong: nothing can be fitted.
    """
    known = [(x, y) for x, y in zip(logprobs, right, strict=True) if not math.isnan(x)]
    hits = sum(y for _, y in known)
    if not 0 < hits < len(known):
        return RAW
    certainty = np.array([_certainty(x) for x, _ in known])
    features = np.stack([certainty, np.ones_like(certainty)], axis=1)
    high, low = (hits + 1) / (hits + 2), 1 / (len(known) - hits + 2)
    targets = np.array([high if y else low for _, y in known])
    weights = np.array([0.0, math.log(hits / (len(known) - hits))])
    loss = _loss(features @ weights, targets)
    for _ in range(100):
        p = _sigmoid(features @ weights)
        slope = features.T @ (p - targets)
        curve = (features.T * (p * (1 - p))) @ features + 1e-9 * np.eye(2)
        step = np.linalg.solve(curve, slope)
        while np.abs(step).max() > 1e-9:  # Newton's step may overshoot: go half as far, and again
            trial = _loss(features @ (weights - step), targets)
            if trial <= loss:
                break
            step = step / 2
        else:
            break
        weights, loss = weights - step, trial
    return Calibration(float(weights[0]), float(weights[1]), len(known))


def auroc(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """P(a right answer scores above a wrong one), ties half; None where there is only one kind."""
    good = np.sort([s for s, y in zip(scores, right, strict=True) if y])
    bad = np.array([s for s, y in zip(scores, right, strict=True) if not y])
    if not len(good) or not len(bad):
        return None
    above = len(good) - np.searchsorted(good, bad, side="right")
    equal = len(good) - np.searchsorted(good, bad, side="left") - above
    return float((above + equal / 2).sum() / (len(good) * len(bad)))


def reliability(
    scores: Sequence[float], right: Sequence[bool], bins: int = 10
) -> list[tuple[float, float, int]]:
    """(mean confidence, share right, number) of bins with equally many answers each."""
    order = np.argsort(scores, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    confidence, hit = np.asarray(scores, float), np.asarray(right, float)
    return [(float(confidence[p].mean()), float(hit[p].mean()), len(p)) for p in parts]


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """ECE: the mean gap between confidence and truth, weighted by answers; NaN without any."""
    total = sum(n for _, _, n in bins)
    return sum(abs(c - h) * n for c, h, n in bins) / total if total else math.nan


def _certainty(logprob: float) -> float:
    return -math.log(max(-logprob, 1e-9))


def _loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """Cross entropy of targets in (0, 1)."""
    return float((np.logaddexp(0.0, logits) - targets * logits).sum())


def _sigmoid(x: np.ndarray | float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -60, 60)))
