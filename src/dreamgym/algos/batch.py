"""Token rows: what was sampled is what is trained, and only on what the policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dreamgym.llm.base import Message
from dreamgym.llm.local import Encoder
from dreamgym.types import Episode


@dataclass(frozen=True, slots=True)
class Row:
    """One growing sequence. `mask` is true where a token is trained on."""

    ids: tuple[int, ...]  # (T,)
    mask: tuple[bool, ...]  # (T,)
    logprobs: tuple[float, ...] = ()  # (T,) of the sampler, 0 elsewhere
    advantage: float = 0.0  # one scalar per episode

    def __post_init__(self) -> None:
        if len(self.mask) != len(self.ids) or len(self.logprobs) not in (0, len(self.ids)):
            raise ValueError(
                f"{len(self.ids)} ids, {len(self.mask)} mask, {len(self.logprobs)} logprobs"
            )

    @property
    def num_trained(self) -> int:
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows, (B, T) each; nothing is optional."""

    ids: Tensor
    mask: Tensor
    logprobs: Tensor
    advantages: Tensor

    def __post_init__(self) -> None:
        shapes = {t.shape for t in (self.ids, self.mask, self.logprobs, self.advantages)}
        if len(shapes) != 1 or self.ids.ndim != 2:
            raise ValueError(f"shapes differ: {shapes}")


def conversation_row(messages: Sequence[Message], encoder: Encoder) -> Row:
    """A conversation to imitate: what the assistant says is trained on."""
    ids: list[int] = []
    mask: list[bool] = []
    for message in messages:
        piece = encoder.message(message)
        ids += piece
        mask += [False, *[message.role == "assistant"] * (len(piece) - 1)]
    return Row(tuple(ids), tuple(mask))


def episode_row(episode: Episode, advantage: float, *, refused: bool = True) -> Row:
    """The tokens of an episode exactly as sampled; raises if its prompts did not only grow.

    Without `refused`, what was written for turns that the world refused is not trained on.
    """
    completions = [turn.completion for turn in episode.turns if turn.completion]
    if len(completions) != len(episode.turns) or not completions:
        raise ValueError("an episode without a language model's completions cannot be trained on")
    last = completions[-1]
    ids = (*last.prompt_ids, *last.ids)
    mask = [False] * len(ids)
    logprobs = [0.0] * len(ids)
    for turn, completion in zip(episode.turns, completions, strict=True):
        start = len(completion.prompt_ids)
        stop = start + len(completion.ids)
        if ids[:start] != completion.prompt_ids or ids[start:stop] != completion.ids:
            raise ValueError("a turn's prompt does not open the episode's last one")
        mask[start:stop] = [turn.valid or refused] * len(completion.ids)
        logprobs[start:stop] = completion.logprobs
    return Row(ids, tuple(mask), tuple(logprobs), advantage)


def make_batch(rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
    """Pad on the right: a causal model never sees the padding."""
    width = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width)
    logprobs = torch.zeros(len(rows), width)
    advantages = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        size = len(row.ids)
        ids[i, :size] = torch.tensor(row.ids)
        mask[i, :size] = torch.tensor(row.mask, dtype=torch.float)
        if row.logprobs:
            logprobs[i, :size] = torch.tensor(row.logprobs)
        advantages[i, :size] = row.advantage
    return Batch(*(t.to(device) for t in (ids, mask, logprobs, advantages * mask)))


def token_logprobs(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Log-probabilities (B, T) of the masked tokens, 0 elsewhere; logits only where they count."""
    hidden = model.model(input_ids=batch.ids).last_hidden_state
    wanted = batch.mask[:, 1:].bool()
    logits = model.lm_head(hidden[:, :-1][wanted]).float() / temperature
    picked = logits.log_softmax(dim=-1).gather(1, batch.ids[:, 1:][wanted][:, None])[:, 0]
    result = torch.zeros_like(batch.logprobs)
    result[:, 1:][wanted] = picked
    return result


def split_rows(rows: Sequence[Row], num_tokens: int) -> list[list[Row]]:
    """Rows of like length together, each part at most `num_tokens` padded tokens (or one row)."""
    parts: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: len(r.ids)):
        if parts and (len(parts[-1]) + 1) * len(row.ids) <= num_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
