"""An `LLM` over any server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.cache import ReplyCache, request_key
from dreamgym.llm.transport import ServerConfig, Transport
from dreamgym.llm.wire import Profile, chat_body, completion_body
from dreamgym.types import Completion, DreamGymError, ModelFault, Usage

Encode = Callable[[Sequence[Message]], Sequence[int]]


class Account(Protocol):
    """Who keeps the ledger; see `dreamgym.ledger`."""

    def require_room(self) -> None:
        """Raises where no more may be spent."""
        ...

    def add(self, usage: Usage | None, seconds: float, *, replayed: bool) -> None: ...


class OpenAILLM:
    """Asks `model` at a server for chat completions, or, with `encode`, for the continuation of
    token ids, so that what a policy was shown and wrote is exactly what is trained on.

    Prompts grow by appending, so a server's prefix cache serves all but the last turn.
    """

    def __init__(
        self,
        model: str,
        config: ServerConfig,
        profile: Profile | None = None,
        *,
        encode: Encode | None = None,
        account: Account | None = None,
    ) -> None:
        if config.offline and not config.cache:
            raise DreamGymError("server.offline needs server.cache, the file to answer from")
        self.model, self.config = model, config
        self.profile = profile or Profile()
        self.encode, self.account = encode, account
        self.cache = ReplyCache(Path(config.cache)) if config.cache else None
        self.from_cache = 0
        self.attempts: Counter[str] = Counter()
        """Attempts at the server by class; `OK` are answers."""
        self._transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def _server(self) -> Transport:
        """Connections belong to an event loop; a run has several, one after the other."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            self._transport = Transport(self.config, self.attempts)
            self._loop = loop
        return self._transport

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        """Write the next message; see `LLM`. Raises ModelFault where there is no answer in time."""
        if self.encode:
            path = "completions"
            body = completion_body(self.model, self.encode(prompt), sampling, self.profile)
        else:
            if prompt and prompt[-1].role == "assistant":
                raise ValueError("a chat server starts a new message: it cannot continue one")
            path, body = "chat/completions", chat_body(self.model, prompt, sampling, self.profile)
        key = request_key(path, body, sampling.seed)
        if self.cache is not None and (kept := self.cache.get(key)):
            self.from_cache += 1
            self._tell(kept, 0.0, replayed=True)
            return kept
        if self.config.offline:
            raise ModelFault("NOT_CACHED", f"{self.config.cache} holds no answer to this call")
        if self.account:
            self.account.require_room()
        began = time.monotonic()
        reply = await self._server.complete(path, body, key)
        if self.cache is not None:  # first what was paid for, then the bill
            reply = self.cache.put(key, reply)
        self._tell(reply, time.monotonic() - began, replayed=False)
        return reply

    def _tell(self, reply: Completion, seconds: float, *, replayed: bool) -> None:
        if self.account:
            self.account.add(reply.usage, seconds, replayed=replayed)

    async def release(self, session: str) -> None:
        """A server keeps no sessions: it finds what it has read by the prompt."""

    async def close(self) -> None:
        if self._transport and self._loop is asyncio.get_running_loop():
            await self._transport.close()
        if self.cache is not None:
            self.cache.close()
