"""A tokenizer trained on the offline text, and Llamas of a million parameters made on the spot.

An entity that the text numbers (`shelf 2`) is one token wherever it stands, and so is its noun
alone, so that naming it again is one step of copying; the phrases between them merge freely. A turn
of a household log then takes a dozen tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ENTITY = r"\b[a-z]+ [1-9]\d?\b"
ROLES = ("system", "user", "assistant")
END = "<|end|>"
PAD = "<|pad|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Byte-level BPE (any text round-trips) over entities, their nouns and the phrases between."""
    texts = list(texts)
    highest: dict[str, int] = {}
    for noun, number in map(str.split, {e for text in texts for e in re.findall(ENTITY, text)}):
        highest[noun] = max(int(number), highest.get(noun, 0))
    nouns = sorted(highest)
    # gaps are filled: the texts are a sample
    entities = [f"{noun} {number}" for noun in nouns for number in range(1, highest[noun] + 1)]
    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    names = [*nouns, *entities]
    if len(names) > vocab_size // 2:
        raise ValueError(
            f"{len(nouns)} nouns and {len(entities)} numbered ones leave no room for phrases in a "
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
    between = re.compile(rf"\b(?:{'|'.join(nouns)})(?: [1-9]\d?)?\b" if nouns else r"(?!)")
    raw.train_from_iterator((piece for t in texts for piece in between.split(t) if piece), trainer)
    raw.add_tokens([AddedToken(name, single_word=True, normalized=False) for name in names])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def split_entity(token: str) -> tuple[str, str] | None:
    """The noun and the number of a token that is an entity."""
    if re.fullmatch(ENTITY, token) is None:
        return None
    noun, number = token.split()
    return noun, number


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
