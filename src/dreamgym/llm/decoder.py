"""The forward pass of Llama, Qwen2 and Qwen3 over a fixed KV cache: one slot per session.

Written out because generation in `transformers` computes a whole history again at every turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

SUPPORTED = ("llama", "qwen2", "qwen3")
_PART = 8
"""Rows that attend together on a CPU. Episodes are of any length: a batch that reads as far back as
its longest row reads twice what it needs, and more than a processor's cache holds."""
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
        self.layers = [_snapshot(block) for block in body.layers]
        self.norm = _weight(body.norm)
        tied = head.weight is model.get_input_embeddings().weight and not _adapters(head)
        self.head = self.embedding if tied else _weight(head)
        positions = torch.arange(context, device=self.device)[None]
        with torch.no_grad():  # the model's own rotary module: it knows every scaling there is
            cos, sin = body.rotary_emb(self.embedding[None, :1], positions)
        self.cos, self.sin = cos[0].to(self.dtype), sin[0].to(self.dtype)  # (context, head_dim)
        shape = (len(self.layers), 2, slots, self.kv_heads, context, self.head_dim)
        self.cache = torch.zeros(shape, device=self.device, dtype=self.dtype)

    @torch.inference_mode()
    def feed(
        self, rows: Sequence[Sequence[int]], slots: Sequence[int], starts: Sequence[int]
    ) -> Tensor:
        """Append `rows[i]` to slot `slots[i]` at `starts[i]`; logits (B, V) at each row's end."""
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

        x = self.embedding[ids]
        cos, sin = self.cos[position][:, None], self.sin[position][:, None]  # (B, 1, T, D)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            x = x + self._attend(layer, cache, x, (cos, sin), (slot, position, parts))
            h = self._rms(x, layer.mlp_norm)
            gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        last = x[torch.arange(len(rows), device=self.device), lengths - 1]
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

    def _bias(self, position: Tensor, reach: int) -> Tensor:
        """Shuts out what lies behind each position (b, T): (b, 1, heads of a group * T, reach)."""
        seen = torch.arange(reach, device=self.device) <= position[..., None]
        bias = torch.zeros(seen.shape, device=self.device, dtype=self.dtype)
        bias = bias.masked_fill_(~seen, float("-inf"))[:, None]
        # the heads of a group stand in the time axis, and read their keys once
        return bias.repeat(1, 1, self.heads // self.kv_heads, 1)

    def _attend(self, layer: _Layer, cache: Tensor, x: Tensor, rope: tuple, where: tuple) -> Tensor:
        slot, position, parts = where
        rows, width, _ = x.shape
        qkv = F.linear(self._rms(x, layer.norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(rows, width, self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms(q, layer.q_norm), self._rms(k, layer.k_norm)
        q, k = _rotate(q.transpose(1, 2), *rope), _rotate(k.transpose(1, 2), *rope)
        index = (slot[:, None], slice(None), position)
        cache[0][index] = k.transpose(1, 2)
        cache[1][index] = v
        q = (q * self.head_dim**-0.5).reshape(rows, self.kv_heads, -1, self.head_dim)
        y = torch.empty_like(q)
        for part in parts:
            keys, values = (part.of(c) for c in cache)
            asked = q[part.rows]
            if part.inside is not None:
                asked = q.new_zeros(len(keys), *q.shape[1:]).index_copy_(0, part.inside, asked)
            scores = (asked @ keys.transpose(-1, -2)).add_(part.bias).softmax(dim=-1)
            if part.inside is None:
                torch.matmul(scores, values, out=y[part.rows])
            else:
                torch.index_select(scores @ values, 0, part.inside, out=y[part.rows])
        y = y.view(rows, self.heads, width, self.head_dim)
        return F.linear(y.transpose(1, 2).reshape(rows, width, -1), layer.out)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a batch: few enough that their keys and values stay in the processor's cache."""

    rows: slice
    slots: slice | Tensor  # a run of neighbours, or any
    inside: Tensor | None  # where in the run the rows stand
    reach: int
    bias: Tensor

    def of(self, cache: Tensor) -> Tensor:
        """Keys or values (b, kv heads, reach, D): as they stand, or a copy."""
        if isinstance(self.slots, slice):
            return cache[self.slots, :, : self.reach]
        return cache[:, :, : self.reach].index_select(0, self.slots)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


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


def _snapshot(block: Any) -> _Layer:
    attention, mlp = block.self_attn, block.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [p.bias for p in projections if p.bias is not None]
    has_norms = hasattr(attention, "q_norm")  # Qwen3
    return _Layer(
        norm=_weight(block.input_layernorm),
        qkv=torch.cat([_weight(p) for p in projections]),
        qkv_bias=torch.cat([b.detach() for b in biases]) if biases else None,
        q_norm=_weight(attention.q_norm) if has_norms else None,
        k_norm=_weight(attention.k_norm) if has_norms else None,
        out=_weight(attention.o_proj),
        mlp_norm=_weight(block.post_attention_layernorm),
        gate_up=torch.cat([_weight(mlp.gate_proj), _weight(mlp.up_proj)]),
        down=_weight(mlp.down_proj),
    )
