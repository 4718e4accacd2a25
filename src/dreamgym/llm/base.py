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
