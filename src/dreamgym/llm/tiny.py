"""A tokenizer trained on the offline text, and Llamas of a million parameters made on the spot.

A noun that is ever numbered (`shelf 1`) is one token wherever it stands, so that the `apple` of a
task is the `apple 2` of a state; the phrases between nouns, numbers included, merge freely. A turn
of a household log then takes a dozen tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NOUN = r"\b([a-z]+)(?= \d+\b)"
ROLES = ("system", "user", "assistant")
END = "<|end|>"
PAD = "<|pad|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Byte-level BPE (any text round-trips) over nouns and the phrases between them."""
    texts = list(texts)
    nouns = sorted({noun for text in texts for noun in re.findall(NOUN, text)})
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    if len(nouns) > vocab_size // 2:
        raise ValueError(f"{len(nouns)} nouns leave no room in a vocabulary of {vocab_size}")

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(nouns),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=48,
    )
    between = re.compile(rf"\b(?:{'|'.join(nouns)})\b") if nouns else re.compile(r"(?!)")
    raw.train_from_iterator((piece for t in texts for piece in between.split(t) if piece), trainer)
    raw.add_tokens([AddedToken(noun, single_word=True, normalized=False) for noun in nouns])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_llama(
    vocab_size: int,
    *,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int | None = None,
    context: int = 2048,
) -> LlamaForCausalLM:
    """A fresh Llama with tied embeddings: copying a name is then one attention head's work."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)
