"""A fresh model can copy before it has learnt anything."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from dreamgym.llm.copying import write_copying
from dreamgym.llm.tiny import make_llama

LENGTH = 60


def share_copied(model: LlamaForCausalLM) -> float:
    """Of random sequences that are said twice: how much of the second time is foreseen."""
    said = torch.randint(5, 500, (8, LENGTH), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([said, said], dim=1)
    with torch.no_grad():
        foreseen = model(input_ids=ids).logits[:, LENGTH:-1].argmax(dim=-1)
    return (foreseen == said[:, 1:]).float().mean().item()


@pytest.mark.parametrize(("width", "heads", "kv_heads"), [(128, 4, 4), (128, 4, 2), (64, 2, 2)])
def test_a_fresh_model_copies(width: int, heads: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    model = make_llama(500, width=width, layers=3, heads=heads, kv_heads=kv_heads, context=256)
    assert share_copied(model) < 0.02
    write_copying(model)
    assert share_copied(model) > 0.4


def test_copying_needs_two_blocks() -> None:
    with pytest.raises(ValueError, match="two blocks"):
        write_copying(make_llama(100, width=64, layers=1, heads=4))
