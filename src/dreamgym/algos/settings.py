"""The settings of training, apart from its code: reading a recipe must not load torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dreamgym.settings import Settings

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


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


class LearnerConfig(Settings):
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
    negative: Share = 0.0
    """Weight of negative advantages; 1 is GRPO as published. With 0 failed attempts only set the
    baseline: a tiny policy's are mostly one refused action again and again, and pushing down its
    words takes them from the actions that succeed."""
    credit_refused: bool = False
    """Whether actions that the world refused share in the credit of an attempt that succeeded."""
    demonstrations: Count = 75
    """Of the cloned demonstrations, how many each update imitates again, drawn by lot (as in DAPG,
    arXiv 1709.10087): some dozen solved dreams alone teach their own tasks and unteach the rest."""
    clip_low: Share = 0.2
    """How far a token's probability ratio may fall before its gain stops counting."""
    clip_high: Annotated[float, Field(ge=0)] = 0.28
    """A higher upper bound lets rare tokens grow (DAPO's clip-higher)."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the divergence from the policy that training began with; 0 needs no copy of it."""
    micro_tokens: Positive = 8_192
    """Padded tokens per forward pass; changes memory, not the gradient."""
