"""The OpenAI protocol as data: what a request says, what a reply may say. No network here.

A reply is data from outside: it is read strictly, and whatever it is not has a class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from dreamgym.llm.base import Message, Sampling
from dreamgym.types import Completion, Usage

_CONTROL = re.compile(
    r"<(?=[|｜][^<>\s]{1,64}[|｜]>)"  # <|im_end|>, <|eot_id|>, <｜User｜>
    r"|<(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])"
    r"|<(?=</?SYS>>)",
)
BLANKS = 200
"""So many blanks in a row are no answer: constrained decoding is known to end in them."""
_BLANK_RUN = re.compile(rf"\s{{{BLANKS},}}\Z")

Finish = Literal["stop", "length"]
_FINISH: Mapping[str, Finish] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
}


class Unreadable(Exception):
    """A reply that is none. `kind` names its class; asking again may help."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class Profile(BaseModel):
    """What a server can do. `dreamgym doctor --endpoint URL` finds out; the client goes by it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    stream: bool = True
    system: bool = True
    """Whether a conversation may begin with a system message."""
    temperature: bool = True
    """Whether it may be set: some reasoning models refuse it."""
    seed: bool = True
    logprobs: bool = False
    token_ids: bool = False
    """Whether it tells the tokens it has read and written (vLLM's `return_token_ids`)."""
    json_schema: bool = False
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    context: Annotated[int, Field(ge=1)] | None = None
    """Tokens, where known."""
    reasoning: Literal["", "reasoning_content", "reasoning"] = ""
    """The field in which it puts what it thinks; empty where that stands in the text."""


def harmless(text: str) -> str:
    """The text with whatever a chat template would read as a control token taken apart.

    A server encodes a message's text as it does its own markers, so what a world says could end a
    turn there. The same text comes out the same, so prompts still only grow.
    """
    return _CONTROL.sub(lambda found: found[0] + " ", text)


def chat_messages(prompt: Sequence[Message], profile: Profile) -> list[dict[str, str]]:
    """Messages that any chat template takes: system first or never, then user and assistant by
    turns. What several messages told before an answer stands in one, a paragraph each."""
    told: list[dict[str, str]] = []
    for message in prompt:
        role = message.role
        if role == "system" and (told or not profile.system):
            role = "user"
        text = harmless(message.text)
        if told and told[-1]["role"] == role:
            told[-1]["content"] += f"\n\n{text}"
        else:
            told.append({"role": role, "content": text})
    return told


def chat_body(
    model: str, prompt: Sequence[Message], sampling: Sampling, profile: Profile
) -> dict[str, Any]:
    """The JSON of one request for a chat completion."""
    body: dict[str, Any] = {"model": model, "messages": chat_messages(prompt, profile)}
    return body | _sampling(sampling, profile) | ({"logprobs": True} if profile.logprobs else {})


def completion_body(
    model: str, ids: Sequence[int], sampling: Sampling, profile: Profile
) -> dict[str, Any]:
    """The JSON of one request that continues token ids, `(T,)`: token in, token out."""
    body: dict[str, Any] = {"model": model, "prompt": list(ids)}
    return body | _sampling(sampling, profile) | ({"logprobs": 1} if profile.logprobs else {})


def _sampling(sampling: Sampling, profile: Profile) -> dict[str, Any]:
    body: dict[str, Any] = {profile.max_tokens: sampling.max_tokens, "stream": profile.stream}
    if profile.temperature:
        body["temperature"] = sampling.temperature
    if profile.seed:
        body["seed"] = sampling.seed % (1 << 31)
    if profile.stream:
        body["stream_options"] = {"include_usage": True}
    if profile.token_ids:
        body["return_token_ids"] = True
    return body


class _Data(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Token(_Data):
    token: str
    logprob: FiniteFloat


def _chat_only(value: Any) -> Any:
    """`/completions` has another shape under the same name, which `_LegacyLogprobs` reads."""
    return value if isinstance(value, dict) and "content" in value else None


class _Logprobs(_Data):
    content: list[_Token] | None = None


class _Words(_Data):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _LegacyLogprobs(_Data):
    tokens: list[str] = []
    token_logprobs: list[FiniteFloat | None] = []


class _Choice(_Data):
    index: int = 0
    delta: _Words | None = None
    message: _Words | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Annotated[_Logprobs | None, BeforeValidator(_chat_only)] = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


_Count = Annotated[int, Field(ge=0)] | None


class _Cached(_Data):
    cached_tokens: _Count = None


class _Usage(_Data):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Cached | None = None


class _Reply(_Data):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


@dataclass(slots=True)
class Assembly:
    """One reply, piece by piece; a reply that is not streamed is one piece."""

    text: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    usage: Usage | None = None
    reasoning_field: str = ""
    degenerate: bool = False

    def add(self, raw: bytes | str) -> None:
        """Read one JSON document of the reply; raises Unreadable."""
        try:
            document = json.loads(raw)
            reply = _Reply.model_validate(document)
        except (ValueError, RecursionError) as error:  # ValidationError is a ValueError
            detail = _first(error) if isinstance(error, ValidationError) else str(error)
            raise Unreadable("GARBAGE", detail) from error
        if reply.error:
            raise Unreadable("SERVER_ERROR", str(reply.error)[:200])
        if reply.usage:
            details = reply.usage.prompt_tokens_details
            self.usage = Usage(
                reply.usage.prompt_tokens,
                reply.usage.completion_tokens,
                details.cached_tokens if details else None,
            )
        self.prompt_ids += reply.prompt_token_ids or []
        for choice in reply.choices:
            if choice.index == 0:
                self._add_choice(choice, document["choices"])

    def _add_choice(self, choice: _Choice, raw: Any) -> None:
        words = choice.delta or choice.message or _Words(content=choice.text)
        self.text.append(words.content or "")
        if thought := words.reasoning_content or words.reasoning:
            self.reasoning_field = "reasoning_content" if words.reasoning_content else "reasoning"
            self.thought.append(thought)
        self.ids += choice.token_ids or []
        self.prompt_ids += choice.prompt_token_ids or []
        tokens = choice.logprobs.content or [] if choice.logprobs else _legacy(raw)
        self.pieces += [token.token for token in tokens]
        self.logprobs += [token.logprob for token in tokens]
        if choice.finish_reason is not None:
            self.finish = _finish(choice.finish_reason)
        if words.content and words.content.isspace():
            tail = "".join(self.text[-BLANKS:])
            self.degenerate = self.degenerate or bool(_BLANK_RUN.search(tail))

    def require_end(self) -> None:
        """Raises Unreadable where the reply ends before it says that it does."""
        if self.degenerate:
            self.finish = "length"  # it would have gone on
        if self.finish is None:
            raise Unreadable("CUT_OFF", "the reply ends before it says that it does")

    def completion(self) -> Completion:
        """The whole reply."""
        assert self.finish is not None, "a reply without an end is none"
        text = "".join(self.text)
        if self.thought:
            # an answer of nothing but thoughts is one whose thoughts were cut
            closing = "</think>" if text else ""
            text = f"<think>{''.join(self.thought)}{closing}{text}"
        return Completion(
            text=text,
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            prompt_ids=tuple(self.prompt_ids),
            pieces=tuple(self.pieces),
            finish_reason=self.finish,
            usage=self.usage,
        )


def _finish(reason: str) -> Finish:
    if reason == "content_filter":
        raise Unreadable("FILTERED", "the server's filter took the reply away")
    if reason not in _FINISH:
        raise Unreadable("UNKNOWN_FINISH", repr(reason[:40]))
    return _FINISH[reason]


def _legacy(choices: Any) -> list[_Token]:
    """Log-probabilities as `/completions` tells them."""
    told = choices[0].get("logprobs") if isinstance(choices[0], dict) else None
    if not isinstance(told, dict) or "tokens" not in told:
        return []
    try:
        both = _LegacyLogprobs.model_validate(told)
    except ValidationError as error:
        raise Unreadable("GARBAGE", _first(error)) from error
    return [
        _Token(token=token, logprob=value)
        for token, value in zip(both.tokens, both.token_logprobs, strict=False)
        if value is not None
    ]


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
