"""The second seam: text or tokens in, tokens out. Policy, experience model, task writer, human."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dreamgym.types import Completion

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt. `ids` carries sampled tokens verbatim: they are never re-encoded."""

    role: Role
    text: str
    ids: tuple[int, ...] = ()


HEAD, TAIL = 11_000, 2_000
"""Characters of a longer text that a model is shown: some three thousand tokens."""


def within_budget(text: str) -> str:
    """The text, or its head and tail around a mark that says how much was cut."""
    cut = len(text) - HEAD - TAIL
    if cut <= 0:
        return text
    size = f"{cut / 1000:.0f}k" if cut >= 1000 else str(cut)
    return f"{text[:HEAD]}\n[... {size} chars cut ...]\n{text[-TAIL:]}"


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    """0 decodes greedily."""
    max_tokens: int = 64
    seed: int = 0
    """Names the noise, so that a sample does not depend on what else is in the batch."""


class LLM(Protocol):
    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        """Write the next assistant message.

        Calls of one `session` whose prompts grow by appending reuse what was computed before.
        The last message may be an assistant message: then it is continued.
        """
        ...

    async def release(self, session: str) -> None:
        """Forget a session: its cache may be given to another."""
        ...
