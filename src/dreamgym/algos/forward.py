"""The learner's forward pass over any Hugging Face causal language model, with adapters or without.

Logits are made only where the policy wrote, and in chunks: over a large vocabulary they, not the
weights, are what fills memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from dreamgym.algos.batch import Batch

CHUNK_LOGITS = 1 << 22
"""Logits held at once (16 MB of them); more are made again in the backward pass."""


def hidden_states(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The last hidden states (B, T, H). On a GPU products are taken in bfloat16, and weights and
    everything that sums them stay in float32."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    return hidden.to(model.dtype)


def token_logprobs(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Log-probabilities (B, T) of the masked tokens, 0 elsewhere."""
    return token_stats(model, hidden_states(model, batch.ids), batch, temperature)[0]


def token_stats(
    model: PreTrainedModel,
    hidden: Tensor,
    batch: Batch,
    temperature: float = 1.0,
    *,
    entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and, where asked, entropies (B, T) of the masked tokens, 0 elsewhere."""
    wanted = batch.mask[:, 1:].bool()
    head = model.get_output_embeddings()  # called as a module: an adapter on it has its part
    rows = hidden[:, :-1][wanted]
    picked, spread = _chunked(head, rows, batch.ids[:, 1:][wanted], temperature, entropy)
    logprobs, entropies = torch.zeros_like(batch.logprobs), torch.zeros_like(batch.logprobs)
    logprobs[:, 1:][wanted] = picked
    entropies[:, 1:][wanted] = spread
    return logprobs, entropies


def _chunked(
    head: torch.nn.Linear, rows: Tensor, ids: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    size = max(1, CHUNK_LOGITS // head.weight.shape[0])

    def stats(part: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        every = (head(part).float() / temperature).log_softmax(dim=-1)
        picked = every.gather(1, chosen[:, None])[:, 0]
        return picked, -(every.exp() * every).sum(-1) if entropy else torch.zeros_like(picked)

    work: Callable[..., tuple[Tensor, Tensor]] = stats
    if len(rows) > size and torch.is_grad_enabled():

        def work(part: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
            return checkpoint(stats, part, chosen, use_reentrant=False)

    parts = [work(*pair) for pair in zip(rows.split(size), ids.split(size), strict=True)]
    picked, spread = zip(*parts, strict=True)
    return torch.cat(picked), torch.cat(spread)
