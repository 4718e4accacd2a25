"""The critic: ignorant at first, learning what was still to come, leaving the policy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from episodes import (
    encoder,
    group_of,
    same_bits,
    small_model,
    weights,
)
from ppo_parts import by_position, config, constant_critic, learner, tensor

from dreamgym.algos.batch import Row, Written
from dreamgym.algos.credit import ppo_lesson, ppo_steps
from dreamgym.algos.critic import Critic, Steps, ValueRow
from dreamgym.algos.ppo import explained_variance, value_loss
from dreamgym.algos.settings import PPOConfig


def test_p043_a_value_that_no_step_asks_for_leaks_into_no_advantage() -> None:  # rule 6
    # the report's numbers: mask [1,1,0], values [0,0,100], reward [0,1,0], λ .95 -> [.95, 1]
    critic = Critic(small_model(), PPOConfig(critic="shared", discount=1.0, trace=0.95), muon=False)
    poisoned = {2: 0.0, 3: 0.0}  # places before which the policy writes

    def values(hidden: torch.Tensor, rows: Any) -> list[torch.Tensor]:
        return [torch.tensor([poisoned.get(at, 100.0) for at in row.places]) for row in rows]

    critic.values = values  # type: ignore[method-assign]
    steps = Steps(
        [Row((5,) * 5, (False,) * 5)], [Written(0, 2, 3), Written(0, 3, 4)], [0.0, 1.0], cut=False
    )
    (judged,) = critic.judge([steps], 4096)
    assert judged.advantages.tolist() == pytest.approx([0.95, 1.0])


def test_a_value_that_moved_far_gains_nothing_by_moving_further() -> None:
    for value, gradient in ((0.1, -0.9), (0.5, 0.0)):
        moved = torch.tensor([value], requires_grad=True)
        loss = value_loss(moved, torch.zeros(1), torch.ones(1), clip=0.2, num_steps=1)
        loss.backward()
        assert moved.grad is not None and moved.grad.item() == pytest.approx(gradient)
    free = value_loss(torch.tensor([0.5]), torch.zeros(1), torch.ones(1), clip=0, num_steps=2)
    assert free.item() == pytest.approx(0.5 * 0.25 / 2)


def test_explained_variance_by_hand() -> None:
    assert explained_variance(tensor(0, 1), tensor(0, 1)) == pytest.approx(1.0)
    assert explained_variance(tensor(0.5, 0.5), tensor(0, 1)) == pytest.approx(0.0)
    assert explained_variance(tensor(1, 0), tensor(0, 1)) == pytest.approx(-3.0)
    assert explained_variance(tensor(0, 1), tensor(1, 1)) is None


@pytest.mark.parametrize(("kind", "rate"), [("separate", 3e-3), ("shared", 3e-2)])
def test_a_critic_begins_ignorant_and_learns_without_the_policy(
    kind: str, rate: float
) -> None:  # rule 21
    subject = learner(ppo={"critic": kind, "critic_warmup": 15, "critic_learning_rate": rate})
    assert subject.critic is not None
    groups = [group_of([1.0, 0.0, 1.0, 0.0], seed=s) for s in range(3)]
    steps = [ppo_steps(e, subject.config, encoder(), 512)[0] for g in groups for e in g.episodes]
    assert all((j.values == 0).all() for j in subject.critic.judge(steps, 4096))
    before = weights(subject.model)
    metrics = [subject.update(groups) for _ in range(15)]
    assert same_bits(weights(subject.model), before), "warm-up must not move a bit of the policy"
    assert metrics[-1]["critic/loss"] < metrics[0]["critic/loss"]
    assert metrics[-1]["critic/explained_variance"] > 0.05
    moved = subject.update(groups)
    assert "policy/loss" in moved and not same_bits(weights(subject.model), before)


def test_where_everybody_was_paid_alike_only_the_critic_learns() -> None:  # P046, rule 9
    subject = learner(ppo={"critic_warmup": 0})
    assert subject.critic is not None
    subject.update([group_of([1.0, 0.0])])
    before, head = weights(subject.model), subject.critic.head.weight.detach().clone()
    metrics = subject.update([group_of([0.7, 0.7, 0.7]), group_of([0.7, 0.7], seed=1)])
    assert metrics["train/informative_groups"] == 0 and metrics["skipped/all_equal"] == 2
    assert same_bits(weights(subject.model), before)
    assert not torch.equal(subject.critic.head.weight, head)


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_a_saved_critic_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    groups = [group_of([1.0, 0.0, 0.0], seed=s) for s in range(2)]
    subject = learner(ppo={"critic": kind, "critic_warmup": 1})
    for _ in range(2):
        subject.update(groups)
    subject.save(tmp_path)
    again = learner(ppo={"critic": kind, "critic_warmup": 1})
    with torch.no_grad():
        for own, saved in zip(again.model.parameters(), subject.model.parameters(), strict=True):
            own.copy_(saved)
    again.load_optimizer(tmp_path)
    for each in (subject, again):
        each.update(groups)
    assert same_bits(weights(again.model), weights(subject.model))
    assert again.critic is not None and subject.critic is not None
    assert torch.equal(again.critic.head.weight, subject.critic.head.weight)
    other = learner(ppo={"critic": "shared" if kind == "separate" else "separate"})
    with pytest.raises(ValueError, match="another critic"):
        other.load_optimizer(tmp_path)


def test_the_critics_gradient_does_not_depend_on_the_split_into_micro_batches() -> None:  # rule 13
    subject = learner(ppo={"critic": "shared"})
    critic = subject.critic
    assert critic is not None
    groups = [group_of([1.0, 0.0, 0.5, 0.0], seed=s) for s in range(2)]
    targets = ppo_lesson(groups, subject.config, critic, encoder()).targets
    gradients = []
    for size in (1, 60, 10**6):
        critic.optimizers[0].register_step_pre_hook(
            lambda *_: gradients.append(critic.head.weight.grad.clone())  # type: ignore[union-attr]
        )
        critic.fit(targets, size, rate=0.0)
        critic.optimizers[0]._optimizer_step_pre_hooks.clear()
    scale = gradients[2].abs().max()
    assert len(gradients) == 3 and scale > 1e-4
    assert all((g - gradients[2]).abs().max() < 1e-5 * scale for g in gradients)


def test_the_critic_is_to_learn_what_was_still_to_come() -> None:
    group = group_of([1.0, 0.0], seed=4)
    monte_carlo = config(trace=1.0, discount=0.9)
    critic = Critic(small_model(), monte_carlo.ppo, muon=False)
    targets = ppo_lesson([group], monte_carlo, by_position(critic), encoder()).targets
    for episode, row in zip(group.episodes, targets, strict=True):
        left = [len(episode.turns) - 1 - turn for turn in range(len(episode.turns))]
        assert row.returns == pytest.approx([episode.reward * 0.9**n for n in left])
        assert row.before == pytest.approx([(at - 1) / 100 for at in row.places])


@pytest.mark.parametrize(("clip", "before", "moves"), [(0.2, 0.0, 0), (0.2, 0.5, 1), (0.0, 0.0, 1)])
def test_the_critic_is_held_to_what_it_said_before(clip: float, before: float, moves: int) -> None:
    critic = constant_critic(0.5)
    critic.config = PPOConfig(critic="shared", value_clip=clip)
    bias = critic.head.bias.detach().clone()
    critic.fit([ValueRow((5, 6, 7), (2,), (before,), (1.0,))], 4096, rate=1e-2)
    assert torch.equal(critic.head.bias, bias) is not bool(moves)
    assert all(p.grad is None for p in critic.model.parameters()), "the policy's are not touched"


def test_the_critic_makes_its_passes_at_a_rate_that_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = learner(ppo={"critic_epochs": 3, "critic_learning_rate": 1e-2, "critic_warmup": 9})
    subject.num_updates = 4
    rates: list[float] = []
    monkeypatch.setattr(subject.critic, "fit", lambda rows, tokens, rate: rates.append(rate) or 0.0)
    for _ in range(2):
        subject.update([group_of([1.0, 0.0])])
    assert rates == pytest.approx([1e-2] * 3 + [0.75e-2] * 3)
