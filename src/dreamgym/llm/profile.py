"""Finds out what a server can do, and keeps it where the client looks.

Every question is asked of the server itself: what is documented and what is there differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.transport import ServerConfig, Transport, base_url
from dreamgym.llm.wire import Assembly, Profile, chat_body
from dreamgym.run_folder import write_json
from dreamgym.types import DreamGymError, ModelFault

_QUESTION = [Message("user", "Answer with the one word: yes")]
_SHORT = Sampling(temperature=0.0, max_tokens=64)


def profile_path(config: ServerConfig, model: str) -> Path:
    """Where the profile of one model at one address is kept."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    url = base_url(config)
    readable = re.sub(r"[^\w.-]+", "_", f"{url.partition('://')[2]}_{model}")[:80]
    digest = hashlib.sha256(f"{url}\n{model}".encode()).hexdigest()[:8]
    return root / "dreamgym" / "servers" / f"{readable}-{digest}.json"


def load_profile(config: ServerConfig, model: str) -> Profile | None:
    """What `dreamgym doctor --endpoint` has found; None where it was never asked."""
    path = profile_path(config, model)
    if not path.exists():
        return None
    try:
        return Profile.model_validate(json.loads(path.read_text())["profile"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise DreamGymError(
            f"{path} is no profile of a server: remove it, and run `dreamgym doctor --endpoint` "
            "again"
        ) from error


@dataclass(slots=True)
class Probe:
    """Asks one server about one thing after the other; what it was told stands in `findings`."""

    config: ServerConfig
    model: str
    findings: dict[str, str] = field(default_factory=dict)

    async def run(self) -> Profile:
        """Raises DreamGymError where not even a plain question is answered."""
        server = Transport(self.config, Counter())
        try:
            listed = await self._models(server)
            self.model = self.model or next(iter(listed), "")
            if not self.model:
                raise DreamGymError(f"{server.url} lists no model: name one with --model")
            return await self._probe(server, listed.get(self.model, {}))
        finally:
            await server.close()

    async def _models(self, server: Transport) -> dict[str, Mapping[str, Any]]:
        try:
            told = await server.get("models")
            listed = {str(row["id"]): row for row in told["data"]}
        except (DreamGymError, ModelFault, KeyError, TypeError) as error:
            self.findings["models"] = f"not listed ({error})"[:200]
            return {}
        self.findings["models"] = ", ".join(listed)[:200]
        return listed

    async def _probe(self, server: Transport, listed: Mapping[str, Any]) -> Profile:
        profile = await self._plain(server)

        async def works(name: str, change: Mapping[str, Any], **extra: Any) -> bool:
            nonlocal profile
            tried = profile.model_copy(update=dict(change))
            told = await self._try(server, tried, name, **extra)
            if told is not None:
                profile = tried
            return told is not None

        if not await works("stream", {"stream": True}):
            self.findings["stream"] += "; answers come whole"
        system = [Message("system", "You are brief."), *_QUESTION]
        await works("system", {"system": True}, prompt=system)
        await works("seed", {"seed": True})
        await works("logprobs", {"logprobs": True}, needs=lambda a: bool(a.logprobs))
        await works("token_ids", {"token_ids": True}, needs=lambda a: bool(a.ids))
        await works("json_schema", {"json_schema": True}, body=_SCHEMA, needs=_is_json)
        thought = await self._try(server, profile, "reasoning")
        if thought and thought.reasoning_field:
            profile = profile.model_copy(update={"reasoning": thought.reasoning_field})
        self.findings["reasoning"] = profile.reasoning or "in the text, if any"
        context = listed.get("max_model_len") or listed.get("context_length")
        meta = listed.get("meta")
        if context is None and isinstance(meta, Mapping):
            context = meta.get("n_ctx_train")  # llama.cpp
        if isinstance(context, int) and context > 0:
            profile = profile.model_copy(update={"context": context})
        self.findings["context"] = str(profile.context or "not told")
        return profile

    async def _plain(self, server: Transport) -> Profile:
        """The least that a server must do, in whichever of its dialects."""
        least = Profile(stream=False, system=False, seed=False)
        dialects = [
            least,
            least.model_copy(update={"max_tokens": "max_completion_tokens"}),
            least.model_copy(update={"max_tokens": "max_completion_tokens", "temperature": False}),
        ]
        for dialect in dialects:
            if await self._try(server, dialect, "plain") is not None:
                return dialect
        raise DreamGymError(
            f"{server.url} answers no plain question to {self.model}: {self.findings['plain']}"
        )

    async def _try(
        self,
        server: Transport,
        profile: Profile,
        name: str,
        *,
        prompt: Sequence[Message] = _QUESTION,
        body: Mapping[str, Any] | None = None,
        needs: Callable[[Assembly], bool] = lambda told: True,
    ) -> Assembly | None:
        """The reply, or None where there was none, or not what was `needed`; both are noted."""
        asked = chat_body(self.model, prompt, _SHORT, profile) | dict(body or {})
        try:
            told = await server.ask("chat/completions", asked, f"probe-{name}")
        except (DreamGymError, ModelFault) as error:
            self.findings[name] = f"no ({error})"[:200]
            return None
        self.findings[name] = "yes" if needs(told) else "no (taken, and ignored)"
        return told if needs(told) else None


_SCHEMA = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
                "additionalProperties": False,
            },
        },
    }
}


def _is_json(told: Assembly) -> bool:
    try:
        return isinstance(json.loads("".join(told.text))["word"], str)
    except (ValueError, KeyError, TypeError):
        return False


async def probe_server(config: ServerConfig, model: str) -> tuple[str, Profile, dict[str, str]]:
    """Ask, and keep the answer where `load_profile` finds it; returns the model, too."""
    probe = Probe(config, model)
    profile = await probe.run()
    told = {"url": base_url(config), "model": probe.model, "findings": probe.findings}
    path = profile_path(config, probe.model)
    write_json(path, told | {"profile": profile.model_dump()})
    return probe.model, profile, probe.findings
