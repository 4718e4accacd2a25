"""What a policy's update minimises, whoever gave the advantages: PPO's clipped objective, and what
may be added to it. Pure functions of (B, T) log-probabilities and a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dreamgym.algos.batch import Batch

Metrics = dict[str, float]


def policy_loss(
    logprobs: Tensor, batch: Batch, *, clip: tuple[float, float], num_tokens: float
) -> tuple[Tensor, Metrics]:
    """Clipped policy gradient, summed over the policy's tokens and divided by `num_tokens`.

    min(ρA, clip(ρ)A) of PPO (arXiv 1707.06347) with a higher upper bound and DAPO's token sum
    (arXiv 2503.14476); the paper writes neither a clip nor a token form. `num_tokens` counts the
    whole update and not this micro-batch, so that the gradient does not depend on the split.
    """
    ratio = torch.exp(logprobs - batch.logprobs)  # (B, T), 1 on the first pass
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    loss = -(gain * batch.weights * batch.mask).sum() / num_tokens
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


def importance_weights(now: Tensor, sampled: Tensor, cap: float) -> Tensor:
    """min(π_now / π_sampler, cap): truncated importance sampling for a sampler that was another.

    An average over stale or differently computed samples is biased; the weight takes that out, and
    the cap keeps one rare token from ruling an update (Ionides 2008).
    """
    if cap <= 0:
        raise ValueError(f"a cap of {cap} would take every token out")
    return torch.exp(now - sampled).clamp_max(cap)


def entropy_bonus(entropy: Tensor, batch: Batch, num_tokens: float) -> Tensor:
    """The entropy (B, T) of the distributions that the policy's tokens were drawn from."""
    return (entropy * batch.mask).sum() / num_tokens
