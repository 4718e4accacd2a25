"""GRPO's advantages: attempts at one task compared with each other (Eq. 3; arXiv 2402.03300)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from dreamgym.types import Episode


def group_advantages(
    rewards: Tensor, *, scaled: bool = True, leave_one_out: bool = False, min_range: float = 1e-6
) -> Tensor:
    """Eq. 3: centre and scale returns (G,) of one group; returns within `min_range` give zeros.

    Equality is tested on the returns themselves: a float's standard deviation of equal numbers need
    not be 0, and dividing by it would turn rounding into advantages. So would 0.1 + 0.2 beside 0.3.
    With `leave_one_out` the baseline is the mean of the others (RLOO, arXiv 2402.14740).
    """
    if rewards.numel() < 2 or bool(rewards.max() - rewards.min() <= min_range):
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean()
    if leave_one_out:
        centred = centred * rewards.numel() / (rewards.numel() - 1)
    return centred / rewards.std(correction=0) if scaled else centred


def scale_over(advantages: Sequence[Tensor]) -> list[Tensor]:
    """Divide centred advantages of many groups by their common deviation."""
    everything = torch.cat(list(advantages))
    spread = everything.square().mean().sqrt()
    return [a / spread for a in advantages] if bool(spread) else list(advantages)


def step_advantages(
    episodes: Sequence[Episode],
    rewards: Sequence[Sequence[float]],
    *,
    discount: float,
    scaled: bool = True,
    min_range: float = 1e-6,
) -> list[list[float]]:
    """GiGPO (arXiv 2505.10978): turns of a group that saw the same state, compared by their
    discounted return from there; 0 where nobody else came by, or nothing set them apart.
    """
    met: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    advantages: list[list[float]] = []
    for number, (episode, paid) in enumerate(zip(episodes, rewards, strict=True)):
        advantages.append([0.0] * len(episode.turns))
        ahead = 0.0
        for index in reversed(range(len(episode.turns))):
            ahead = paid[index] + discount * ahead
            met[episode.turns[index].state].append((number, index, ahead))
    for visits in met.values():
        returns = torch.tensor([value for *_, value in visits], dtype=torch.float64)
        compared = group_advantages(returns, scaled=scaled, min_range=min_range).tolist()
        for (number, index, _), advantage in zip(visits, compared, strict=True):
            advantages[number][index] = advantage
    return advantages


def informative_share(success: float, group_size: int) -> float:
    """How many groups will have both a solved and a failed attempt, at this rate of success."""
    return 1 - success**group_size - (1 - success) ** group_size
