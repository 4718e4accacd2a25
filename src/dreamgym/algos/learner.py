"""Owns the policy's weights and optimiser, and turns groups of episodes into one update."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.algos.adapter import (
    as_reference,
    is_adapted,
    keep_reference,
    load_adapter,
    merged,
    save_adapter,
    with_adapter,
)
from dreamgym.algos.batch import Batch, Row, deal_rows, make_batch, split_rows
from dreamgym.algos.canary import check_same_weights
from dreamgym.algos.credit import Lesson, grpo_lesson, ppo_lesson
from dreamgym.algos.critic import Critic, ValueRow
from dreamgym.algos.forward import hidden_states, token_logprobs, token_stats
from dreamgym.algos.objective import (
    entropy_bonus,
    importance_weights,
    policy_loss,
    reference_kl,
)
from dreamgym.algos.optim import (
    load_optimizers,
    make_optimizers,
    save_optimizers,
    set_learning_rate,
)
from dreamgym.algos.settings import LearnerConfig
from dreamgym.algos.sft import sft_loss
from dreamgym.llm.chat import make_encoder
from dreamgym.llm.local import LocalLLM
from dreamgym.types import Group


class Learner:
    """GRPO or PPO on one policy. `step` counts updates asked for, also those without a signal."""

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
        """`reference` is what `objective.kl` holds the policy to; the policy as it begins, if none.

        The learning rate falls to 0 over `num_updates`, or stays where none is given; of the
        `demonstrations` each update imitates `config.demonstrations`.
        """
        if config.adapter.rank and not is_adapted(model):
            model = with_adapter(model, config.adapter)
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.encoder = make_encoder(tokenizer)
        self.temperature = temperature  # log-probabilities are taken as they were sampled
        self.num_updates, self.demonstrations = num_updates, list(demonstrations)
        self.step = self.num_optimised = 0
        without_dropout(model)  # the ratio must be 1 on the first pass
        if config.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train(config.checkpointing)  # `transformers` checkpoints in training mode only
        muon = config.optimizer == "muon"
        self.critic = Critic(model, config.ppo, muon=muon) if config.algorithm == "ppo" else None
        self.reference = self._reference(reference)
        self.optimizers = make_optimizers(model, config.learning_rate, muon=muon)

    def _reference(self, given: PreTrainedModel | None) -> PreTrainedModel | None:
        """A frozen model; the policy's own base with frozen adapters, where it has adapters."""
        if not self.config.objective.kl:
            return None
        if given is None and is_adapted(self.model):
            keep_reference(self.model)
            return self.model
        return (given or copy.deepcopy(self.model)).eval().requires_grad_(False)

    def policy(self, *, slots: int = 64, context: int | None = None) -> LocalLLM:
        """A new handle on the weights as they are now: none is stale to sample from."""
        policy = LocalLLM(self.model, self.tokenizer, slots=slots, context=context)
        check_same_weights(policy, self.model)
        return policy

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One update. Without anything to tell episodes apart it changes nothing, and says so."""
        lesson = self._lesson(groups)
        done, self.step = self.step, self.step + 1
        rows, skipped = lesson.rows, lesson.skipped
        metrics = {f"skipped/{reason.lower()}": float(skipped[reason]) for reason in skipped}
        metrics |= lesson.metrics
        metrics["train/informative_groups"] = 1 - sum(skipped.values()) / max(1, len(groups))
        metrics["train/tokens"] = float(sum(row.num_trained for row in rows))
        rng = random.Random(self.step)
        warming = False
        if self.critic is not None:
            if lesson.targets:
                metrics["critic/loss"] = self._fit_critic(self.critic, lesson.targets, done, rng)
            warming = done < self.config.ppo.critic_warmup
        if warming:
            metrics["train/tokens"] = 0.0  # of the policy, which is not trained yet
        if not rows or warming:
            return metrics
        if self.config.objective.importance_cap:
            rows, metrics["policy/sampler_gap"] = self._weighted(rows)
        shown = min(self.config.demonstrations, len(self.demonstrations))
        rows = rows + rng.sample(self.demonstrations, shown)
        parts = [
            part
            for _ in range(self.config.epochs)
            for part in deal_rows(rows, self.config.minibatch_tokens, rng)
        ]
        # the same for every step: one that happens to be short must not weigh as much as a full one
        num_tokens = (
            self._total(rows, lesson.num_episodes + shown) * self.config.epochs / len(parts)
        )
        sums: Counter[str] = Counter()
        for number, part in enumerate(parts):
            progress = self._progress(done + number / len(parts))
            set_learning_rate(self.optimizers, self._learning_rate(progress))
            step = self._optimise(part, num_tokens)
            sums.update(step)
            written = sum(row.num_trained for row in part if row.logprobs)
            if self._went_far(step["policy/kl_to_sampler"] * num_tokens / max(1, written)):
                metrics["policy/steps_not_taken"] = 1 - (number + 1) / len(parts)
                break
        return metrics | {name: value / (number + 1) for name, value in sums.items()}

    def _went_far(self, divergence: float) -> bool:
        """Whether PPO should look at fresh episodes before it goes on."""
        limit = self.config.ppo.stop_kl if self.critic is not None else 0.0
        return bool(limit) and divergence > limit

    def _lesson(self, groups: Sequence[Group]) -> Lesson:
        penal = self.reference is not None and self.config.objective.kl_in == "reward"
        penalty = self._penalty if penal else None
        if self.critic is None:
            return grpo_lesson(groups, self.config, penalty)
        return ppo_lesson(groups, self.config, self.critic, self.encoder, penalty)

    def _total(self, rows: Sequence[Row], num_episodes: int) -> float:
        """What the sum over tokens is divided by; the constant never depends on who succeeded."""
        if self.config.objective.normalise == "constant":
            return num_episodes * self.config.objective.constant_tokens
        return sum(row.num_trained for row in rows)

    def _progress(self, done: float) -> float:
        return done / self.num_updates if self.num_updates else 0.0

    def _learning_rate(self, progress: float) -> float:
        warm = min(1.0, (self.num_optimised + 1) / (self.config.warmup_steps + 1))
        return self.config.learning_rate * warm * max(0.0, 1 - progress)

    def _fit_critic(
        self, critic: Critic, targets: Sequence[ValueRow], done: int, rng: random.Random
    ) -> float:
        """The critic's passes over an update's episodes; the mean loss of its steps."""
        rate = self.config.ppo.critic_learning_rate * max(0.0, 1 - self._progress(done))
        losses = [
            critic.fit(part, self.config.micro_tokens, rate)
            for _ in range(self.config.ppo.critic_epochs)
            for part in deal_rows(targets, self.config.minibatch_tokens, rng)
        ]
        return sum(losses) / len(losses)

    def _optimise(self, rows: Sequence[Row], num_tokens: float) -> dict[str, float]:
        sums: Counter[str] = Counter({"policy/kl_to_sampler": 0.0})
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
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            raise FloatingPointError(f"the gradient's norm is {norm}: the update was not applied")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.num_optimised += 1
        return dict(sums) | {"policy/grad_norm": float(norm)}

    def _policy_loss(self, batch: Batch, num_tokens: float) -> tuple[Tensor, dict[str, float]]:
        objective = self.config.objective
        hidden = hidden_states(self.model, batch.ids)
        logprobs, entropy = token_stats(
            self.model, hidden, batch, self.temperature, entropy=objective.entropy > 0
        )
        clip = (objective.clip_low, objective.clip_high)
        loss, metrics = policy_loss(logprobs, batch, clip=clip, num_tokens=num_tokens)
        metrics["policy/loss"] = loss.item()
        if objective.entropy:
            bonus = entropy_bonus(entropy, batch, num_tokens)
            metrics["policy/entropy"] = bonus.item()
            loss = loss - objective.entropy * bonus
        if self.reference is not None and objective.kl_in == "loss":
            held = self._held(batch)
            divergence = reference_kl(logprobs, held, batch, num_tokens)
            metrics["policy/kl_to_reference"] = divergence.item()
            loss = loss + objective.kl * divergence
        return loss, metrics

    @torch.no_grad()
    def _held(self, batch: Batch) -> Tensor:
        """What the reference says (B, T) of the policy's tokens."""
        assert self.reference is not None
        own = self.reference is self.model
        with as_reference(self.model) if own else nullcontext():
            return token_logprobs(self.reference, batch, self.temperature)

    def _penalty(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        """k1 of every token against the reference, times `objective.kl`; its expectation is the
        divergence, and as a reward (not as a loss) so is its gradient."""
        costs = []
        for row in rows:
            batch = make_batch([row], self.model.device)
            gap = (batch.logprobs - self._held(batch)) * batch.mask
            costs.append(tuple((self.config.objective.kl * gap[0]).tolist()))
        return costs

    @torch.no_grad()
    def _weighted(self, rows: Sequence[Row]) -> tuple[list[Row], float]:
        """Rows whose ratio compares with the policy as it is now, weighted for having been sampled
        by another; and how far the two are apart, in mean |log-probability|."""
        result, gap, total = [], 0.0, 0
        for part in split_rows(rows, self.config.micro_tokens):
            batch = make_batch(part, self.model.device)
            now = token_logprobs(self.model, batch, self.temperature)
            cap = self.config.objective.importance_cap
            weights = importance_weights(now, batch.logprobs * batch.mask, cap)
            gap += ((now - batch.logprobs) * batch.mask).abs().sum().item()
            for i, row in enumerate(part):
                size = len(row.ids)
                total += row.num_trained
                result.append(
                    replace(
                        row,
                        logprobs=tuple(now[i, :size].tolist()),
                        weights=tuple(weights[i, :size].tolist()),
                    )
                )
        return result, gap / total

    def save_weights(self, folder: Path) -> None:
        """The policy alone, in Hugging Face's format, adapters merged."""
        model = merged(self.model) if is_adapted(self.model) else self.model
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """The policy, and as safetensors everything that going on needs."""
        self.save_weights(folder)
        if is_adapted(self.model):
            save_adapter(self.model, folder / "adapter.safetensors")
        save_optimizers(self.optimizers, folder / "optimizer.safetensors")
        if self.critic is not None:
            self.critic.save(folder)
        (folder / "learner.json").write_text(
            json.dumps({"step": self.step, "num_optimised": self.num_optimised})
        )

    def load_optimizer(self, folder: Path) -> None:
        """Continue where `save` left off. Weights are loaded by whoever makes the model, which
        with adapters is the one they were put on: those alone are read here."""
        if is_adapted(self.model):
            load_adapter(self.model, folder / "adapter.safetensors")
        load_optimizers(self.optimizers, folder / "optimizer.safetensors")
        if self.critic is not None:
            self.critic.load(folder)
        state = json.loads((folder / "learner.json").read_text())
        self.step, self.num_optimised = state["step"], state["num_optimised"]


def without_dropout(model: PreTrainedModel) -> None:
    """Of every kind, LoRA's as well: what is trained must be what was sampled from."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
