"""What the decoder computes on its own, and what it refuses because it would compute it wrongly."""

from __future__ import annotations

import pytest
import torch
from small_models import FAMILIES, reference_logprobs, small_model
from transformers import GPT2Config, GPT2LMHeadModel

from dreamgym.llm.decoder import Decoder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", [1, 3, 21])  # 21: in several parts, each with its own reach
def test_pieces_of_any_length_give_the_logits_of_the_whole(family: str, number: int) -> None:
    model = small_model(family, context=64)
    decoder = Decoder(model, slots=24, context=64)
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.vocab_size
    slots = torch.randperm(24, generator=generator)[:number].tolist()
    rows = [torch.randint(vocabulary, (60,), generator=generator).tolist() for _ in slots]
    # a long row may stand before a short one, and is fed in other pieces
    cuts = [[0, 7 + 11 * n % 31, 8 + 11 * n % 31, 40 + 7 * n % 20] for n in range(number)]
    for piece in range(3):
        parts = [row[cut[piece] : cut[piece + 1]] for row, cut in zip(rows, cuts, strict=True)]
        logits = decoder.feed(parts, slots, [cut[piece] for cut in cuts])
        for row, cut, got in zip(rows, cuts, logits, strict=True):
            want = reference_logprobs(model, row[: cut[piece + 1]])[-1]
            assert (got.log_softmax(-1) - want).abs().max() < 1e-4


def test_a_snapshot_does_not_follow_the_model() -> None:
    model = small_model()
    decoder = Decoder(model, slots=1, context=16)
    before = decoder.feed([[5, 6, 7]], [0], [0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(decoder.feed([[5, 6, 7]], [0], [0]), before)


def test_another_architecture_is_refused() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    with pytest.raises(ValueError, match=r"gpt2.*llama, qwen2, qwen3"):
        Decoder(GPT2LMHeadModel(config), slots=1, context=16)


@pytest.mark.parametrize(
    ("family", "changes", "word"),
    [
        ("llama", {"attention_bias": True}, "bias"),
        ("llama", {"mlp_bias": True}, "bias"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
            "sliding",
        ),
    ],
)
def test_a_variant_it_would_compute_wrongly_is_refused(
    family: str, changes: dict[str, object], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        Decoder(small_model(family, **changes), slots=1, context=16)
