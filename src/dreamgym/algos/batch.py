"""Token rows: what was sampled is what is trained, and only on what the policy wrote."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from dreamgym.llm.base import Message
from dreamgym.llm.encoding import Codec
from dreamgym.types import Completion, Episode


class HasIds(Protocol):
    """Whatever is a sequence of tokens, and can be put beside others of like length."""

    @property
    def ids(self) -> tuple[int, ...]: ...


T = TypeVar("T", bound=HasIds)


@dataclass(frozen=True, slots=True)
class Row:
    """One growing sequence. `mask` is true where a token is trained on; the rest are (T,) or ()."""

    ids: tuple[int, ...]  # (T,)
    mask: tuple[bool, ...]  # (T,)
    logprobs: tuple[float, ...] = ()  # of the policy that the ratio compares with, 0 elsewhere
    advantages: tuple[float, ...] = ()  # 0 where not given
    weights: tuple[float, ...] = ()  # importance of a token, 1 where not given

    def __post_init__(self) -> None:
        sizes = [len(self.mask), *map(len, (self.logprobs, self.advantages, self.weights))]
        if sizes[0] != len(self.ids) or any(size not in (0, len(self.ids)) for size in sizes[1:]):
            raise ValueError(f"{len(self.ids)} ids, and {sizes} of what belongs to them")

    @property
    def num_trained(self) -> int:
        """How many tokens the policy wrote: never a span, which would count the world's too."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows, (B, T) each; nothing is optional."""

    ids: Tensor
    mask: Tensor
    logprobs: Tensor
    advantages: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        parts = (self.ids, self.mask, self.logprobs, self.advantages, self.weights)
        shapes = {part.shape for part in parts}
        if len(shapes) != 1 or self.ids.ndim != 2:
            raise ValueError(f"shapes differ: {shapes}")


def conversation_row(messages: Sequence[Message], encoder: Codec) -> Row:
    """A conversation to imitate: what the assistant writes is trained on, with its end token."""
    speakers = [message.role for message in messages]
    if encoder.mode == "turns" and "assistant" in speakers[:-1]:
        raise ValueError("the template rewrites earlier turns: a row holds one, its last message")
    ids = encoder.start(messages)
    mask = [False] * len(ids)
    for message in messages:
        opening, written, closing = encoder.parts(message)
        ids += [*opening, *written, *closing]
        mask += [False] * len(opening)
        mask += [message.role == "assistant"] * len(written)
        mask += [False] * len(closing)
    return Row(tuple(ids), tuple(mask))


@dataclass(frozen=True, slots=True)
class Written:
    """Where a turn's completion stands: `rows[row].ids[start:stop]`."""

    row: int
    start: int
    stop: int


def episode_rows(episode: Episode) -> tuple[list[Row], list[Written]]:
    """The tokens of an episode exactly as sampled, and where each turn's stand.

    One row while prompts only grow; where one does not open with what was sampled before it (a chat
    template that rewrites earlier turns), another row begins. Every completion is trained on once.
    """
    completions = [turn.completion for turn in episode.turns if turn.completion]
    if len(completions) != len(episode.turns) or not completions:
        raise ValueError("an episode without a language model's completions cannot be trained on")
    rows: list[Row] = []
    written: list[Written] = []
    ids: tuple[int, ...] = ()
    open_row: list[Completion] = []
    for completion in completions:
        if completion.prompt_ids[: len(ids)] != ids:
            rows.append(_row(open_row))
            open_row = []
        open_row.append(completion)
        start = len(completion.prompt_ids)
        ids = (*completion.prompt_ids, *completion.ids)
        written.append(Written(len(rows), start, len(ids)))
    return [*rows, _row(open_row)], written


def _row(completions: Sequence[Completion]) -> Row:
    """Completions whose prompts each open with the one before."""
    ids = (*completions[-1].prompt_ids, *completions[-1].ids)
    mask, logprobs = [False] * len(ids), [0.0] * len(ids)
    for completion in completions:
        span = slice(len(completion.prompt_ids), len(completion.prompt_ids) + len(completion.ids))
        mask[span] = [True] * len(completion.ids)
        logprobs[span] = completion.logprobs
    return Row(ids, tuple(mask), tuple(logprobs))


def credited(
    rows: Sequence[Row],
    written: Sequence[Written],
    advantages: Sequence[Sequence[float]],
    *,
    keep: bool = False,
) -> list[Row]:
    """Rows with the advantage of every token of every turn; tokens of 0 are read, not trained on.

    A row without any other is left out. With `keep` all that was written stays trained on, for an
    objective that is more than the advantages.
    """
    result = []
    for number, row in enumerate(rows):
        credit = [0.0] * len(row.ids)
        for place, given in zip(written, advantages, strict=True):
            if place.row == number:
                credit[place.start : place.stop] = given
        mask = row.mask if keep else tuple(value != 0 for value in credit)
        if any(mask):
            result.append(replace(row, mask=mask, advantages=tuple(credit)))
    return result


def make_batch(rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
    """Pad on the right: a causal model never sees the padding."""
    width = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask, logprobs, advantages = torch.zeros(3, len(rows), width)
    weights = torch.ones(len(rows), width)
    for i, row in enumerate(rows):
        span = slice(0, len(row.ids))
        ids[i, span] = torch.tensor(row.ids)
        mask[i, span] = torch.tensor(row.mask, dtype=torch.float)
        for whole, values in (
            (logprobs, row.logprobs),
            (advantages, row.advantages),
            (weights, row.weights),
        ):
            if values:
                whole[i, span] = torch.tensor(values)
    parts = (ids, mask, logprobs, advantages * mask, weights)
    return Batch(*(part.to(device) for part in parts))


def split_rows(rows: Sequence[T], num_tokens: int) -> list[list[T]]:
    """Rows of like length together, each part at most `num_tokens` padded tokens (or one row)."""
    parts: list[list[T]] = []
    for row in sorted(rows, key=lambda r: len(r.ids)):
        if parts and (len(parts[-1]) + 1) * len(row.ids) <= num_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def deal_rows(rows: Sequence[T], num_tokens: int, rng: random.Random) -> list[list[T]]:
    """Every row once, in a random order, in parts of about `num_tokens` tokens (or one row)."""
    order = list(rows)
    rng.shuffle(order)
    parts: list[list[T]] = []
    size = num_tokens
    for row in order:
        if size + len(row.ids) > num_tokens:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += len(row.ids)
    return parts
