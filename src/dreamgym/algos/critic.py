"""The critic: what an episode is still worth before each step, and what PPO makes of it (Eq. 2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from dreamgym.algos.batch import Row, Written, split_rows
from dreamgym.algos.forward import hidden_states
from dreamgym.algos.optim import (
    load_optimizers,
    make_optimizers,
    save_optimizers,
    set_learning_rate,
)
from dreamgym.algos.ppo import explained_variance, gae, value_loss
from dreamgym.algos.settings import PPOConfig


@dataclass(frozen=True, slots=True)
class Steps:
    """One episode as PPO sees it: its rows, and its time steps in order."""

    rows: list[Row]
    places: list[Written]  # of each time step
    rewards: list[float]  # of each time step
    cut: bool  # we stopped it: what would have followed is worth something
    next_prompt: tuple[int, ...] = ()  # what the policy would have read next, where it was cut

    def asked(self) -> list[ValueRow]:
        """Where values are needed: before every step, and after the last of a cut episode."""
        rows = [
            ValueRow(row.ids, tuple(p.start for p in self.places if p.row == number))
            for number, row in enumerate(self.rows)
        ]
        if not self.cut:
            return rows
        last, ids = rows[-1], self.next_prompt or rows[-1].ids
        if ids[: len(last.ids)] == last.ids:  # read on in the same row
            return [*rows[:-1], ValueRow(ids, (*last.places, len(ids)))]
        return [*rows, ValueRow(ids, (len(ids),))]

    def targets(self, values: Tensor, returns: Tensor) -> list[ValueRow]:
        """What the critic is to learn: the return of every step."""
        rows, seen = [], 0
        for number, row in enumerate(self.rows):
            places = tuple(place.start for place in self.places if place.row == number)
            span = slice(seen, seen + len(places))
            seen = span.stop
            if places:
                known = tuple(values[span].tolist()), tuple(returns[span].tolist())
                rows.append(ValueRow(row.ids, places, *known))
        return rows


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A row's ids, and where its values are asked for: before the token at each place."""

    ids: tuple[int, ...]
    places: tuple[int, ...]  # (K,), from 1 to the length of ids
    before: tuple[float, ...] = ()  # (K,) what the critic said when the update began
    returns: tuple[float, ...] = ()  # (K,)


@dataclass(frozen=True, slots=True)
class Judged:
    """An episode's steps (N,) as the critic sees them."""

    advantages: Tensor
    values: Tensor
    returns: Tensor


class Critic:
    """A head on hidden states: those of a model of its own, or of the policy."""

    def __init__(self, policy: PreTrainedModel, config: PPOConfig, *, muon: bool) -> None:
        """A separate critic starts from a copy of the policy, which knows the language; its head
        starts at zero: it is ignorant, not wrong."""
        self.config = config
        self.shared = config.critic == "shared"
        # a copy of an adapted policy trains its own adapters, not all weights
        self.model = policy if self.shared else copy.deepcopy(policy)
        self.context = policy.config.max_position_embeddings
        width = policy.get_output_embeddings().weight.shape[1]
        self.head = torch.nn.Linear(width, 1, device=policy.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        rate = config.critic_learning_rate
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(self.head.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        ]
        if not self.shared:
            self.optimizers += make_optimizers(self.model, rate, muon=muon)

    def values(self, hidden: Tensor, rows: Sequence[ValueRow]) -> list[Tensor]:
        """Of hidden states (B, T, H): the value before each place of each row, (K,) each."""
        return [
            self.head(states[torch.tensor(row.places, device=states.device) - 1].float())[:, 0]
            for states, row in zip(hidden, rows, strict=True)
        ]

    def read(self, rows: Sequence[ValueRow], num_tokens: int) -> list[Tensor]:
        """Values of rows in their order, without gradient."""
        order = {id(row): number for number, row in enumerate(rows)}
        found: dict[int, Tensor] = {}
        with torch.no_grad():
            for part in split_rows(rows, num_tokens):
                hidden = hidden_states(self.model, padded(part, self.model.device))
                for row, values in zip(part, self.values(hidden, part), strict=True):
                    found[order[id(row)]] = values.double().cpu()
        return [found[number] for number in range(len(rows))]

    def judge(self, episodes: Sequence[Steps], num_tokens: int) -> list[Judged]:
        """Advantages and returns of every episode's steps, by Eq. 2."""
        found = iter(self.read([row for e in episodes for row in e.asked()], num_tokens))
        judged = []
        for episode in episodes:
            values = torch.cat([next(found) for _ in episode.asked()])
            last = float(values[-1]) if episode.cut else 0.0
            values = values[: len(episode.places)]
            rewards = torch.tensor(episode.rewards, dtype=torch.float64)
            advantages, returns = gae(
                rewards,
                values,
                discount=self.config.discount,
                trace=self.config.trace,
                last=last,
            )
            judged.append(Judged(advantages, values, returns))
        return judged

    def fit(self, rows: Sequence[ValueRow], num_tokens: int, rate: float) -> float:
        """One optimiser step towards the returns, on its own weights only; returns the loss.

        A head on the policy's states reads them and leaves them as they are: what the critic gets
        wrong must not move the policy.
        """
        set_learning_rate(self.optimizers, rate)
        num_steps = sum(len(row.places) for row in rows)
        total = 0.0
        for part in split_rows(rows, num_tokens):
            with torch.set_grad_enabled(not self.shared):
                hidden = hidden_states(self.model, padded(part, self.model.device))
            values = torch.cat(self.values(hidden, part))
            before = values.new_tensor([value for row in part for value in row.before])
            returns = values.new_tensor([value for row in part for value in row.returns])
            clip = self.config.value_clip
            loss = value_loss(values, before, returns, clip=clip, num_steps=num_steps)
            loss.backward()
            total += loss.item()
        own = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(own, 1.0)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the critic's gradient is {norm}: it was not applied")
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return total

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """Head and, where it has one of its own, backbone; optimisers beside them."""
        tensors = {f"head.{name}": value for name, value in self.head.state_dict().items()}
        if not self.shared:
            tensors |= {f"model.{name}": p.detach() for name, p in self._trained()}
        save_file(
            {name: t.contiguous() for name, t in tensors.items()}, folder / "critic.safetensors"
        )
        save_optimizers(self.optimizers, folder / "critic-optimizer.safetensors")

    def load(self, folder: Path) -> None:
        """Continue where `save` left off."""
        tensors = load_file(folder / "critic.safetensors")
        own = dict(self.head.named_parameters(prefix="head"))
        if not self.shared:
            own |= {f"model.{name}": p for name, p in self._trained()}
        if own.keys() != tensors.keys():
            raise ValueError(f"{folder} holds another critic: {own.keys() ^ tensors.keys()}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[name])
        load_optimizers(self.optimizers, folder / "critic-optimizer.safetensors")


def padded(rows: Sequence[ValueRow], device: torch.device) -> Tensor:
    """Ids (B, T), padded on the right."""
    ids = torch.zeros(len(rows), max(len(row.ids) for row in rows), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
    return ids.to(device)


def critic_metrics(judged: Sequence[Judged]) -> dict[str, float]:
    """How much of the returns the critic foresaw; absent where all returns are alike."""
    values = torch.cat([j.values for j in judged])
    explained = explained_variance(values, torch.cat([j.returns for j in judged]))
    known = {} if explained is None else {"critic/explained_variance": explained}
    return {"critic/mean_value": float(values.mean()), **known}
