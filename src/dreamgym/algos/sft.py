"""Supervised training: the experience model's Eq. 5, and behaviour cloning of demonstrations."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from dreamgym.algos.batch import Batch, Row, make_batch, split_rows
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.optim import (
    load_optimizers,
    make_optimizers,
    save_optimizers,
    set_learning_rate,
)
from dreamgym.algos.settings import SFTConfig
from dreamgym.run_folder import settled, swap_folder


def sft_loss(logprobs: Tensor, batch: Batch, num_tokens: float) -> Tensor:
    """Eq. 5: the negative log-probability of the masked tokens, summed and divided by `num_tokens`.

    The same number for every step: rows of like length share a step, and a step of short rows that
    are mostly noise must not weigh as much as one that is full of tokens to learn.
    """
    return -(logprobs * batch.mask).sum() / num_tokens


def fit(
    model: PreTrainedModel,
    rows: Sequence[Row],
    config: SFTConfig,
    *,
    seed: int,
    first: Sequence[Row] = (),
    checkpoint: Path | None = None,
    on_step: Callable[[int, float], None] = lambda tokens, loss: None,
) -> float:
    """Train in place for `config.num_tokens`; returns the mean loss of the last tenth of the steps.

    For `config.first_share` of the tokens only the rows of `first` are read, where there are any: a
    skill forms sooner before rows that cannot be predicted join in. With a `checkpoint` folder a
    killed fit goes on where it last saved, to the same numbers.
    """
    rows = [row for row in rows if row.num_trained]
    first = [row for row in first if row.num_trained]
    if not rows:
        raise ValueError("there is nothing to train on")
    optimizers = make_optimizers(model, config.learning_rate, muon=config.optimizer == "muon")
    losses = _resume(model, optimizers, checkpoint)
    # what a step trains on, on average
    trained = sum(row.num_trained for row in rows) / sum(len(row.ids) for row in rows)
    scale_tokens = config.tokens_per_step * trained
    model.train()
    seen, saved = 0, 0
    rng = random.Random(seed)
    early = _endless(first or rows, config.tokens_per_step, rng)
    late = _endless(rows, config.tokens_per_step, rng)
    for step in itertools.count():
        if seen >= config.num_tokens:
            break
        part = next(early if seen < config.first_share * config.num_tokens else late)
        done = seen / config.num_tokens
        seen += sum(len(row.ids) for row in part)
        if step < len(losses):
            saved = seen
            continue  # this step was taken before the run was killed
        scale = min(1.0, (step + 1) / max(1, config.warmup_steps)) * (1 - done)
        set_learning_rate(optimizers, config.learning_rate * scale)
        losses.append(_step(model, optimizers, make_batch(part, model.device), scale_tokens))
        on_step(seen, losses[-1])
        if checkpoint and seen - saved >= config.save_every:
            saved = seen
            _save(model, optimizers, losses, checkpoint)
    model.eval()
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)


def _step(
    model: PreTrainedModel,
    optimizers: list[torch.optim.Optimizer],
    batch: Batch,
    num_tokens: float,
) -> float:
    """One update; returns the mean loss of the step's own tokens."""
    loss = sft_loss(token_logprobs(model, batch), batch, num_tokens)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item() * num_tokens / float(batch.mask.sum())


def _save(
    model: PreTrainedModel,
    optimizers: list[torch.optim.Optimizer],
    losses: list[float],
    folder: Path,
) -> None:
    """A new folder in one rename, so that a kill leaves the old or the new one."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh)
    save_optimizers(optimizers, fresh / "optimizer.safetensors")
    (fresh / "losses.json").write_text(json.dumps(losses))
    swap_folder(fresh, folder)


def _resume(
    model: PreTrainedModel, optimizers: list[torch.optim.Optimizer], folder: Path | None
) -> list[float]:
    folder = settled(folder) if folder else None
    if folder is None:
        return []
    weights = load_file(folder / "model.safetensors")
    # tied weights are stored once
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or any(name != "lm_head.weight" for name in missing):
        raise ValueError(f"{folder} holds another model: {missing or unexpected}")
    load_optimizers(optimizers, folder / "optimizer.safetensors")
    return json.loads((folder / "losses.json").read_text())


def _endless(rows: Sequence[Row], num_tokens: int, rng: random.Random) -> Iterator[list[Row]]:
    """Parts of like length, in an order that mixes lengths, for ever."""
    while True:
        order = list(rows)
        rng.shuffle(order)
        for start in range(0, len(order), 64):
            parts = split_rows(order[start : start + 64], num_tokens)
            rng.shuffle(parts)
            yield from parts
