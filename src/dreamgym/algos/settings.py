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
    num_tokens: Positive = 600_000
    """How long to train, in tokens read."""
    tokens_per_step: Positive = 800
    """Small steps: a new model forms its copying skill over steps rather than tokens."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """For the matrices; everything else has AdamW."""
    learning_rate: Rate = 3e-3
    """At its peak; it falls to 0 in a straight line."""
    warmup_steps: Count = 30
    """Steps until the peak."""
    first_share: Share = 0.65
    """Of the tokens: only what can be learnt exactly, before what is partly chance joins in."""
    save_every: Positive = 200_000
    """Tokens between checkpoints of a fit in progress."""


class LearnerConfig(Settings):
    learning_rate: Rate = 1.5e-4
    """Of AdamW, after the warm-up."""
    warmup_steps: Count = 4
    """AdamW's first steps are as long as its rate whatever the gradient: they begin small."""
    epochs: Positive = 1
    """Passes over the episodes of one update."""
    minibatches: Positive = 4
    """Optimiser steps per pass."""
    clip_low: Share = 0.2
    """How far a token's probability ratio may fall before its gain stops counting."""
    clip_high: Annotated[float, Field(ge=0)] = 0.28
    """A higher upper bound lets rare tokens grow (DAPO's clip-higher)."""
    kl: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the divergence from the policy that training began with; 0 needs no copy of it.
    It slows the loss of skill that small batches of tasks cause; it does not end it."""
    embeddings: bool = False
    """Train the token embeddings too. AdamW moves every row of them by the same step, however
    little an update has to say of it."""
    micro_tokens: Positive = 8_192
    """Padded tokens per forward pass; changes memory, not the gradient."""
