"""What the decoder computes on its own, and what it refuses because it would compute it wrongly."""

from __future__ import annotations

import random

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


def test_whoever_else_is_fed_the_logits_are_those_of_each_sequence_alone() -> None:
    """Full runs of neighbouring slots, sparse, uneven and last ones are read in other ways."""
    model, rng = small_model(), random.Random(0)
    lengths = [rng.choice((20, 24, 30) if slot < 8 else (3, 4, 35)) for slot in range(20)]
    texts = [[rng.randrange(5, 300) for _ in range(length)] for length in lengths]
    together, alone = Decoder(model, slots=20, context=64), Decoder(model, slots=1, context=64)
    together.feed(texts, list(range(20)), [0] * 20)
    ways = set()
    for chosen in (
        range(20),
        range(8),
        range(8, 16),
        (0, 1, 2, 4, 5, 6, 7, 19),
        (3, 9, 17),
        range(15, 20),
    ):
        slots = list(chosen)
        rng.shuffle(slots)
        token = {slot: rng.randrange(5, 300) for slot in slots}
        starts = [len(texts[slot]) for slot in slots]
        ends = [start + 1 for start in starts]
        ways.add(tuple(together._order(slots, ends, 1)[1]))
        got = together.feed([[token[slot]] for slot in slots], slots, starts)
        for slot, logits in zip(slots, got, strict=True):
            texts[slot].append(token[slot])
            want = alone.feed([texts[slot]], [0], [0])[0]
            assert (logits - want).abs().max() < 1e-4
    assert () in ways and any(8 in way for way in ways) and any(7 in way for way in ways)
