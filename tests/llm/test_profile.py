"""What a server can do is what it was seen to do, and is kept for the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from chaos import ChaosServer

from dreamgym.llm.profile import load_profile, probe_server, profile_path
from dreamgym.llm.transport import ServerConfig
from dreamgym.llm.wire import Profile
from dreamgym.types import DreamGymError


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def plain_or_stream(body: dict[str, Any], asked: int) -> str:
    return "stream" if body["stream"] else "plain"


def probe(
    server: ChaosServer, model: str = ""
) -> tuple[str, Profile, dict[str, str], ServerConfig]:
    async def run() -> tuple[str, Profile, dict[str, str], ServerConfig]:
        async with server.running() as url:
            config = ServerConfig(url=url, attempt_s=2.0, deadline_s=4.0)
            return *(await probe_server(config, model)), config

    return asyncio.run(run())


def test_what_a_server_can_do_is_found_and_kept() -> None:
    model, profile, findings, config = probe(ChaosServer(plain_or_stream))
    assert model == "m" and profile.stream and profile.system and profile.seed
    assert profile.context == 4096
    # it takes these and ignores them, which is not having them
    assert not (profile.logprobs or profile.token_ids or profile.json_schema)
    assert "ignored" in findings["logprobs"]
    assert load_profile(config, "m") == profile and load_profile(config, "other") is None


def test_what_it_refuses_is_not_asked_of_it_again() -> None:
    def script(body: dict[str, Any], asked: int) -> str:
        odd = body["stream"] or "max_tokens" in body or "temperature" in body or "seed" in body
        return "401" if odd or body["messages"][0]["role"] == "system" else "plain"

    _, profile, findings, _ = probe(ChaosServer(script))
    assert profile == Profile(
        stream=False, system=False, temperature=False, seed=False, context=4096,
        max_tokens="max_completion_tokens",
    )  # fmt: skip
    assert findings["stream"].startswith("no") and findings["plain"] == "yes"


def test_a_server_that_answers_nothing_has_no_profile() -> None:
    with pytest.raises(DreamGymError, match="answers no plain question"):
        probe(ChaosServer(lambda body, asked: "401"), "m")
    server = ChaosServer(plain_or_stream)
    server.models = b"<html>"
    with pytest.raises(DreamGymError, match="--model"):
        probe(server)


def test_a_damaged_profile_is_named() -> None:
    config = ServerConfig(url="http://127.0.0.1:9/v1")
    path = profile_path(config, "m")
    path.parent.mkdir(parents=True)
    path.write_text('{"profile": {"stream": "perhaps"}}')
    with pytest.raises(DreamGymError, match="remove it"):
        load_profile(config, "m")
