"""Reward entropy (Eq. 7): the variance of a group's returns, highest where half of them succeed."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.types import Group


def reward_entropy(rewards: Sequence[float]) -> float:
    """V = mean((r - mean r)^2); 0.25 at most for returns of 0 and 1."""
    if not rewards:
        raise ValueError("a group without a reward has no entropy")
    mean = sum(rewards) / len(rewards)
    return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)


def group_returns(group: Group) -> list[float]:
    """The returns that count: a fault has none."""
    return [episode.reward for episode in group.episodes if not episode.ending.is_fault]
