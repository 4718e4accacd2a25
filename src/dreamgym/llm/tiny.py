"""A tokenizer trained on the offline text, and Llamas of a million parameters made on the spot.

A noun that the text numbers (`shelf 2`) is one token wherever it stands, and so is the number: the
`apple` of a task is then the `apple` of `apple 2`, and naming a thing again is plain copying. The
phrases between them merge freely. A turn of a household log takes some twenty tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ENTITY = re.compile(r"\b([a-z]+) ([1-9]\d?)\b")
ROLES = ("system", "user", "assistant")
END = "<|end|>"
PAD = "<|pad|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Byte-level BPE (any text round-trips) over nouns, their numbers and the phrases between."""
    texts = list(texts)
    entities = {entity for text in texts for entity in ENTITY.findall(text)}
    nouns = sorted({noun for noun, _ in entities})
    # gaps are filled: the texts are a sample
    numbers = range(1, 1 + max((int(number) for _, number in entities), default=0))
    names = [*nouns, *(f" {number}" for number in numbers)]
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    if len(names) > vocab_size // 2:
        raise ValueError(
            f"{len(nouns)} nouns and {len(numbers)} numbers leave no room for phrases in a "
            f"vocabulary of {vocab_size}: raise model.vocab_size above {2 * len(names)}"
        )

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(names),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=48,
    )
    between = rf"\b(?:{'|'.join(nouns)})\b|(?<=[a-z]) [1-9]\d?\b" if nouns else r"(?!)"
    pieces = (piece for text in texts for piece in re.split(between, text) if piece)
    raw.train_from_iterator(pieces, trainer)
    raw.add_tokens(
        [AddedToken(name, single_word=name in nouns, normalized=False) for name in names]
    )
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
