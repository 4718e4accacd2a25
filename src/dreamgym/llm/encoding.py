"""Messages to token ids. Text never becomes a control token; sampled ids stay as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from dreamgym.llm.base import Message
from dreamgym.llm.tiny import ROLES

Parts = tuple[list[int], list[int], list[int]]
"""Of a message: what opens it, what its speaker writes with the end token, what closes it."""


class Codec(ABC):
    """What all encoders do alike, and what each does in its own way."""

    end: int
    mode: Literal["whole", "turns"]
    """Whether an episode is one growing sequence, or one sequence a turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, backend: Tokenizer) -> None:
        backend.encode_special_tokens = True  # text from a world is data
        self.tokenizer = tokenizer
        self.text_ids = lru_cache(1 << 16)(
            lambda text: tuple(backend.encode(text, add_special_tokens=False).ids)
        )
        self.token_text = lru_cache(1 << 16)(lambda id: self._text([id]))

    @abstractmethod
    def start(self, messages: Sequence[Message]) -> list[int]:
        """What stands before the first message of a conversation."""

    @abstractmethod
    def parts(self, message: Message) -> Parts:
        """Only what the speaker writes is ever trained on."""

    @abstractmethod
    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """All messages, and the opening of the one to be written.

        A last assistant message that was not sampled is continued.
        """

    def message(self, message: Message) -> list[int]:
        """One closed message."""
        return [id for part in self.parts(message) for id in part]

    def decode(self, ids: Sequence[int]) -> str:
        return self._text(self._body(ids))

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Each token's own text; joined they are `decode`, unless a token is part of a letter."""
        return tuple(map(self.token_text, self._body(ids)))

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _body(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] == self.end else ids


def private_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of our own: `transformers` switches the shared one back at every call."""
    return Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())


class Encoder(Codec):
    """For the tokenizers of `llm.tiny`: one token opens a role's message, another ends it."""

    mode = "whole"

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(tokenizer, private_backend(tokenizer))
        self.end = tokenizer.eos_token_id
        self.role = {role: tokenizer.convert_tokens_to_ids(f"<|{role}|>") for role in ROLES}
        missing = [role for role, id in self.role.items() if id in (None, tokenizer.unk_token_id)]
        if missing:
            raise ValueError(
                f"the tokenizer has no <|{missing[0]}|> token: train one with llm.tiny"
            )

    def start(self, messages: Sequence[Message]) -> list[int]:
        return []

    def parts(self, message: Message) -> Parts:
        body = self._body(message.ids or self.text_ids(message.text))
        return [self.role[message.role]], [*body, self.end], []

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids = [id for message in messages for id in self.message(message)]
        if messages and messages[-1].role == "assistant" and not messages[-1].ids:
            return ids[:-1]  # to be continued
        return [*ids, self.role["assistant"]]
