"""One HTTP endpoint, asked politely: who waits, for how long, and when it is asked again.

This is the one owner of time and of retries. A call has one deadline, however often it is asked; an
attempt ends when the server falls silent, and what it had written by then is thrown away.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import math
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
import httpx2
from pydantic import Field
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
)

from dreamgym.llm.wire import Assembly, Unreadable
from dreamgym.settings import Operational
from dreamgym.types import Completion, DreamGymError, ModelFault

log = logging.getLogger(__name__)

Seconds = Annotated[float, Field(gt=0)]
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_LONGEST_NAP = 60.0
_WATCH_S = 30.0
_SHARE = 16
"""Connections of one pool."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ServerConfig(Operational):
    """How a server is asked; any that speaks OpenAI's protocol."""

    url: str = ""
    """As far as `/v1`, such as http://127.0.0.1:8000/v1; empty is $OPENAI_BASE_URL, or OpenAI."""
    key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; a local server needs none."""
    in_flight: Annotated[int, Field(ge=1, le=16_384)] = 64
    """Calls at once, at most: fewer for a while where the server says 429."""
    connect_s: Seconds = 60.0
    """For a connection. A busy server accepts late, so this is not short."""
    attempt_s: Seconds = 900.0
    """For one attempt from its first to its last byte. The longest answers come last: a short limit
    would lose just those."""
    idle_s: Seconds = 120.0
    """Between two pieces of a streamed answer."""
    deadline_s: Seconds = 3600.0
    """For one call with all its attempts."""
    max_bytes: Annotated[int, Field(ge=1024)] = 8_000_000
    """Of one reply; a longer one is none."""
    cache: str = ""
    """An SQLite file of replies: what was asked before is not asked again."""
    offline: bool = False
    """Only what stands in the cache; a call that does not is an error."""
    usd_read: Annotated[float, Field(ge=0)] | None = None
    """Dollars per million tokens read, where the list of prices does not know the model."""
    usd_written: Annotated[float, Field(ge=0)] | None = None
    """Dollars per million tokens written."""
    max_usd: Annotated[float, Field(ge=0)] = 0.0
    """No call is begun once a run has cost so many dollars; 0 is no limit."""
    max_tokens: Annotated[int, Field(ge=0)] = 0
    """The same in tokens, read and written; 0 is no limit."""


class _Again(Exception):
    """An attempt that failed in a way that another may not."""

    def __init__(self, kind: str, detail: str = "", wait_s: float = 0.0) -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.wait_s = kind, wait_s


@dataclass(slots=True)
class _Flight:
    """One call. Its clock stands still while it waits for a place: that is our doing."""

    since: float
    attempt: int = 0
    queued_since: float | None = None

    @property
    def age(self) -> float:
        return (self.queued_since or time.monotonic()) - self.since

    @contextmanager
    def queueing(self) -> Iterator[None]:
        self.queued_since = time.monotonic()
        try:
            yield
        finally:
            self.since += time.monotonic() - self.queued_since
            self.queued_since = None


class Places:
    """How many may be in flight: a third fewer when the server has had enough, one more for every
    round of answers."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = float(most)
        self._limiter = anyio.CapacityLimiter(most)
        self._shut_until = 0.0

    @property
    def open(self) -> int:
        return int(self._limiter.total_tokens)

    @asynccontextmanager
    async def one(self, flight: _Flight) -> AsyncIterator[None]:
        """A place, once there is one."""
        with flight.queueing():
            await self._limiter.acquire()
        try:
            yield
        finally:
            self._limiter.release()

    async def until_welcome(self) -> None:
        """Until the server wants to be asked again."""
        while (wait := self._shut_until - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    def gained(self) -> None:
        self._set(self._limit + 1 / self._limit)

    def refused(self, wait_s: float) -> None:
        """Refusals of calls that were under way together count as one."""
        now = time.monotonic()
        if now >= self._shut_until:
            self._set(self._limit * 2 / 3)
        self._shut_until = max(self._shut_until, now + wait_s)

    def _set(self, limit: float) -> None:
        self._limit = min(float(self.most), max(1.0, limit))
        self._limiter.total_tokens = int(self._limit)


class Transport:
    """Posts JSON and reads completions. Lives in one event loop; `attempts` counts every class."""

    def __init__(self, config: ServerConfig, attempts: Counter[str]) -> None:
        self.config, self.attempts = config, attempts
        self.url = base_url(config)
        self.places = Places(config.in_flight)
        self._flying: dict[int, _Flight] = {}
        self._watch: asyncio.Task[None] | None = None
        self._clients = self._connect()
        # the warmest on top: who has just been answered has a connection that is open
        self._hands = [client for client in self._clients for _ in range(_SHARE)]

    def _connect(self) -> list[httpx2.AsyncClient]:
        """Several pools, since the work of one grows with the square of its connections: 1,024
        calls at once took 20 s of processor time from one pool."""
        host = urlsplit(self.url).hostname or ""
        key = os.environ.get(self.config.key_env, "")
        verify = httpx2.create_ssl_context()
        return [
            httpx2.AsyncClient(
                base_url=self.url + "/",
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx2.Timeout(None, connect=self.config.connect_s),
                limits=httpx2.Limits(max_connections=_SHARE, max_keepalive_connections=_SHARE),
                verify=verify,
                trust_env=host not in LOOPBACK,  # no proxy leads to this machine
            )
            for _ in range(math.ceil(self.config.in_flight / _SHARE))
        ]

    async def close(self) -> None:
        if self._watch:
            self._watch.cancel()
        for client in self._clients:
            await client.aclose()

    async def complete(self, path: str, body: Mapping[str, Any], key: str) -> Completion:
        """A whole answer; see `ask`."""
        return (await self.ask(path, body, key)).completion()

    async def ask(self, path: str, body: Mapping[str, Any], key: str) -> Assembly:
        """Ask until there is an answer; raises ModelFault after the deadline, and DreamGymError
        where asking again would not help. `key` names the call, to servers that know such keys."""
        flight = _Flight(time.monotonic())
        self._flying[id(flight)] = flight
        self._keep_watch()
        again = AsyncRetrying(
            retry=retry_if_exception_type(_Again),
            stop=lambda state: flight.age + state.upcoming_sleep >= self.config.deadline_s,
            wait=_wait,
        )
        try:
            async for attempt in again:
                with attempt:
                    flight.attempt += 1
                    return await self._attempt(path, body, key, flight)
        except RetryError as error:
            last = error.last_attempt.exception()
            assert isinstance(last, _Again)
            told = f"{self.url}: {flight.attempt} attempts in {flight.age:.0f} s; {last}"
            raise ModelFault(last.kind, told) from last
        finally:
            del self._flying[id(flight)]
        raise AssertionError("unreachable: the loop returns or raises")

    async def get(self, path: str) -> Any:
        """One small document, asked for once."""
        try:
            async with self._clients[0].stream("GET", path) as response:
                if response.status_code != 200:
                    raise ModelFault(f"HTTP_{response.status_code}")
                return json.loads(await self._read(response))
        except (httpx2.RequestError, Unreadable, ValueError) as error:
            raise ModelFault("UNREADABLE", str(error)) from error

    async def _attempt(
        self, path: str, body: Mapping[str, Any], key: str, flight: _Flight
    ) -> Assembly:
        try:
            async with (
                self.places.one(flight),
                asyncio.timeout(max(0.001, self.config.deadline_s - flight.age)),
            ):
                await self.places.until_welcome()
                async with asyncio.timeout(self.config.attempt_s):
                    done = await self._post(path, body, key)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise self._failed(_Again("TIMEOUT", str(error) or "no whole answer")) from error
        except Unreadable as error:
            raise self._failed(_Again(error.kind, str(error))) from error
        except httpx2.RequestError as error:
            kind = "CONNECT" if isinstance(error, httpx2.ConnectError) else "BROKEN"
            raise self._failed(_Again(kind, str(error) or type(error).__name__)) from error
        except _Again as again:
            if again.kind == "RATE_LIMITED":
                self.places.refused(again.wait_s)
            raise self._failed(again) from None
        self.attempts["OK"] += 1
        self.places.gained()
        return done

    def _failed(self, again: _Again) -> _Again:
        self.attempts[again.kind] += 1
        log.info("%s: %s", self.url, again)
        return again

    async def _post(self, path: str, body: Mapping[str, Any], key: str) -> Assembly:
        headers = {"Idempotency-Key": key}
        client = self._hands.pop()
        try:
            async with client.stream("POST", path, json=body, headers=headers) as response:
                return await self._reply(response)
        finally:
            self._hands.append(client)

    async def _reply(self, response: httpx2.Response) -> Assembly:
        if response.status_code != 200:
            raise await self._refusal(response)
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            return await self._read_stream(response)
        assembly = Assembly()
        assembly.add(await self._read(response))
        assembly.require_end()
        return assembly

    async def _read_stream(self, response: httpx2.Response) -> Assembly:
        """Server-sent events; an answer whose end is not told is none, however much there is."""
        assembly, size = Assembly(), 0
        lines = _lines(response.aiter_bytes(), self.config.max_bytes)
        while True:
            try:
                async with asyncio.timeout(self.config.idle_s if size else None):
                    line = await anext(lines)
            except StopAsyncIteration:
                break
            size += len(line) + 1
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or not data:
                continue  # comments keep the connection alive, and other fields say nothing here
            if data == b"[DONE]":
                break
            assembly.add(data)
            if assembly.degenerate:
                break
        assembly.require_end()
        return assembly

    async def _read(self, response: httpx2.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self.config.max_bytes:
                raise Unreadable("TOO_LONG", f"more than {self.config.max_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    async def _refusal(self, response: httpx2.Response) -> Exception:
        """What a status that is not 200 means."""
        status = response.status_code
        told = (await self._read(response)).decode(errors="replace")
        line = " ".join(told.split())[:300]
        if status == 429 and "insufficient_quota" in told:
            return DreamGymError(f"{self.url} says that its quota is used up: {line}")
        if status in _AGAIN:
            kind = "RATE_LIMITED" if status == 429 else f"HTTP_{status}"
            return _Again(kind, line, retry_after(response.headers))
        if status in (400, 413, 422) and _is_too_long(told):
            return ModelFault("CONTEXT_FULL", line)
        if status in (401, 403):
            hint = f"is ${self.config.key_env} set to this server's key?"
        elif status == 404:
            hint = "is the address right, and does the server have this model?"
        else:
            hint = "`dreamgym doctor --endpoint URL` finds out what it takes"
        return DreamGymError(f"{self.url} answers {status}: {line or 'nothing'}; {hint}")

    def _keep_watch(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._tell_what_is_waited_for())

    async def _tell_what_is_waited_for(self) -> None:
        """A line every half minute while a call is that old: a run that waits is not stuck mute."""
        while self._flying:
            await asyncio.sleep(_WATCH_S)
            if self._flying and (line := self.waiting()):
                log.warning("%s", line)

    def waiting(self) -> str:
        """What is waited for, where something has been for long; else empty."""
        ages = {f.age: f.attempt for f in self._flying.values() if f.queued_since is None}
        if not ages or (oldest := max(ages)) < _WATCH_S:
            return ""
        failed = {kind: n for kind, n in self.attempts.items() if kind != "OK"}
        return (
            f"waiting for {self.url}: {len(ages)} in flight, {self.places.open} places, the oldest "
            f"for {oldest:.0f} s in attempt {ages[oldest]}; failed attempts so far: {failed or 0}"
        )


async def _lines(parts: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """Lines of a body as they come; raises Unreadable where it is too long. The rest after the last
    line's end is a line that was cut, and no line."""
    rest, size = bytearray(), 0
    async for part in parts:
        size += len(part)
        if size > max_bytes:
            raise Unreadable("TOO_LONG", f"more than {max_bytes} bytes")
        rest += part
        *lines, last = bytes(rest).split(b"\n") if b"\n" in part else [bytes(rest)]
        if lines:
            rest = bytearray(last)
        for line in lines:
            yield line.rstrip(b"\r")


def _wait(state: RetryCallState) -> float:
    """As long as the server asks for, else twice as long each time, with chance in it."""
    assert state.outcome is not None
    again = state.outcome.exception()
    assert isinstance(again, _Again)
    nap = min(_LONGEST_NAP, 0.25 * 2.0 ** (state.attempt_number - 1))
    return again.wait_s + random.uniform(0.5, 1.0) * (0.1 if again.wait_s else nap)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds to wait by `retry-after-ms` or `Retry-After`, a number or a date; 0 if not told."""
    try:
        if told := headers.get("retry-after-ms"):
            seconds = float(told) / 1000
        elif (told := headers.get("retry-after", "")) and told[-1:].isdigit():
            seconds = float(told)
        elif told:
            seconds = email.utils.parsedate_to_datetime(told).timestamp() - time.time()
        else:
            return 0.0
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _is_too_long(told: str) -> bool:
    text = told.casefold()
    return "context_length" in text or ("context" in text and ("length" in text or "size" in text))


def base_url(config: ServerConfig) -> str:
    """Where the server is; raises DreamGymError for what is no address."""
    url = config.url or os.environ.get("OPENAI_BASE_URL", "") or "https://api.openai.com/v1"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DreamGymError(
            f"server.url {url!r} is no address: it should look like http://127.0.0.1:8000/v1"
        )
    if parts.username or parts.password:
        raise DreamGymError(
            "server.url holds a password, which run folders would keep: put it into the "
            f"environment variable {config.key_env} instead"
        )
    return url.rstrip("/")
