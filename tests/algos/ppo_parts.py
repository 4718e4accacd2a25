"""What the tests of PPO share: settings as published, critics whose values are known."""

from __future__ import annotations

from typing import Any

import torch
from episodes import (
    small_model,
    small_tokenizer,
)

from dreamgym.algos.critic import Critic
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig, PPOConfig

PUBLISHED = {"algorithm": "ppo", "negative": 1.0, "credit_refused": True}


USUAL = {"discount": 1.0, "trace": 0.95, "whiten": True, "stop_kl": 0.0}


def config(**ppo: Any) -> LearnerConfig:
    return LearnerConfig.model_validate(PUBLISHED | {"ppo": USUAL | ppo})


def learner(**changes: Any) -> Learner:
    plain = {"optimizer": "adamw", "learning_rate": 1e-3, "warmup_steps": 0, "demonstrations": 0}
    changes["ppo"] = USUAL | changes.get("ppo", {})
    both = LearnerConfig.model_validate(PUBLISHED | plain | changes)
    return Learner(small_model(), small_tokenizer(), both)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def constant_critic(value: float) -> Critic:
    critic = Critic(small_model(), PPOConfig(critic="shared", discount=1.0), muon=False)
    with torch.no_grad():
        critic.head.bias.fill_(value)
    return critic


def by_position(critic: Critic) -> Critic:
    """Values that tell which hidden state they were read from: a hundredth of its position."""

    def values(hidden: torch.Tensor, rows: Any) -> list[torch.Tensor]:
        return [torch.tensor([(at - 1) / 100 for at in row.places]) for row in rows]

    critic.values = values  # type: ignore[method-assign]
    return critic
