"""The client against a server that misbehaves: nothing lost, nothing twice, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chaos import ChaosServer

from dreamgym.ledger import BudgetSpent, Ledger, Limits, Price
from dreamgym.llm import transport
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.openai import OpenAILLM
from dreamgym.llm.transport import ServerConfig, retry_after
from dreamgym.llm.wire import Profile
from dreamgym.replay.checks import Provenance
from dreamgym.replay.store import ReplayStore
from dreamgym.types import Completion, DreamGymError, Ending, ModelFault, Task, Turn

FAST = {"attempt_s": 2.0, "idle_s": 0.5, "deadline_s": 60.0}


def ask(text: str) -> list[Message]:
    return [Message("user", text)]


def talk(
    server: ChaosServer, prompts: Sequence[str] = ("q",), profile: Profile | None = None,
    **settings: Any,
) -> tuple[list[Completion | BaseException], OpenAILLM]:  # fmt: skip
    """Ask everything at once; errors come back as what they are."""

    async def run() -> tuple[list[Completion | BaseException], OpenAILLM]:
        async with server.running() as url:
            llm = OpenAILLM("m", ServerConfig(url=url, **(FAST | settings)), profile)
            try:
                asked = [llm.complete(ask(p), Sampling(seed=n)) for n, p in enumerate(prompts)]
                return await asyncio.gather(*asked, return_exceptions=True), llm
            finally:
                await llm.close()

    return asyncio.run(run())


def test_a_thousand_calls_through_chaos(tmp_path: Path) -> None:
    """429 with and 500 without Retry-After, 503, slow headers, half-closed and garbage streams, ten
    megabytes, silence: every call gets its own whole answer and is committed once."""
    bad = ("429", "500", "503", "slow_headers", "half_closed", "no_end", "garbage", "huge", "never",
           "stalls")  # fmt: skip
    chance = random.Random(0)

    def script(body: dict[str, Any], asked: int) -> str:
        shares = [0.01] + [0.02] * 9 if asked < 3 else [0.0] * 10
        return chance.choices([*bad, "plain", "stream"], [*shares, 0.4, 0.4])[0]

    server = ChaosServer(script)
    prompts = [f"question {n}" for n in range(1000)]
    began = time.monotonic()
    replies, llm = talk(server, prompts, in_flight=64, attempt_s=0.7)
    assert time.monotonic() - began < 120
    assert all(server.behaved[kind] for kind in bad), "the chaos was too mild"
    assert not [reply for reply in replies if isinstance(reply, BaseException)]
    assert llm.attempts["OK"] == 1000
    assert {"RATE_LIMITED", "HTTP_500", "HTTP_503", "TIMEOUT", "BROKEN", "CUT_OFF", "GARBAGE",
            "TOO_LONG"} <= llm.attempts.keys()  # fmt: skip
    with ReplayStore(tmp_path / "replay.sqlite") as store:
        for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
            assert isinstance(reply, Completion)
            assert reply.text == f"answer to {prompt}", "a partial or another call's answer"
            episode = f"e{number}"
            task = Task(f"t{number}", prompt, "a room")
            store.open_episode(episode, task, world="dream", provenance=Provenance("run", "policy"))
            turn = Turn("a room", "look", 0.0, reply.text)
            for _ in range(2):  # P057: the reply to a commit is lost, so the commit comes again
                store.append_turn(episode, 0, turn)
            store.close_episode(episode, Ending.TURN_LIMIT)
        assert store.counts()["transitions"] == 1000


def test_a_server_that_accepts_late_loses_nobody() -> None:
    """1,024 at once, and the first is accepted after eight seconds."""
    server = ChaosServer(lambda body, asked: "plain", accept_after=8.0)
    replies, _ = talk(server, [f"q{n}" for n in range(1024)], in_flight=1024, attempt_s=60.0)
    assert {type(reply) for reply in replies} == {Completion}


def test_a_half_closed_stream_is_asked_again_and_its_part_is_thrown_away() -> None:  # P055
    server = ChaosServer(lambda body, asked: "stream" if asked else "half_closed")
    (reply,), llm = talk(server)
    assert isinstance(reply, Completion)
    assert reply.text == "answer to q" and sum(server.seen.values()) == 2
    assert llm.attempts == {"BROKEN": 1, "OK": 1}


def test_time_is_bounded_where_nobody_answers() -> None:
    (reply,), llm = talk(ChaosServer(lambda body, asked: "never"), attempt_s=0.2, deadline_s=1.0)
    assert isinstance(reply, ModelFault) and reply.kind == "TIMEOUT"
    assert llm.attempts["TIMEOUT"] >= 2


def test_a_long_answer_is_not_cut_by_a_clock_for_short_ones() -> None:  # P054
    config = ServerConfig()
    assert config.attempt_s > 700 and config.deadline_s > config.attempt_s
    # and what waits for a place of ours has all its time still before it
    server = ChaosServer(lambda body, asked: "slow")
    replies, _ = talk(server, [f"q{n}" for n in range(12)], in_flight=1, deadline_s=1.5)
    assert {type(reply) for reply in replies} == {Completion}


def test_a_run_that_waits_says_for_what(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # P058
    monkeypatch.setattr(transport, "_WATCH_S", 0.2)
    with caplog.at_level(logging.WARNING):
        talk(ChaosServer(lambda body, asked: "never"), attempt_s=5.0, deadline_s=1.0)
    told = "\n".join(caplog.messages)
    assert "waiting for http://127.0.0.1" in told and "1 in flight" in told and "attempt 1" in told


def test_a_crowded_server_gets_fewer_calls_at_once() -> None:
    server = ChaosServer(lambda body, asked: "crowded")
    replies, llm = talk(server, [f"q{n}" for n in range(300)], in_flight=64)
    assert {type(reply) for reply in replies} == {Completion}
    refused = llm.attempts["RATE_LIMITED"]
    assert 0 < refused < 300, "it went on knocking with all hands"
    assert server.most_busy <= 64


def test_what_asking_again_cannot_mend_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = ChaosServer(lambda body, asked: "401")
    (reply,), _ = talk(server)
    assert isinstance(reply, DreamGymError) and "OPENAI_API_KEY" in str(reply)
    assert "sk-secret" not in str(reply) and sum(server.seen.values()) == 1
    assert server.requests[0][0]["authorization"] == "Bearer sk-secret".lower()


def test_an_episode_longer_than_the_servers_context_is_a_fault_of_its_own() -> None:
    (reply,), _ = talk(ChaosServer(lambda body, asked: "too_long"))
    assert isinstance(reply, ModelFault) and reply.kind == "CONTEXT_FULL"


def test_endless_blanks_are_cut_early() -> None:  # P007
    server = ChaosServer(lambda body, asked: "blanks")
    (reply,), _ = talk(server)
    assert isinstance(reply, Completion) and reply.finish_reason == "length"
    assert reply.text.rstrip() == '{"next_state":' and server.blanks < 300


def test_thoughts_alone_are_an_unfinished_answer() -> None:  # P006
    (reply,), _ = talk(ChaosServer(lambda body, asked: "thinks"))
    assert isinstance(reply, Completion)
    assert reply.text == "<think>Let me think..." and reply.finish_reason == "length"


def test_a_paid_run_is_played_again_offline_byte_for_byte(tmp_path: Path) -> None:
    cache = str(tmp_path / "replies.sqlite")
    server = ChaosServer(lambda body, asked: "stream")
    prompts = [f"q{n}" for n in range(20)]
    paid, _ = talk(server, prompts, cache=cache)
    again, llm = talk(server, prompts, cache=cache)
    assert again == paid and sum(server.seen.values()) == 20 and llm.from_cache == 20

    offline = ServerConfig(url="http://127.0.0.1:9/v1", cache=cache, offline=True)
    llm = OpenAILLM("m", offline)
    replayed = [asyncio.run(llm.complete(ask(p), Sampling(seed=n))) for n, p in enumerate(prompts)]
    assert replayed == paid
    with pytest.raises(ModelFault, match="NOT_CACHED"):
        asyncio.run(llm.complete(ask("another"), Sampling()))
    with pytest.raises(ModelFault, match="NOT_CACHED"):  # other noise is another question
        asyncio.run(llm.complete(ask("q0"), Sampling(seed=77)))


def test_a_limit_stops_all_workers_within_a_call_each(tmp_path: Path) -> None:
    """What the cache answers costs nothing, and is no call."""
    cache = str(tmp_path / "replies.sqlite")
    ledger = Ledger(Limits(tokens=500))  # ten a call
    server = ChaosServer(lambda body, asked: "slow")
    workers = 8

    async def run() -> list[BaseException | None]:
        async with server.running() as url:
            account = ledger.account("dream", "m", Price())
            llm = OpenAILLM("m", ServerConfig(url=url, cache=cache), account=account)

            async def work(worker: int) -> None:
                for n in range(1000):
                    for _ in range(2):
                        await llm.complete(ask(f"{worker}/{n}"), Sampling())

            ends = await asyncio.gather(*map(work, range(workers)), return_exceptions=True)
            await llm.close()
            return ends

    assert {type(end) for end in asyncio.run(run())} == {BudgetSpent}
    calls = sum(server.seen.values())
    assert 50 <= calls < 50 + workers
    (line,) = ledger.lines.values()
    assert (line.calls, line.read, line.written, line.cached) == (
        calls,
        7 * calls,
        3 * calls,
        4 * calls,
    )
    assert line.replayed >= calls - workers


def test_a_broken_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(DreamGymError, match="move it away"):
        OpenAILLM("m", ServerConfig(cache=str(path)))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/v1", "http://me:pw@host/v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(DreamGymError):
        asyncio.run(OpenAILLM("m", ServerConfig(url=url)).complete(ask("q"), Sampling()))


def test_retry_after_is_read_in_all_its_forms() -> None:
    assert retry_after({"retry-after": "7"}) == 7 and retry_after({"retry-after-ms": "50"}) == 0.05
    assert retry_after({}) == retry_after({"retry-after": "soon"}) == 0
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0  # long past
    assert retry_after({"retry-after": "1" + "0" * 400}) == 0  # no number that one could wait for
