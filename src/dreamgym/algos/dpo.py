"""DPO: preferring a solved episode to a failed one of the same task (arXiv 2305.18290)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from dreamgym.algos.batch import Row, make_batch
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.optim import make_optimizers, set_learning_rate
from dreamgym.algos.settings import DPOConfig
from dreamgym.types import Episode

Pair = tuple[Row, Row]
"""What was solved, what was not."""


def dpo_loss(
    chosen: Tensor, rejected: Tensor, held_chosen: Tensor, held_rejected: Tensor, *, beta: float
) -> tuple[Tensor, dict[str, float]]:
    """-log σ(β (log-ratio of the chosen - log-ratio of the rejected)), mean over pairs (N,).

    Log-probabilities are sums over what the policy wrote; `held_*` are the reference's.
    """
    margin = beta * ((chosen - held_chosen) - (rejected - held_rejected))
    return -F.logsigmoid(margin).mean(), {
        "dpo/margin": margin.mean().item(),
        "dpo/accuracy": (margin > 0).float().mean().item(),
    }


def preference_pairs(
    episodes: Iterable[Episode], most: int, *, seed: int
) -> list[tuple[Episode, Episode]]:
    """(solved, failed) attempts at one task, each attempt in one pair at most; a fault is none.

    A task is its id: equal instructions in two places are two tasks.
    """
    solved: dict[str, list[Episode]] = defaultdict(list)
    failed: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.turns and not episode.ending.is_fault:
            (solved if episode.success else failed)[episode.task.id].append(episode)
    pairs = [
        pair
        for task in sorted(solved.keys() & failed.keys())
        for pair in zip(solved[task], failed[task], strict=False)
    ]
    random.Random(seed).shuffle(pairs)
    return pairs[:most]


def fit_dpo(
    model: PreTrainedModel,
    pairs: Sequence[Pair],
    config: DPOConfig,
    *,
    seed: int,
    on_step: Callable[[int, float], None] = lambda pairs, loss: None,
) -> dict[str, float]:
    """Train in place, the model as it begins for a reference; mean metrics of the last tenth."""
    if not pairs:
        raise ValueError("there is no pair to learn from")
    held = [_sums(model, list(pair)).tolist() for pair in pairs]
    optimizers = make_optimizers(model, config.learning_rate, muon=False)
    order = [i for _ in range(config.epochs) for i in _shuffled(len(pairs), seed)]
    seen: list[dict[str, float]] = []
    for start in range(0, len(order), config.pairs_per_step):
        part = order[start : start + config.pairs_per_step]
        set_learning_rate(optimizers, config.learning_rate * (1 - start / len(order)))
        sums: dict[str, float] = defaultdict(float)
        for index in part:  # pair by pair: the loss is a mean, memory that of two episodes
            chosen, rejected = _sums(model, list(pairs[index]), grad=True)
            loss, metrics = dpo_loss(chosen, rejected, *torch.tensor(held[index]), beta=config.beta)
            (loss / len(part)).backward()
            for name, value in (metrics | {"dpo/loss": loss.item()}).items():
                sums[name] += value / len(part)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen.append(dict(sums))
        on_step(start + len(part), sums["dpo/loss"])
    tail = seen[-max(1, len(seen) // 10) :]
    return {name: sum(step[name] for step in tail) / len(tail) for name in tail[0]}


def _sums(model: PreTrainedModel, rows: Sequence[Row], *, grad: bool = False) -> Tensor:
    """The log-probability (B,) of all that the policy wrote in each row."""
    with torch.set_grad_enabled(grad):
        return token_logprobs(model, make_batch(rows, model.device)).sum(dim=1)


def _shuffled(number: int, seed: int) -> list[int]:
    order = list(range(number))
    random.Random(seed).shuffle(order)
    return order
