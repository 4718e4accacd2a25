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
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.algos.batch import Row, episode_row, make_batch, split_rows, token_logprobs
from dreamgym.algos.grpo import group_advantages, grpo_loss, reference_kl
from dreamgym.algos.optim import (
    load_optimizers,
    make_optimizers,
    save_optimizers,
    set_learning_rate,
)
from dreamgym.algos.settings import LearnerConfig
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
        reference: PreTrainedModel | None = None,
    ) -> None:
        """`reference` is what `config.kl` holds the policy to; a copy of `model` if not given."""
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.reference = None
        if config.kl:
            self.reference = (reference or copy.deepcopy(model)).eval().requires_grad_(False)
        model.get_input_embeddings().weight.requires_grad_(config.embeddings)
        self.temperature = temperature  # log-probabilities are taken as they were sampled
        self.optimizers = make_optimizers(model, config.learning_rate, muon=False)
        self.step = 0
        model.eval()  # no dropout: the ratio must be 1 on the first pass

    def policy(self, *, slots: int = 64, context: int | None = None) -> LocalLLM:
        """A new handle on the weights as they are now: none is stale to sample from."""
        return LocalLLM(self.model, self.tokenizer, slots=slots, context=context)

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One GRPO update. Without a single unequal group it changes nothing, and says so."""
        rows, skipped = group_rows(groups)
        self.step += 1
        metrics = {f"skipped/{reason.lower()}": float(skipped[reason]) for reason in skipped}
        metrics["train/informative_groups"] = 1 - sum(skipped.values()) / max(1, len(groups))
        metrics["train/tokens"] = float(sum(row.num_trained for row in rows))
        if not rows:
            return metrics
        sums: Counter[str] = Counter()
        rng = random.Random(self.step)
        warm = min(1.0, self.step / (self.config.warmup_steps + 1))
        set_learning_rate(self.optimizers, self.config.learning_rate * warm)
        num_steps = 0
        for _ in range(self.config.epochs):
            order = list(rows)
            rng.shuffle(order)
            size = -(-len(order) // self.config.minibatches)
            for start in range(0, len(order), size):
                sums.update(self._optimise(order[start : start + size]))
                num_steps += 1
        return metrics | {name: value / num_steps for name, value in sums.items()}

    def _optimise(self, rows: Sequence[Row]) -> dict[str, float]:
        num_tokens = sum(row.num_trained for row in rows)
        sums: Counter[str] = Counter()
        for part in split_rows(rows, self.config.micro_tokens):
            batch = make_batch(part, self.model.device)
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
            loss.backward()
            sums.update(metrics)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm}: the update was not applied")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return dict(sums) | {"policy/grad_norm": float(norm)}

    def save(self, folder: Path) -> None:
        """Weights in Hugging Face's format; the optimiser's tensors as safetensors."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        save_optimizers(self.optimizers, folder / "optimizer.safetensors")
        (folder / "learner.json").write_text(json.dumps({"step": self.step}))

    def load_optimizer(self, folder: Path) -> None:
        """Continue where `save` left off; the weights are loaded by whoever makes the model."""
        load_optimizers(self.optimizers, folder / "optimizer.safetensors")
        self.step = json.loads((folder / "learner.json").read_text())["step"]


def group_rows(groups: Sequence[Group]) -> tuple[list[Row], Counter[SkipReason]]:
    """Rows with Eq. 3's advantages. Faults have no reward: they leave the group's statistics.

    A group that teaches nothing is skipped before any forward pass, and counted by reason.
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
        rows += [episode_row(e, a) for e, a in zip(valid, advantages.tolist(), strict=True)]
    return rows, skipped
