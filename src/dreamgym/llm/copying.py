"""Copying, written into a fresh model's weights instead of waited for.

A model learns late to copy what stands earlier in its context, and until then a dream invents. The
circuit that copies is known (an induction head, Olsson et al. 2022: one head tells every position
which token stood before it, a later head finds where the present token stood and repeats what came
next), so a new model is given it; training keeps, sharpens or overwrites it as it likes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

_SIZE = 0.05  # of an embedding's coordinates
_FAST_PAIRS = 6  # rotary pairs that tell neighbouring positions apart
_SHARPNESS = 8.0  # logits between the previous position and its neighbours
_MATCH = 20.0  # logits of a token that is the same
_REPEAT = 3.0  # how much louder the copied token is than the present one
_COPYING_HEADS = 2  # of the second block; the others start as usual


@torch.no_grad()
def write_copying(model: LlamaForCausalLM, *, seed: int = 0) -> None:
    """Give a fresh model of two blocks or more an induction head, in place.

    Coordinate 0 of the residual stream holds a constant, the last half a head's width what stood
    before, the rest the token itself. Raises ValueError where there are too few blocks.
    """
    config = model.config
    if config.num_hidden_layers < 2:
        raise ValueError("copying takes two blocks: one looks back, the next looks for a match")
    width, heads = config.hidden_size, config.num_attention_heads
    size = width // heads
    pairs = size // 2
    before, token = slice(width - pairs, width), slice(1, width - pairs)
    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    embedding.copy_(torch.randn(embedding.shape, generator=generator) * _SIZE)
    embedding[:, 0], embedding[:, before] = _SIZE, 0.0
    num_token = width - pairs - 1
    normed = math.sqrt(width / (num_token + 1))  # a coordinate's size after the first norm
    directions = torch.randn(num_token, num_token, generator=generator)
    directions = torch.linalg.qr(directions)[0]  # rows are orthonormal
    name = directions[:pairs]  # a token's name, short enough to be looked for

    first = model.model.layers[0].self_attn
    ask, tell = _previous_position(model, pairs)
    _set(first.q_proj.weight, slice(0, size), slice(0, 1), ask[:, None] / normed)
    _set(first.k_proj.weight, slice(0, size), slice(0, 1), tell[:, None] / normed)
    _set(first.v_proj.weight, slice(0, size), token, name)
    _set(first.o_proj.weight.T, slice(0, size), before, torch.eye(pairs) * _SIZE / normed)

    second = model.model.layers[1].self_attn
    # only the slower half of the rotary pairs still agree over hundreds of tokens
    slow = [i for i in range(size) if i % pairs >= pairs - pairs // 2]
    loud = math.sqrt(_MATCH * math.sqrt(size) / pairs) / normed
    group = heads // config.num_key_value_heads
    for head in range(min(_COPYING_HEADS, config.num_key_value_heads)):
        query = slice(head * group * size, (head * group + 1) * size)
        key = slice(head * size, (head + 1) * size)
        spread = torch.zeros(size, pairs)
        spread[slow] = torch.eye(pairs)[: len(slow)]
        _set(second.q_proj.weight, query, token, spread @ name * loud)
        _set(second.k_proj.weight, key, before, spread * loud)
        part = directions[key]
        _set(second.v_proj.weight, key, token, part)
        _set(second.o_proj.weight.T, query, token, part * _REPEAT * _SIZE)


def _previous_position(model: LlamaForCausalLM, pairs: int) -> tuple[Tensor, Tensor]:
    """A query and a key (head size,) whose rotated product is largest one position back."""
    theta = model.config.rope_parameters["rope_theta"]
    angles = theta ** (-torch.arange(min(_FAST_PAIRS, pairs)) / pairs)
    gap = float((1 - angles.cos()).sum())
    loud = math.sqrt(_SHARPNESS * math.sqrt(2 * pairs) / gap)
    ask, tell = torch.zeros(2 * pairs), torch.zeros(2 * pairs)
    ask[: len(angles)] = loud
    tell[: len(angles)] = loud * angles.cos()
    tell[pairs : pairs + len(angles)] = loud * angles.sin()
    return ask, tell


def _set(weight: Tensor, rows: slice, columns: slice, block: Tensor) -> None:
    """Put a block at the head of some rows of a weight, which are zero elsewhere."""
    weight[rows] = 0.0
    weight[rows.start : rows.start + len(block), columns] = block
