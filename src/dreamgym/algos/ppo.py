"""PPO's advantages and its critic's loss (Eq. 2; arXiv 1707.06347, 1506.02438).

Time steps are what the policy did, whole turns or single tokens; what the world wrote between is
no step: no reward is lost on it, no value read from it, nothing decays across it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor, values: Tensor, *, discount: float, trace: float, last: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (N,) of one episode's time steps, Eq. 2 without an end to its sum.

    `last` is the value of the state after the last step: 0 where the world ended the episode, the
    critic's where we only stopped it.
    """
    if rewards.shape != values.shape or rewards.ndim != 1:
        raise ValueError(f"rewards {tuple(rewards.shape)} and values {tuple(values.shape)} differ")
    advantages = torch.zeros_like(values)
    ahead, after = values.new_zeros(()), values.new_tensor(last)
    for step in reversed(range(len(rewards))):
        surprise = rewards[step] + discount * after - values[step]
        ahead = surprise + discount * trace * ahead
        advantages[step] = ahead
        after = values[step]
    return advantages, advantages + values


def whiten(values: Tensor) -> Tensor:
    """Centre and scale (N,): fewer than two, or all alike, are only centred."""
    if values.numel() < 2:
        return values
    centred = values - values.mean()
    spread = centred.square().mean().sqrt()
    return centred / spread if bool(spread > 1e-6) else centred


def value_loss(
    values: Tensor, before: Tensor, returns: Tensor, *, clip: float, num_steps: float
) -> Tensor:
    """Half the squared error (N,), summed and divided by the `num_steps` of the whole update.

    With `clip` a value that has moved that far from `before` gains nothing by moving further.
    """
    error = (values - returns).square()
    if clip:
        near = before + (values - before).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return 0.5 * error.sum() / num_steps


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """1 for a critic that knows every return (N,), 0 for a constant; None where all are alike."""
    spread = returns.var(correction=0)
    if returns.numel() < 2 or bool(spread <= 1e-12):
        return None
    return float(1 - (returns - values).var(correction=0) / spread)
