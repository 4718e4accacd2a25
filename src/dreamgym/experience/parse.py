"""Reads the experience model's answers. What cannot be read has a class; it is never a reward 0."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.experience.prompts import Answer
from dreamgym.types import Completion, DreamFault

_MAX_CHARS = 100_000
_MAX_DEPTH = 16
_MAX_DIGITS = 18
_BLANK_RUN = re.compile(r"(?<!\s)\s{200}")  # tried once a run, or many short runs would take long
_SECTIONS = ("next_state", "reward", "done")
_NUMBER = re.compile(r"[+-]?\d{1,40}(?:\.\d{0,400})?(?:[eE][+-]?\d{1,4})?")


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    next_state: Annotated[str, Field(min_length=1)]
    reward: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    done: bool


class _Refused(ValueError):
    """JSON that Python would read and we do not: doubled keys, NaN, endless numbers."""


def read_answer(completion: Completion) -> Answer:
    """The one valid answer in a completion; raises DreamFault with the class of what is wrong."""
    text = completion.text
    if _BLANK_RUN.search(text):
        raise DreamFault("DEGENERATE", "a run of blanks")
    rest, reason, stripped = strip_reasoning(text)
    if rest is None:
        raise DreamFault("TRUNCATED_REASONING", text[-80:])
    if not rest.strip():
        cut = completion.finish_reason == "length"
        raise DreamFault("TRUNCATED_REASONING" if cut else "EMPTY", text[-80:])
    if len(rest) > _MAX_CHARS:
        raise DreamFault("TOO_LONG", f"{len(rest)} characters")
    cut = completion.finish_reason == "length"
    tagged = any(f"<{name}>" in rest for name in _SECTIONS)
    body = _validate(_tagged(rest, cut) if tagged else _json(rest, cut))
    if body.reward > 0 and not body.done:
        raise DreamFault("CONTRADICTION", "a reward before the end: the paper pays outcomes only")
    return Answer(
        next_state=body.next_state,
        reward=body.reward,
        done=body.done,
        reason=reason,
        parse_class="OK_AFTER_STRIP" if stripped else "OK",
        logprob=_state_logprob(completion),
    )


def _json(text: str, cut: bool) -> dict[str, Any]:
    """The one object of an answer in JSON."""
    bodies = objects(text, ("reward", "next_state"))
    if not bodies:
        raise DreamFault("TRUNCATED" if cut else "UNREPAIRABLE", text[:80])
    if len(bodies) > 1 and any(body != bodies[0] for body in bodies):
        raise DreamFault("AMBIGUOUS", f"{len(bodies)} answers")
    return bodies[0]


def _tagged(text: str, cut: bool) -> dict[str, Any]:
    """The sections of a tagged answer: long states need no escapes there.

    Each must stand exactly once, also counting what stands inside another: a state that quotes a
    reward is no reward, and which of two is meant is not for us to guess.
    """
    told: dict[str, str] = {}
    for name in _SECTIONS:
        opens, closes = text.count(f"<{name}>"), text.count(f"</{name}>")
        if opens > 1 or closes > 1:
            raise DreamFault("AMBIGUOUS", f"{max(opens, closes)} sections {name}")
        begin, end = text.find(f"<{name}>") + len(name) + 2, text.find(f"</{name}>")
        if not opens or not closes or end < begin:
            raise DreamFault("TRUNCATED" if cut else "UNREPAIRABLE", f"no whole section {name}")
        told[name] = text[begin:end].strip()
    if any(f"<{name}>" in told[other] for name in _SECTIONS for other in _SECTIONS):
        raise DreamFault("AMBIGUOUS", "one section in another")
    if not _NUMBER.fullmatch(told["reward"]):
        raise DreamFault("UNREPAIRABLE", f"reward: {told['reward'][:40]!r} is no number")
    if told["done"].casefold() not in ("true", "false"):
        raise DreamFault("UNREPAIRABLE", f"done: {told['done'][:40]!r}")
    return {
        "next_state": told["next_state"],
        "reward": float(told["reward"]),
        "done": told["done"].casefold() == "true",
    }


def _state_logprob(completion: Completion) -> float:
    """Mean log-probability of the tokens that write the next state, of all where they are not told.

    A reason is one of several ways to say it, so its tokens tell little of what the model knows.
    """
    if not completion.logprobs:
        return math.nan
    tagged = "<next_state>" in completion.text
    opens, closes = ("<next_state>", "</next_state>") if tagged else ('"next_state":', '"reward":')
    begin = completion.text.rfind(opens)
    if begin < 0 or "".join(completion.pieces) != completion.text:
        return sum(completion.logprobs) / len(completion.logprobs)
    begin += len(opens)
    end = completion.text.find(closes, begin)
    at, kept = 0, []
    for piece, logprob in zip(completion.pieces, completion.logprobs, strict=False):
        if at + len(piece) > begin and (end < 0 or at < end):
            kept.append(logprob)
        at += len(piece)
    return sum(kept) / len(kept)


def strip_reasoning(text: str) -> tuple[str | None, str, bool]:
    """(what follows the reasoning, None if it never ends; the reasoning; if there was any)."""
    kept, reasons = "", []
    while "<think>" in text:  # a second block is no answer either
        head, _, tail = text.partition("<think>")
        reason, closed, text = tail.partition("</think>")
        if not closed:
            return None, reason, True
        kept += head
        reasons.append(reason.strip())
    return kept + text, "\n".join(reasons), bool(reasons)


def objects(text: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Every outermost JSON object that has one of the keys; DreamFault where JSON is abused."""
    if _depth(text) > _MAX_DEPTH:
        raise DreamFault("TOO_DEEP", f"more than {_MAX_DEPTH} brackets")
    decoder = json.JSONDecoder(
        object_pairs_hook=_no_doubles, parse_constant=_no_constant, parse_int=_whole_number
    )
    found: list[dict[str, Any]] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except _Refused as error:
            raise DreamFault("REFUSED", str(error)) from error
        except json.JSONDecodeError:
            end = at + 1
        else:
            if any(key in value for key in keys):
                found.append(value)
        at = text.find("{", end)
    return found


def _depth(text: str) -> int:
    """How deep the brackets nest, those in strings too; enough to refuse what would recurse."""
    depth = most = 0
    for char in text:
        if char in "[{":
            depth += 1
            most = max(most, depth)
        elif char in "]}":
            depth = max(0, depth - 1)
    return most


def _validate(value: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        limits = ("greater_than_equal", "less_than_equal", "finite_number")
        kind = "OUT_OF_RANGE" if first["type"] in limits else "UNREPAIRABLE"
        raise DreamFault(kind, f"{field}: {first['msg']}") from error


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise _Refused(f"a key stands twice in {keys}")
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise _Refused(f"{name} is no number")


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # Python itself gives up on very long ones
        raise _Refused(f"a number of {len(digits)} digits")
    return int(digits)
