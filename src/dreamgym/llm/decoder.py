"""The forward pass of Llama, Qwen2 and Qwen3 over a fixed KV cache: one slot per session.

Written out because generation in `transformers` computes a whole history again at every turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

SUPPORTED = ("llama", "qwen2", "qwen3")
_PART = 8
"""Rows that attend together on a CPU. Episodes are of any length: a batch that reads as far back as
its longest row reads twice what it needs, and more than a processor's cache holds."""
_AT_ONCE = 1024
"""Tokens that go through the layers together on a CPU: more push each other out of its cache."""
_COPIED = 2
"""What a key costs that is copied before it is read, against one that is read where it stands."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One block's weights; query, key and value as one matrix, and so gate and up."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """A snapshot of a model's weights and the keys and values of up to `slots` sequences."""

    def __init__(self, model: PreTrainedModel, *, slots: int, context: int) -> None:
        config = model.config
        if config.model_type not in SUPPORTED:
            raise ValueError(f"model type {config.model_type!r} is none of {', '.join(SUPPORTED)}")
        _refuse_variants(model)
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.slots, self.context = slots, context
        body, head = model.get_decoder(), model.get_output_embeddings()
        self.embedding = _weight(model.get_input_embeddings())
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.layers = [_snapshot(block, self.head_dim) for block in body.layers]
        self.norm = _weight(body.norm)
        tied = head.weight is model.get_input_embeddings().weight and not _adapters(head)
        self.head = self.embedding if tied else _weight(head)
        positions = torch.arange(context, device=self.device)[None]
        with torch.no_grad():  # the model's own rotary module: it knows every scaling there is
            cos, sin = body.rotary_emb(self.embedding[None, :1], positions)
        half = self.head_dim // 2  # the second half of the angles repeats the first
        self.turn = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
        shape = (len(self.layers), 2, slots, self.kv_heads, context, self.head_dim)
        self.cache = _zeros(shape, self.device, self.dtype)

    @torch.inference_mode()
    def feed(
        self, rows: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        """Append `rows[i]` to slot `slots[i]` at `starts[i]`; logits (B, V) at each row's end."""
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        longest = len(rows[by_length[-1]])
        size = max(1, _AT_ONCE // longest) if self.device.type == "cpu" else len(rows)
        if longest == 1 or size >= len(rows):
            return self._feed(rows, slots, starts)
        logits = torch.empty(len(rows), len(self.head), device=self.device)
        for first in range(0, len(rows), size):
            part = by_length[first : first + size]
            logits[part] = self._feed(
                [rows[i] for i in part], [slots[i] for i in part], [starts[i] for i in part]
            )
        return logits

    def _feed(
        self, rows: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        ends = [start + len(row) for start, row in zip(starts, rows, strict=True)]
        order, runs = self._order(slots, ends, max(map(len, rows)))
        rows, slots = [rows[i] for i in order], [slots[i] for i in order]
        starts, ends = [starts[i] for i in order], [ends[i] for i in order]
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        width = int(lengths.max())
        padded = [[*row, *[0] * (width - len(row))] for row in rows]
        ids = torch.tensor(padded, device=self.device)  # (B, T)
        slot = torch.tensor(slots, device=self.device)
        start = torch.tensor(starts, device=self.device)
        position = start[:, None] + torch.arange(width, device=self.device)  # (B, T)
        # padding is written past the row's end, where later tokens overwrite it before it is seen
        position = position.clamp_max(self.context - 1)
        parts = self._parts(slot, position, ends, runs)

        x = self.embedding[ids].flatten(0, 1)  # (B * T, H)
        turn = self.turn[position][:, :, None]  # (B, T, 1, D / 2)
        both = torch.arange(2, device=self.device)[:, None, None]
        written = (both, slot[None, :, None], slice(None), position[None])  # keys, then values
        for layer, cache in zip(self.layers, self.cache, strict=True):
            seen = self._attend(layer, cache, x, (turn, written, parts))
            x = torch.addmm(x, seen, layer.out.T)
            h = self._rms(x, layer.mlp_norm)
            gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.T)
        each = torch.arange(len(rows), device=self.device)
        last = x.view(len(rows), width, -1)[each, lengths - 1]
        logits = F.linear(self._rms(last, self.norm), self.head).float()
        return torch.empty_like(logits).index_copy_(
            0, torch.tensor(order, device=self.device), logits
        )

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` keys and values of another."""
        self.cache[:, :, target, :, :length] = self.cache[:, :, source, :, :length]

    def _order(
        self, slots: Sequence[int], ends: Sequence[int], width: int
    ) -> tuple[list[int], list[int]]:
        """Which row comes when, and how many in a row stand in each run of neighbouring slots.

        Where one token a row is fed and most of a run's slots take part, their keys are read where
        they stand. All other rows follow in order of their ends.
        """
        runs: dict[int, list[int]] = {}
        if width == 1 and self.device.type == "cpu":
            for i in sorted(range(len(slots)), key=lambda i: slots[i]):
                runs.setdefault(slots[i] // _PART, []).append(i)
        whole = [
            run
            for run in runs.values()
            if _PART * max(ends[i] for i in run) <= _COPIED * sum(ends[i] for i in run)
        ]
        placed = [i for run in whole for i in run]
        rest = sorted(set(range(len(slots))).difference(placed), key=lambda i: (ends[i], i))
        return placed + rest, [len(run) for run in whole]

    def _parts(
        self, slot: Tensor, position: Tensor, ends: list[int], runs: list[int]
    ) -> list[_Part]:
        """Runs of slots as they stand, then parts whose rows reach about as far back."""
        parts = []
        first = 0
        for size in runs:
            rows = slice(first, first + size)
            first += size
            begin = int(slot[rows.start]) // _PART * _PART
            stand = slice(begin, min(begin + _PART, self.slots))
            inside = slot[rows] - begin
            at = position.new_zeros(stand.stop - begin, 1)  # idle slots read one key, for nothing
            at[inside] = position[rows]
            reach = max(ends[rows])
            parts.append(_Part(rows, stand, inside, reach, self._bias(at, reach)))
        size = _PART if self.device.type == "cpu" else len(ends)
        for start in range(first, len(ends), size):
            rows = slice(start, start + size)
            reach = ends[rows][-1]
            bias = self._bias(position[rows], reach)
            parts.append(_Part(rows, slot[rows], None, reach, bias))
        return parts

    def _bias(self, position: Tensor, reach: int) -> Tensor | None:
        """Shuts out what lies behind each position (b, T): (b, 1, heads of a group * T, reach)."""
        seen = torch.arange(reach, device=self.device) <= position[..., None]
        if bool(seen.all()):
            return None
        bias = torch.zeros(seen.shape, device=self.device, dtype=self.dtype)
        bias = bias.masked_fill_(~seen, float("-inf"))[:, None]
        # the heads of a group stand in the time axis, and read their keys once
        return bias.repeat(1, 1, self.heads // self.kv_heads, 1)

    def _attend(self, layer: _Layer, cache: Tensor, x: Tensor, where: tuple) -> Tensor:
        """What every head saw (B * T, heads * D); the keys and values of x go into the cache."""
        turn, written, parts = where
        rows, width = turn.shape[:2]
        qkv = F.linear(self._rms(x, layer.norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(rows, width, self.heads + 2 * self.kv_heads, self.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k, _ = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
            q.copy_(self._rms(q, layer.q_norm))
            k.copy_(self._rms(k, layer.k_norm))
        turned = _rotate(qkv[:, :, : self.heads + self.kv_heads], turn)
        keys_values = qkv[:, :, self.heads :].view(rows, width, 2, self.kv_heads, self.head_dim)
        cache[written] = keys_values.permute(2, 0, 1, 3, 4)
        q = turned[:, :, : self.heads].transpose(1, 2)
        if self.dtype is not torch.float32:  # in which the weights hold the scale
            q = q * self.head_dim**-0.5
        q = q.reshape(rows, self.kv_heads, -1, self.head_dim)
        y = torch.empty_like(q)
        for part in parts:
            keys, values = (part.of(c) for c in cache)
            asked = q[part.rows]
            if part.inside is not None:
                asked = q.new_zeros(len(keys), *q.shape[1:]).index_copy_(0, part.inside, asked)
            scores = asked @ keys.transpose(-1, -2)
            scores = (scores if part.bias is None else scores.add_(part.bias)).softmax(dim=-1)
            if part.inside is None:
                torch.matmul(scores, values, out=y[part.rows])
            else:
                torch.index_select(scores @ values, 0, part.inside, out=y[part.rows])
        y = y.view(rows, self.heads, width, self.head_dim)
        return y.transpose(1, 2).reshape(rows * width, -1)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a batch: few enough that their keys and values stay in the processor's cache."""

    rows: slice
    slots: slice | Tensor  # a run of neighbours, or any
    inside: Tensor | None  # where in the run the rows stand
    reach: int
    bias: Tensor | None  # what must not be seen, where there is anything

    def of(self, cache: Tensor) -> Tensor:
        """Keys or values (b, kv heads, reach, D): as they stand, or a copy."""
        if isinstance(self.slots, slice):
            return cache[self.slots, :, : self.reach]
        return cache[:, :, : self.reach].index_select(0, self.slots)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written to: most contexts are never filled."""
    if device.type == "cpu" and dtype is torch.float32:
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))
    return torch.zeros(shape, device=device, dtype=dtype)


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn neighbouring pairs of coordinates (B, T, heads, D), in place where precision allows."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    if x.dtype is torch.float32:
        pairs.mul_(turn)
        return x
    x.copy_(torch.view_as_real(pairs * turn).flatten(-2))
    return x


def _neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of a projection, or a norm, in an order that puts the coordinates which are turned
    together side by side: the products of queries and keys stay as they are."""
    heads = weight.unflatten(0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).flatten(0, 2).contiguous()


def _refuse_variants(model: PreTrainedModel) -> None:
    """What this forward pass would compute wrongly must not begin."""
    config = model.config.to_dict()
    if config["hidden_act"] != "silu":
        raise ValueError(f"activation {config['hidden_act']!r} is not silu")
    if "sliding_attention" in (config.get("layer_types") or ()):  # Llama's config has no such key
        raise ValueError("sliding-window attention is not computed here: every layer sees it all")
    unread = ("o_proj.bias", "gate_proj.bias", "up_proj.bias", "down_proj.bias")
    names = [name.replace(".base_layer", "") for name, _ in model.named_parameters()]
    if biased := [name for name in names if name.endswith(unread)]:
        raise ValueError(f"{biased[0]} would be ignored: only query, key and value have a bias")


def _adapters(module: Any) -> list[str]:
    """The names of PEFT's adapters that have a part in what a layer computes."""
    if not hasattr(module, "get_delta_weight") or module.disable_adapters:
        return []
    return [name for name in module.active_adapters if name in module.lora_A]


def _weight(module: Any) -> Tensor:
    """A copy of a layer's weight, with its adapters added in."""
    weight = module.weight.detach().clone()
    for name in _adapters(module):
        weight += module.get_delta_weight(name).detach()
    return weight


def _snapshot(block: Any, size: int) -> _Layer:
    """In float32 queries come scaled, so that their products with keys need not be: half precision
    would round the weights."""
    attention, mlp = block.self_attn, block.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    has_norms = hasattr(attention, "q_norm")  # Qwen3

    scale = size**-0.5 if attention.q_proj.weight.dtype is torch.float32 else 1.0

    def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scaled = q if has_norms else q * scale
        return torch.cat([_neighbours(scaled, size), _neighbours(k, size), v])

    biased = attention.q_proj.bias is not None
    return _Layer(
        norm=_weight(block.input_layernorm),
        qkv=joined(*map(_weight, projections)),
        qkv_bias=joined(*(p.bias.detach() for p in projections)) if biased else None,
        q_norm=_neighbours(_weight(attention.q_norm), size) * scale if has_norms else None,
        k_norm=_neighbours(_weight(attention.k_norm), size) if has_norms else None,
        out=_weight(attention.o_proj),
        mlp_norm=_weight(block.post_attention_layernorm),
        gate_up=torch.cat([_weight(mlp.gate_proj), _weight(mlp.up_proj)]),
        down=_weight(mlp.down_proj),
    )
