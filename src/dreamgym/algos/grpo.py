"""GRPO: PPO's clipped objective, advantages taken inside each group (Eq. 3; arXiv 2402.03300)."""

from __future__ import annotations

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


def grpo_loss(
    logprobs: Tensor, batch: Batch, *, clip: tuple[float, float], num_tokens: float
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


def reference_kl(logprobs: Tensor, reference: Tensor, batch: Batch, num_tokens: float) -> Tensor:
    """KL(policy || reference) over the policy's tokens, divided by `num_tokens`.

    Each token's k3 is weighted by its ratio to the sampler: without the weight its gradient is that
    of the other divergence (engines disagree here; TRL 4967).
    """
    ratio = torch.exp(logprobs - batch.logprobs)
    gap = reference - logprobs
    return (ratio * (torch.exp(gap) - gap - 1) * batch.mask).sum() / num_tokens
