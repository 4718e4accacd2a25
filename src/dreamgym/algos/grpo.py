"""GRPO: PPO's clipped objective, advantages taken inside each group (Eq. 3; arXiv 2402.03300)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dreamgym.algos.batch import Batch

TOLERANCE = 1e-6  # returns lie in [0, 1] and are sums: what rounding sets apart is equal


def group_advantages(rewards: Tensor) -> Tensor:
    """Eq. 3: centre and scale returns (G,) of one group; equal returns give zeros.

    Equality is tested on the returns themselves: a float's standard deviation of equal numbers need
    not be 0, and dividing by it would turn rounding into advantages. So would 0.1 + 0.2 beside 0.3.
    """
    if rewards.numel() == 0 or bool(rewards.max() - rewards.min() <= TOLERANCE):
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / rewards.std(correction=0)


def turn_advantages(
    gains: Sequence[Sequence[float]], levels: Sequence[Sequence[float]], discount: float
) -> list[list[float]]:
    """Credit per turn, compared with the group's other turns that stood as near to the goal.

    `gains` holds what each turn of each episode brought (progress less penalties), `levels` the
    progress before it. A turn's return is the discounted sum of the gains from it on; it is centred
    on the mean of its level and scaled by the deviation over the group. GiGPO (arXiv 2505.10978)
    compares turns of one state in this way; few states are met twice by agents that write freely.
    """
    returns: list[list[float]] = []
    for episode in gains:
        total, later = 0.0, []
        for gain in reversed(episode):
            total = gain + discount * total
            later.append(total)
        returns.append(later[::-1])
    by_level: dict[float, list[float]] = {}
    for values, at in zip(returns, levels, strict=True):
        for value, level in zip(values, at, strict=True):
            by_level.setdefault(round(level, 3), []).append(value)
    means = {level: sum(values) / len(values) for level, values in by_level.items()}
    centred = [
        [value - means[round(level, 3)] for value, level in zip(values, at, strict=True)]
        for values, at in zip(returns, levels, strict=True)
    ]
    everything = [value for values in centred for value in values]
    deviation = (sum(value * value for value in everything) / len(everything)) ** 0.5
    if deviation <= TOLERANCE:
        return [[0.0] * len(values) for values in centred]
    return [[value / deviation for value in values] for values in centred]


def grpo_loss(
    logprobs: Tensor, batch: Batch, *, clip: tuple[float, float], num_tokens: int
) -> tuple[Tensor, dict[str, float]]:
    """Clipped policy gradient, summed over the policy's tokens and divided by `num_tokens`.

    The paper writes no clip and no token form; these are PPO's clip with a higher upper bound and
    DAPO's token sum. `num_tokens` counts the whole update and not this micro-batch, so that the
    gradient does not depend on the split.
    """
    ratio = torch.exp(logprobs - batch.logprobs)  # (B, T), 1 on the first pass
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    loss = -(gain * batch.mask).sum() / num_tokens
    # where the minimum took the clipped side: those tokens have no gradient
    cut = (clipped * batch.advantages < ratio * batch.advantages) & batch.mask.bool()
    drift = ((ratio - 1) - (logprobs - batch.logprobs)) * batch.mask  # k3, never negative
    return loss, {
        "policy/clip_fraction": cut.sum().item() / num_tokens,
        "policy/kl_to_sampler": drift.sum().item() / num_tokens,
    }
