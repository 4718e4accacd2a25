"""Owns the policy's weights and optimiser, and turns groups of episodes into one update."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.algos.batch import (
    Batch,
    Row,
    episode_row,
    make_batch,
    split_rows,
    token_logprobs,
)
from dreamgym.algos.grpo import group_advantages, grpo_loss, reference_kl
from dreamgym.algos.optim import (
    load_optimizers,
    make_optimizers,
    save_optimizers,
    set_learning_rate,
)
from dreamgym.algos.settings import LearnerConfig
from dreamgym.algos.sft import sft_loss
from dreamgym.llm.local import LocalLLM
from dreamgym.types import Group

SkipReason = Literal["ALL_EQUAL", "FAULTS"]


class Learner:
    """GRPO on one policy. `step` counts updates asked for, also those without a signal."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        config: LearnerConfig,
        *,
        temperature: float = 1.0,
        num_updates: int | None = None,
        demonstrations: Sequence[Row] = (),
        reference: PreTrainedModel | None = None,
    ) -> None:
        """`reference` is what `config.kl` holds the policy to; a copy of `model` if not given.

        The learning rate falls to 0 over `num_updates`, or stays where none is given; of the
        `demonstrations` each update imitates `config.demonstrations`.
        """
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.reference = None
        if config.kl:
            self.reference = (reference or copy.deepcopy(model)).eval().requires_grad_(False)
        self.temperature = temperature  # log-probabilities are taken as they were sampled
        self.optimizers = make_optimizers(
            model, config.learning_rate, muon=config.optimizer == "muon"
        )
        self.num_updates, self.demonstrations = num_updates, list(demonstrations)
        self.step = self.num_optimised = 0
        model.eval()  # no dropout: the ratio must be 1 on the first pass

    def policy(self, *, slots: int = 64, context: int | None = None) -> LocalLLM:
        """A new handle on the weights as they are now: none is stale to sample from."""
        return LocalLLM(self.model, self.tokenizer, slots=slots, context=context)

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One GRPO update. Without a single unequal group it changes nothing, and says so."""
        rows, skipped = group_rows(groups, self.config)
        done, self.step = self.step, self.step + 1
        metrics = {f"skipped/{reason.lower()}": float(skipped[reason]) for reason in skipped}
        metrics["train/informative_groups"] = 1 - sum(skipped.values()) / max(1, len(groups))
        metrics["train/tokens"] = float(sum(row.num_trained for row in rows))
        if not rows:
            return metrics
        rng = random.Random(self.step)
        number = min(self.config.demonstrations, len(self.demonstrations))
        rows = rows + rng.sample(self.demonstrations, number)
        parts = [
            part
            for _ in range(self.config.epochs)
            for part in deal_rows(rows, self.config.minibatch_tokens, rng)
        ]
        # the same for every step: one that happens to be short must not weigh as much as a full one
        num_tokens = sum(row.num_trained for row in rows) * self.config.epochs / len(parts)
        sums: Counter[str] = Counter()
        for number, part in enumerate(parts):
            progress = (done + number / len(parts)) / self.num_updates if self.num_updates else 0.0
            set_learning_rate(self.optimizers, self._learning_rate(progress))
            sums.update(self._optimise(part, num_tokens))
        return metrics | {name: value / len(parts) for name, value in sums.items()}

    def _learning_rate(self, progress: float) -> float:
        warm = min(1.0, (self.num_optimised + 1) / (self.config.warmup_steps + 1))
        return self.config.learning_rate * warm * max(0.0, 1 - progress)

    def _optimise(self, rows: Sequence[Row], num_tokens: float) -> dict[str, float]:
        sums: Counter[str] = Counter()
        sampled = [row for row in rows if row.logprobs]
        shown = [row for row in rows if not row.logprobs]
        for part in split_rows(sampled, self.config.micro_tokens):
            loss, metrics = self._policy_loss(make_batch(part, self.model.device), num_tokens)
            loss.backward()
            sums.update(metrics)
        for part in split_rows(shown, self.config.micro_tokens):
            batch = make_batch(part, self.model.device)
            loss = sft_loss(token_logprobs(self.model, batch), batch, num_tokens)
            loss.backward()
            sums.update({"policy/imitation_loss": loss.item()})
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm}: the update was not applied")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.num_optimised += 1
        return dict(sums) | {"policy/grad_norm": float(norm)}

    def _policy_loss(self, batch: Batch, num_tokens: float) -> tuple[Tensor, dict[str, float]]:
        logprobs = token_logprobs(self.model, batch, self.temperature)
        clip = (self.config.clip_low, self.config.clip_high)
        loss, metrics = grpo_loss(logprobs, batch, clip=clip, num_tokens=num_tokens)
        metrics["policy/loss"] = loss.item()
        if self.reference is not None:
            with torch.no_grad():
                held = token_logprobs(self.reference, batch, self.temperature)
            divergence = reference_kl(logprobs, held, batch, num_tokens)
            metrics["policy/kl_to_reference"] = divergence.item()
            loss = loss + self.config.kl * divergence
        return loss, metrics

    def save(self, folder: Path) -> None:
        """Weights in Hugging Face's format; the optimiser's tensors as safetensors."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        save_optimizers(self.optimizers, folder / "optimizer.safetensors")
        (folder / "learner.json").write_text(
            json.dumps({"step": self.step, "num_optimised": self.num_optimised})
        )

    def load_optimizer(self, folder: Path) -> None:
        """Continue where `save` left off; the weights are loaded by whoever makes the model."""
        load_optimizers(self.optimizers, folder / "optimizer.safetensors")
        state = json.loads((folder / "learner.json").read_text())
        self.step, self.num_optimised = state["step"], state["num_optimised"]


def group_rows(
    groups: Sequence[Group], config: LearnerConfig
) -> tuple[list[Row], Counter[SkipReason]]:
    """Rows with Eq. 3's advantages, those below 0 times `negative`; a row of 0 is left out.

    Faults have no reward: they leave the group's statistics. A group that teaches nothing is
    skipped before any forward pass, and counted by reason.
    """
    rows: list[Row] = []
    skipped: Counter[SkipReason] = Counter()
    for group in groups:
        valid = [e for e in group.episodes if not e.ending.is_fault and e.turns]
        if len(valid) < 2:
            skipped["FAULTS"] += 1
            continue
        advantages = group_advantages(torch.tensor([e.reward for e in valid], dtype=torch.float64))
        if not advantages.any():
            skipped["ALL_EQUAL"] += 1
            continue
        for episode, advantage in zip(valid, advantages.tolist(), strict=True):
            weighted = advantage * (config.negative if advantage < 0 else 1.0)
            if weighted:
                credited = weighted < 0 or config.credit_refused
                rows.append(episode_row(episode, weighted, refused=credited))
    return rows, skipped


def deal_rows(rows: Sequence[Row], num_tokens: int, rng: random.Random) -> list[list[Row]]:
    """Every row once, in a random order, in parts of about `num_tokens` tokens (or one row)."""
    order = list(rows)
    rng.shuffle(order)
    parts: list[list[Row]] = []
    size = num_tokens
    for row in order:
        if size + len(row.ids) > num_tokens:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += len(row.ids)
    return parts
