"""Success over seeds and games, and differences of rows, with intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
_LETTERS = {"1": 1.0, "0": 0.0, "-": math.nan}
Outcomes = Mapping[int, Sequence[str]]
"""Seed -> a letter string per split (`1` solved, `0` not, `-` a fault), games in a fixed order."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and games with its 95 % interval."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    @property
    def clear(self) -> int:
        """1 or -1 where the interval lies to one side of 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def success(outcomes: Outcomes) -> Estimate:
    """Mean success; the interval resamples seeds and games (a bootstrap on two levels).

    Faults are no failures: they leave the mean. With one seed the interval is of the games alone.
    """
    return _bootstrap(_matrix(outcomes, sorted(outcomes)))


def difference(one: Outcomes, other: Outcomes) -> Estimate | None:
    """Mean of `one` minus `other`, seed by seed and game by game; None without a common seed."""
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    return _bootstrap(_matrix(one, seeds) - _matrix(other, seeds))


def _matrix(outcomes: Outcomes, seeds: Sequence[int]) -> NDArray[np.float64]:
    """(seeds, games)"""
    return np.array([[_LETTERS[letter] for letter in "".join(outcomes[seed])] for seed in seeds])


def _bootstrap(values: NDArray[np.float64]) -> Estimate:
    """A game that is nan for a seed is not counted for it."""
    rng = np.random.default_rng(0)
    seeds, games = values.shape
    counted = ~np.isnan(values)
    filled = np.where(counted, values, 0.0)
    drawn = rng.multinomial(games, np.full(games, 1 / games), size=DRAWS).astype(float)
    # (draws, seeds): each seed's mean over the games drawn, which are the same for all seeds
    sums, numbers = drawn @ filled.T, drawn @ counted.T.astype(float)
    means = np.divide(sums, numbers, out=np.full_like(sums, np.nan), where=numbers > 0)
    chosen = np.take_along_axis(means, rng.integers(seeds, size=(DRAWS, seeds)), 1)
    told = chosen[~np.isnan(chosen).any(axis=1)].mean(axis=1)  # few games may all be faults
    low, high = np.quantile(told, [0.025, 0.975]) if len(told) else (0.0, 1.0)
    total = filled.sum(1) / np.maximum(1, counted.sum(1))
    return Estimate(float(total.mean()), float(low), float(high), seeds)


def reached(curve: Sequence[tuple[float, float]], level: float) -> float | None:
    """Where a curve of (x, success) first reaches a level, in a straight line between points."""
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if y0 >= level:
            return x0
        if y1 >= level:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return curve[-1][0] if curve and curve[-1][1] >= level else None


def outcomes_of(cells: Mapping[int, Mapping[str, Any]], backend: str) -> Outcomes:
    """Of one row's cells by seed: both splits' letters, where that back end measured it."""
    return {
        seed: tuple(told["outcomes"] for told in cell["final"][backend].values())
        for seed, cell in cells.items()
        if backend in cell["final"]
    }
