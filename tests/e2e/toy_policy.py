"""A tiny Llama that has seen a clumsy player of the toy world, and how well it plays itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.agents.prompt import acting_conversation
from dreamgym.algos.batch import conversation_row
from dreamgym.algos.settings import SFTConfig
from dreamgym.algos.sft import fit
from dreamgym.envs.toy import THINGS, clumsy_episode, make_toy_env, toy_tasks
from dreamgym.evaluate import evaluate
from dreamgym.llm.base import LLM
from dreamgym.llm.encoding import Encoder
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.rollout import RolloutConfig
from dreamgym.types import Task


@cache
def toy_tokenizer() -> PreTrainedTokenizerFast:
    rng = random.Random(0)
    episodes = [clumsy_episode(task, rng) for task in toy_tasks(200, seed=7)]
    texts = [m.text for episode in episodes for m in acting_conversation(episode)]
    return train_tokenizer([*texts, *(f"take {thing}" for thing in THINGS)], 400)


def clumsy_policy(seed: int, num_tokens: int = 200_000) -> PreTrainedModel:
    """Behaviour cloning of clumsy episodes: it knows the grammar, and wins by luck only."""
    torch.manual_seed(seed)
    tokenizer = toy_tokenizer()
    model = make_llama(len(tokenizer), width=48, layers=2, heads=4, context=160)
    rng, encoder = random.Random(seed), Encoder(tokenizer)
    rows = [
        conversation_row(acting_conversation(clumsy_episode(task, rng)), encoder)
        for task in toy_tasks(48, seed=100 + seed)
    ]
    config = SFTConfig(num_tokens=num_tokens, tokens_per_step=600, warmup_steps=5)
    fit(model, rows, config, seed=seed)
    return model


def real_success(policy: LLM, tasks: Sequence[Task]) -> float:
    """The share of tasks solved in the real toy world, sampled as in training."""
    config = RolloutConfig(max_turns=6, max_tokens=8)
    result = asyncio.run(evaluate(policy, tasks, make_toy_env, config, world="real", seed=9))
    assert result.success.total == len(tasks)
    return result.success.value
