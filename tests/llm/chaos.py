"""A server on loopback that misbehaves as it is told: real sockets, no mock of our own code."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

Send = Callable[[bytes], Awaitable[None]]
Script = Callable[[dict[str, Any], int], str]
"""(the request's JSON, how often this question was asked before) -> a behaviour's name."""


def answer_to(body: Mapping[str, Any]) -> str:
    """What a whole reply says; the same question gets the same answer."""
    return f"answer to {body['messages'][-1]['content']}"


class ChaosServer:
    def __init__(self, script: Script, *, accept_after: float = 0.0) -> None:
        self.script, self.accept_after = script, accept_after
        self.seen: Counter[str] = Counter()  # by idempotency key
        self.behaved: Counter[str] = Counter()
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.models = b'{"data": [{"id": "m", "max_model_len": 4096}]}'
        self.busy = self.most_busy = 0
        self.stopping = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        host, port = server.sockets[0].getsockname()[:2]
        try:
            yield f"http://{host}:{port}/v1"
        finally:
            server.close()
            self.stopping.set()
            await asyncio.sleep(0.05)  # for those that hang to end by themselves

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(self.accept_after)
            while await self._one(reader, writer):
                pass
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(
            line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
        )
        if head.startswith("GET"):
            return await self._reply(writer, 200, self.models)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append((headers, body))
        key = headers["idempotency-key"]
        behaviour = self.script(body, self.seen[key])
        self.seen[key] += 1
        self.behaved[behaviour] += 1
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            return await getattr(self, f"do_{behaviour}")(body, writer)
        finally:
            self.busy -= 1

    async def _reply(
        self, writer: asyncio.StreamWriter, status: int, content: bytes, *headers: str,
        kind: str = "application/json",
    ) -> bool:  # fmt: skip
        lines = [
            f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(content)}",
            *headers, "", "",
        ]  # fmt: skip
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()
        return True

    async def do_plain(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        message = {"role": "assistant", "content": answer_to(body)}
        told = {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3,
                      "prompt_tokens_details": {"cached_tokens": 4}},
        }  # fmt: skip
        return await self._reply(writer, 200, json.dumps(told).encode())

    def _events(self, body: dict[str, Any]) -> list[bytes]:
        words = answer_to(body).split(" ")
        pieces = [word + " " for word in words[:-1]] + words[-1:]
        told: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces
        ]
        told.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        told.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(words)}})
        events = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in told]
        return [b": keep-alive\n\n", *events, b"data: [DONE]\n\n"]

    async def _begin_stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await writer.drain()

    async def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()

    async def do_stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await self._begin_stream(writer)
        whole = b"".join(self._events(body))
        for at in range(0, len(whole), 37):  # no event ends where a chunk does
            await self._chunk(writer, whole[at : at + 37])
        await self._chunk(writer, b"")
        return True

    async def do_half_closed(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await self._begin_stream(writer)
        for event in self._events(body)[:3]:
            await self._chunk(writer, event)
        return False  # closed without the last chunk

    async def do_no_end(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """A stream that is closed in good order before the answer's end was told."""
        await self._begin_stream(writer)
        for event in self._events(body)[:3]:
            await self._chunk(writer, event)
        await self._chunk(writer, b"")
        return True

    async def do_stalls(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await self._begin_stream(writer)
        await self._chunk(writer, self._events(body)[1])
        await self.stopping.wait()
        return False

    async def do_garbage(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await self._begin_stream(writer)
        await self._chunk(writer, b"data: {\xff\xfe not json\n\ndata: [[[[[\n\n")
        await self._chunk(writer, b"")
        return True

    async def do_huge(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return await self._reply(writer, 200, b'{"choices": "' + b"x" * 10_000_000 + b'"}')

    async def do_blanks(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await self._begin_stream(writer)
        told = {"choices": [{"index": 0, "delta": {"content": '{"next_state":'}}]}
        await self._chunk(writer, b"data: " + json.dumps(told).encode() + b"\n\n")
        blank = {"choices": [{"index": 0, "delta": {"content": " "}}]}
        for self.blanks in range(1, 2001):
            await self._chunk(writer, b"data: " + json.dumps(blank).encode() + b"\n\n")
            await asyncio.sleep(0.001)
        return False

    async def do_429(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return await self._reply(writer, 429, b'{"error": "slow down"}', "retry-after-ms: 50")

    async def do_500(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return await self._reply(writer, 500, b"<html>oh</html>", kind="text/html")

    async def do_503(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return await self._reply(writer, 503, b"", "retry-after: 0.05")

    async def do_401(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return await self._reply(writer, 401, b'{"error": {"message": "no such key"}}')

    async def do_too_long(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        told = b'{"error": {"code": "context_length_exceeded", "message": "8192 tokens"}}'
        return await self._reply(writer, 400, told)

    async def do_slow_headers(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        for byte in b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.2)
        return False

    async def do_never(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await self.stopping.wait()
        return False

    async def do_thinks(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        message = {"content": None, "reasoning_content": "Let me think..."}
        told = {"choices": [{"message": message, "finish_reason": "length"}],
                "usage": {"completion_tokens": 512}}  # fmt: skip
        return await self._reply(writer, 200, json.dumps(told).encode())

    async def do_slow(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.3)
        return await self.do_plain(body, writer)

    async def do_crowded(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """A server with eight places."""
        if self.busy > 8:
            return await self.do_429(body, writer)
        await asyncio.sleep(0.01)
        return await self.do_plain(body, writer)
