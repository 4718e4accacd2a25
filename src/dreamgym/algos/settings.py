"""The settings of training, apart from its code: reading a recipe must not load torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dreamgym.settings import Settings

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]


class SFTConfig(Settings):
    num_tokens: Positive = 750_000
    """How long to train, in tokens read."""
    tokens_per_step: Positive = 800
    """Small steps: a new model forms its copying skill over steps rather than tokens."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """For the matrices; everything else has AdamW."""
    learning_rate: Rate = 3e-3
    """At its peak; it falls to 0 in a straight line."""
    warmup_steps: Count = 30
    """Steps until the peak."""
    first_share: Share = 0.6
    """Of the tokens: only what can be learnt exactly, before what is partly chance joins in."""
    save_every: Positive = 200_000
    """Tokens between checkpoints of a fit in progress."""


class DPOConfig(Settings):
    pairs: Count = 0
    """Of a solved and a failed episode of one task, learnt from after cloning; 0 is no DPO."""
    beta: Rate = 0.1
    """How dearly a departure from the reference is bought; small lets the policy go far."""
    learning_rate: Rate = 3e-4
    """At its start; it falls to 0 in a straight line."""
    epochs: Positive = 1
    """Passes over the pairs."""
    pairs_per_step: Positive = 8
    """Pairs an optimiser step learns from."""


class ObjectiveConfig(Settings):
    clip_low: Share = 0.2
    """How far a token's probability ratio may fall before its gain stops counting."""
    clip_high: Weight = 0.28
    """A higher upper bound lets rare tokens grow (DAPO's clip-higher)."""
    kl: Weight = 0.0
    """Weight of the divergence from the policy that training began with; 0 needs no copy of it."""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss` adds k3, weighted by the ratio; `reward` takes k1 off every token's reward."""
    entropy: Weight = 0.0
    """Weight of the bonus for the entropy of each token's distribution."""
    normalise: Literal["tokens", "constant"] = "tokens"
    """What the sum over tokens is divided by: their number in the whole update (DAPO), or
    `constant_tokens` for each episode (Dr. GRPO), so that long updates weigh more."""
    constant_tokens: Positive = 128
    """Tokens an episode of the policy's may write, for `normalise = "constant"`."""
    importance_cap: Weight = 0.0
    """Where the sampler was an older or a differently computed policy: tokens are weighted by how
    much likelier they are now, at most by this (truncated importance sampling; 2 is usual). Costs
    one more forward pass an update; 0 is off, since our sampler computes what the learner does."""


class GRPOConfig(Settings):
    scale: Literal["std", "none", "batch"] = "std"
    """Advantages are divided by the deviation of their group (Eq. 3), of the whole update, or by
    nothing (Dr. GRPO)."""
    leave_one_out: bool = False
    """The baseline is the mean of the other attempts (RLOO), not of all."""
    min_range: Weight = 1e-3
    """Returns of a group that lie closer together are equal: a judge's rounding is no signal."""
    step_weight: Weight = 0.0
    """Weight of GiGPO's step-level advantages, between turns that saw the same state; 0 is off."""
    step_discount: Share = 0.95
    """What a turn's return loses with every turn to the reward, where steps are compared."""


class PPOConfig(Settings):
    level: Literal["turn", "token"] = "turn"
    """What a time step of GAE is. Token by token a long thought is discounted; turn by turn not."""
    discount: Share = 0.95
    """γ, per time step. Below 1 what is put off is worth less, which anchors the critic's word on
    episodes that were cut."""
    trace: Share = 1.0
    """λ of GAE: 0 trusts the critic for what follows, 1 only what happened; 0.95 is usual. With
    `negative = 0` less than 1 pays failed attempts for what a young critic takes for progress."""
    bootstrap: bool = True
    """An episode that our turn limit cut is worth what the critic says of its last state. Only with
    a discount below 1: at 1 a critic that has seen no other failure may say 1 for ever."""
    whiten: bool = False
    """Centre and scale advantages over all time steps of an update, as is usual where `negative` is
    1; with 0 centring would pay whoever failed less than the others."""
    stop_kl: Weight = 0.02
    """An update's passes end when a step finds the policy this far from the one that sampled: every
    episode has advantages here, so that one update takes many steps; 0 never stops."""
    critic: Literal["separate", "shared"] = "separate"
    """A model of its own that starts from the policy's weights, or a head that reads the policy's
    hidden states."""
    critic_learning_rate: Rate = 1e-3
    """At its peak, also of the head."""
    critic_warmup: Count = 2
    """Updates in which only the critic learns: an ignorant one would teach the policy noise."""
    critic_epochs: Positive = 2
    """Passes of the critic over the episodes of one update."""
    value_clip: Weight = 0.2
    """How far a value may move in one update before that stops paying; 0 is no bound."""


class AdapterConfig(Settings):
    rank: Count = 0
    """LoRA's rank: only adapters are trained, by PEFT (extra `lora`); 0 trains all weights."""
    alpha: Positive = 32
    """LoRA's scale is alpha / rank."""
    modules: str = "all-linear"
    """What gets an adapter: PEFT's `all-linear`, or names divided by commas."""


class LearnerConfig(Settings):
    algorithm: Literal["grpo", "ppo"] = "grpo"
    """Advantages inside groups of attempts, or from a learnt value function."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """For the matrices; everything else has AdamW."""
    learning_rate: Rate = 1e-3
    """At its peak; it falls to 0 in a straight line over the run's updates."""
    warmup_steps: Count = 20
    """Optimiser steps until the peak: an optimiser's first steps are long whatever the gradient."""
    epochs: Positive = 2
    """Passes over the episodes of one update."""
    minibatch_tokens: Positive = 800
    """Tokens read per optimiser step: a tiny model learns over steps rather than tokens."""
    micro_tokens: Positive = 1_024
    """Padded tokens per forward pass; changes memory, not the gradient."""
    checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: for large models."""
    reward: Literal["sum", "outcome"] = "sum"
    """What an episode's return is: all that its turns were paid, or what the last one was."""
    negative: Share = 0.0
    """Weight of negative advantages; 1 is the algorithm as published. With 0 failed attempts only
    set the baseline: a tiny policy's are mostly one refused action again and again, and pushing
    down its words takes them from the actions that succeed."""
    credit_refused: bool = False
    """Whether actions that the world refused share in the credit of an attempt that succeeded."""
    demonstrations: Count = 75
    """Of the cloned demonstrations, how many each update imitates again, drawn by lot (as in DAPG,
    arXiv 1709.10087): some dozen solved dreams alone teach their own tasks and unteach the rest."""
    objective: ObjectiveConfig = ObjectiveConfig()
    grpo: GRPOConfig = GRPOConfig()
    ppo: PPOConfig = PPOConfig()
    adapter: AdapterConfig = AdapterConfig()
