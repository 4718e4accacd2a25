"""What the tests of the language engine share: small models of every supported family."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dreamgym.llm.tiny import train_tokenizer

TEXTS = (
    "You are in the middle of a room. You see a shelf 1, a shelf 12, and a drawer 3.",
    "go to shelf 1",
    "You arrive at shelf 1. On the shelf 1, you see a mug 2.",
    "take mug 2 from shelf 1",
    "Nothing happens.",
)
T = TypeVar("T")
FAMILIES = ("llama", "qwen2", "qwen3")
_KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12}),  # not width / heads
}


def fresh_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS * 4, 320)


@cache
def small_tokenizer() -> PreTrainedTokenizerFast:
    return fresh_tokenizer()


def small_model(family: str = "llama", *, context: int = 256, **changes: Any) -> PreTrainedModel:
    """Grouped heads, and every weight, bias and norm away from its neutral start."""
    kind, model_class, more = _KINDS[family]
    config = kind(
        vocab_size=len(small_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=family == "qwen2",
        **more | changes,
    )
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            start = 1.0 if "norm" in name else 0.0
            parameter.copy_(start + 0.25 * torch.randn_like(parameter))
    return model


def reference_logprobs(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """Next-token log-probabilities (T, V) by transformers, without any cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].log_softmax(-1)


def run(work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
    """A coroutine's result; an engine that hangs fails the test instead of stopping all tests."""
    return asyncio.run(asyncio.wait_for(work, timeout_s))
