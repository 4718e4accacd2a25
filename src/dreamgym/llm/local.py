"""A batched engine over Hugging Face weights: sessions keep their keys and values between turns.

Requests that wait are taken in at every token (continuous batching), and copy what another
session has read of their prompt. Where several engines share the cores, one drains its batch before
the next begins, so that batches stay full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.chat import make_encoder
from dreamgym.llm.decoder import Decoder
from dreamgym.types import Completion

log = logging.getLogger(__name__)

_WORTH_COPYING = 16
"""Tokens; below that, reading them again costs less than the step that a request would wait."""


@dataclass(slots=True)
class _Request:
    prompt: list[int]
    sampling: Sampling
    session: str
    done: asyncio.Future[Completion]
    noise: np.ndarray
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Slot:
    session: str = ""
    ids: list[int] = field(default_factory=list)  # whose keys and values are in the cache
    busy: bool = False
    used: int = 0  # a clock reading, for the choice of whom to evict


class LocalLLM:
    """An `LLM` over one snapshot of weights: make a new one after every update."""

    _cores: asyncio.Lock | None = None  # shared by the engines of one event loop
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        slots: int = 64,
        context: int | None = None,
    ) -> None:
        limit = model.config.max_position_embeddings
        self.encoder = make_encoder(tokenizer)
        self.decoder = Decoder(model, slots=slots, context=min(context or limit, limit))
        self._room = self.decoder.context - 1  # the last position takes the padding
        self._slots = [_Slot() for _ in range(slots)]
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._task: asyncio.Task[None] | None = None
        self._clock = 0
        self.tokens_fed = self.tokens_written = self.evictions = 0

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        """Write the next message; see `LLM`. A prompt without room ends at once, as `length`."""
        ids = self.encoder.prompt(prompt)
        if len(ids) + 1 > self._room:
            return Completion("", prompt_ids=tuple(ids), finish_reason="length")
        noise = np.random.default_rng(sampling.seed).random(sampling.max_tokens)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(ids, sampling, session, future, noise))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def release(self, session: str) -> None:
        for slot in self._slots:
            if slot.session == session and not slot.busy:
                slot.session, slot.ids, slot.used = "", [], 0

    async def _run(self) -> None:
        async with self._turn():
            try:
                while self._waiting or self._running:
                    await asyncio.sleep(0)  # whoever was answered may ask again
                    self._step()
            except BaseException as error:
                for request in (*self._waiting, *self._running):
                    if not request.done.done():
                        request.done.set_exception(error)
                self._waiting, self._running = [], []
                for slot in self._slots:
                    slot.busy = False  # what `ids` says is in the cache still is
                raise

    @classmethod
    def _turn(cls) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if cls._cores is None or cls._loop is not loop:
            cls._cores, cls._loop = asyncio.Lock(), loop
        return cls._cores

    def _step(self) -> None:
        """One token for all that run, after taking in those that wait."""
        self._drop_cancelled()
        fresh = self._take_in()
        earlier, self._running = self._running, [*self._running, *fresh]
        for batch in (*self._alike(fresh), earlier):
            if batch:
                self._advance(batch)
        self._running = [r for r in self._running if not r.done.done()]

    def _alike(self, fresh: list[_Request]) -> list[list[_Request]]:
        """Apart what would only pad: a first prompt has hundreds of tokens, a later turn few."""
        batches: dict[int, list[_Request]] = {}
        for request in fresh:
            new = len(request.prompt) - len(self._slots[request.slot].ids)
            batches.setdefault(max(5, (new - 1).bit_length()), []).append(request)
        return [batches[size] for size in sorted(batches)]

    def _drop_cancelled(self) -> None:
        for request in self._running:
            if request.done.cancelled():
                self._free(request)
        self._running = [r for r in self._running if not r.done.cancelled()]
        self._waiting = [r for r in self._waiting if not r.done.cancelled()]

    def _free(self, request: _Request) -> None:
        slot = self._slots[request.slot]
        self._clock += 1
        slot.busy, slot.used = False, self._clock
        if not request.session:
            slot.ids, slot.used = [], 0

    def _take_in(self) -> list[_Request]:
        """Give slots to those that wait, in order, while there are any."""
        fresh: list[_Request] = []
        later: list[_Request] = []
        for request in self._waiting:
            free = [i for i, slot in enumerate(self._slots) if not slot.busy]
            if not free:
                break
            (fresh if self._admit(request, free, fresh) else later).append(request)
        self._waiting = later + self._waiting[len(fresh) + len(later) :]
        return fresh

    def _admit(self, request: _Request, free: Sequence[int], fresh: Sequence[_Request]) -> bool:
        """Its own slot, or a free one with what another slot has read of its prompt."""
        own = [i for i in free if request.session and self._slots[i].session == request.session]
        # an unused one with the lowest number, else the longest unused one
        number = own[0] if own else min(free, key=lambda i: (self._slots[i].used, i))
        sources = own or range(len(self._slots))
        source = max(sources, key=lambda i: _common(self._slots[i].ids, request.prompt))
        same = _common(self._slots[source].ids, request.prompt)
        if not own:
            begun = max((_common(other.prompt, request.prompt) for other in fresh), default=0)
            if begun - same >= _WORTH_COPYING:
                return False  # a group's attempts begin alike: wait a step, then copy
        slot = self._slots[number]
        if slot.session and not own:
            self._count_eviction()
        same = min(same, len(request.prompt) - 1)  # the last is read for what follows it
        if source != number:
            self.decoder.copy(source, number, same)
        slot.session, slot.busy = request.session, True
        slot.ids = request.prompt[:same]
        request.slot = number
        return True

    def _count_eviction(self) -> None:
        """The answers stay right; what a living session has in the cache is computed again."""
        if not self.evictions:
            log.warning(
                "all %d slots hold sessions that live: one loses its history to a newcomer and is"
                " read anew at its next turn. Give slots for every episode in flight, or release"
                " sessions that have ended",
                len(self._slots),
            )
        self.evictions += 1

    def _advance(self, batch: list[_Request]) -> None:
        slots = [self._slots[request.slot] for request in batch]
        rows = [
            (request.prompt + request.ids)[len(slot.ids) :]
            for request, slot in zip(batch, slots, strict=True)
        ]
        starts = [len(slot.ids) for slot in slots]
        logits = self.decoder.feed(rows, [request.slot for request in batch], starts)
        chosen, logprobs = _sample(logits, batch)
        self.tokens_fed += sum(map(len, rows))
        self.tokens_written += len(batch)
        for i, (request, slot) in enumerate(zip(batch, slots, strict=True)):
            slot.ids += rows[i]
            request.ids.append(chosen[i])
            request.logprobs.append(logprobs[i])
            full = len(request.prompt) + len(request.ids) >= self._room
            if chosen[i] == self.encoder.end:
                self._finish(request, "stop")
            elif full or len(request.ids) >= request.sampling.max_tokens:
                self._finish(request, "length")

    def _finish(self, request: _Request, reason: Literal["stop", "length"]) -> None:
        self._free(request)
        completion = Completion(
            text=self.encoder.decode(request.ids),
            ids=tuple(request.ids),
            logprobs=tuple(request.logprobs),
            prompt_ids=tuple(request.prompt),
            pieces=self.encoder.pieces(request.ids),
            finish_reason=reason,
        )
        if not request.done.done():
            request.done.set_result(completion)


def _sample(logits: torch.Tensor, batch: list[_Request]) -> tuple[list[int], list[float]]:
    """Draw one token a row by inverting the distribution at the request's own number."""
    temperature = torch.tensor([r.sampling.temperature for r in batch], device=logits.device)
    greedy = temperature <= 0
    logprobs = (logits / torch.where(greedy, 1.0, temperature)[:, None]).log_softmax(dim=-1)
    draws = [float(r.noise[len(r.ids)]) for r in batch]
    cumulative = logprobs.exp().cumsum(dim=-1)
    draw = torch.tensor(draws, device=logits.device)[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, draw, right=True)[:, 0]
    sampled = sampled.clamp_max(logits.shape[-1] - 1)
    chosen = torch.where(greedy, logits.argmax(dim=-1), sampled)
    return chosen.tolist(), logprobs.gather(1, chosen[:, None])[:, 0].tolist()


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix; the usual case, that `a` opens `b`, is one comparison."""
    if b[: len(a)] == a:
        return len(a)
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
