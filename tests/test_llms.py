"""Names of language models, and a run whose dream is a server's: from the flags to the ledger."""

from __future__ import annotations

import pytest

from dreamgym.config import RunConfig
from dreamgym.ledger import Ledger, Limits
from dreamgym.llm.openai import OpenAILLM
from dreamgym.llm.transport import ServerConfig
from dreamgym.llms import limits_of, open_llm, price_of, untrained
from dreamgym.settings import config_digest, load_config
from dreamgym.types import DreamGymError


@pytest.fixture(autouse=True)
def _own_profiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_a_served_model_is_asked_and_billed() -> None:
    server = ServerConfig(url="http://127.0.0.1:9/v1")
    llm = open_llm("openai:gpt-4o-mini", "dream", server, Ledger(Limits(usd=1.0)), slots=2)
    assert isinstance(llm, OpenAILLM) and llm.model == "gpt-4o-mini" and llm.account is not None
    with pytest.raises(DreamGymError, match="names no model"):
        open_llm("openai:", "dream", server, Ledger(), slots=2)


def test_no_money_is_spent_without_a_price_or_a_limit_on_tokens() -> None:  # P112
    unknown = ServerConfig(url="http://127.0.0.1:9/v1", max_usd=1.0)
    with pytest.raises(DreamGymError, match="nobody knows what mystery costs"):
        open_llm("openai:mystery", "dream", unknown, Ledger(limits_of(unknown)), slots=2)
    priced = unknown.model_copy(update={"usd_read": 1.0, "usd_written": 2.0})
    assert price_of("mystery", priced).known
    open_llm("openai:mystery", "dream", priced, Ledger(limits_of(priced)), slots=2)


def test_one_flag_makes_a_frontier_model_the_dream() -> None:
    flags = [f"--experience.{name}={value}" for name, value in untrained("openai:m")]
    cfg, _ = load_config(RunConfig, [], flags)
    told = cfg.experience
    assert (told.llm, told.instructed, told.history, told.k) == ("openai:m", True, True, 4)
    assert untrained("") == []
    with pytest.raises(DreamGymError, match="instructed"):
        load_config(RunConfig, [], ["--experience.llm=openai:m"])


def test_another_server_is_not_another_run() -> None:
    cfg, _ = load_config(RunConfig, [], [])
    other, _ = load_config(
        RunConfig, [], ["--server.url=http://elsewhere/v1", "--server.max_usd=9"]
    )
    assert config_digest(cfg) == config_digest(other)
    assert config_digest(cfg) != config_digest(load_config(RunConfig, [], ["--steps=9"])[0])
