"""Variants of the advantages and of the objective: by hand, against NumPy, and in the learner."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episodes import group_of, play_at_random, same_bits, small_model, small_tokenizer, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from dreamgym.algos.batch import Row, episode_rows, make_batch
from dreamgym.algos.credit import grpo_lesson
from dreamgym.algos.forward import hidden_states, token_logprobs, token_stats
from dreamgym.algos.grpo import (
    group_advantages,
    informative_share,
    scale_over,
    step_advantages,
)
from dreamgym.algos.learner import Learner
from dreamgym.algos.objective import entropy_bonus, importance_weights, policy_loss
from dreamgym.algos.settings import LearnerConfig
from dreamgym.types import Ending, Episode, Group, Turn

PUBLISHED = {"negative": 1.0, "credit_refused": True, "demonstrations": 0}


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig.model_validate(PUBLISHED | changes)


def learner(model: Any = None, **changes: Any) -> Learner:
    plain = {"optimizer": "adamw", "learning_rate": 1e-2, "warmup_steps": 0, "epochs": 1}
    both = config(**(plain | {"minibatch_tokens": 10**6} | changes))
    return Learner(small_model() if model is None else model, small_tokenizer(), both)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_unscaled_and_leave_one_out_advantages_by_hand() -> None:
    returns = tensor(1, 0, 0, 0)
    assert_close(group_advantages(returns, scaled=False), tensor(0.75, -0.25, -0.25, -0.25))
    # the others' means: 0, 1/3, 1/3, 1/3
    left_out = group_advantages(returns, scaled=False, leave_one_out=True)
    assert_close(left_out, tensor(1, -1 / 3, -1 / 3, -1 / 3))


def test_advantages_scaled_over_the_update_keep_the_groups_apart() -> None:
    easy, hard = tensor(0.1, -0.1), tensor(0.5, -0.5)
    spread = math.sqrt((2 * 0.01 + 2 * 0.25) / 4)
    got = scale_over([easy, hard])
    assert_close(got[0], easy / spread)
    assert_close(got[1], hard / spread)
    assert scale_over([tensor(0, 0)])[0].tolist() == [0, 0]


@given(st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=2, max_size=16))
@settings(max_examples=60, deadline=None)
def test_leave_one_out_agrees_with_numpy(returns: list[float]) -> None:
    values = np.array(returns)
    others = [np.mean(np.delete(values, i)) for i in range(len(values))]
    got = group_advantages(torch.tensor(values), scaled=False, leave_one_out=True).numpy()
    want = np.zeros_like(values) if len(set(returns)) == 1 else values - others
    assert np.abs(got - want).max() < 1e-6


def test_p037_what_a_judge_cannot_tell_apart_is_equal() -> None:
    rows = grpo_lesson([group_of([0.5000, 0.5001, 0.5000, 0.4999])], config())
    assert rows.rows == [] and rows.skipped == {"ALL_EQUAL": 1}
    finer = grpo_lesson(
        [group_of([0.5000, 0.5001, 0.5000, 0.4999])], config(grpo={"min_range": 1e-6})
    )
    assert len(finer.rows) > 0


def test_a_group_of_one_teaches_nothing() -> None:  # rule 10
    lesson = grpo_lesson([group_of([1.0])], config())
    assert lesson.rows == [] and lesson.skipped == {"FAULTS": 1}
    assert group_advantages(tensor(1.0)).tolist() == [0.0]


def test_the_baseline_counts_episodes_and_not_their_turns() -> None:  # rule 11
    # a win in one turn and a loss in three: (1 - 1/2) and (0 - 1/2), not 3/4 and -1/4
    rng = random.Random(0)
    win = play_at_random(rng, num_turns=1, reward=1.0)
    loss = play_at_random(rng, num_turns=3)
    lesson = grpo_lesson([Group(win.task, (win, loss))], config(grpo={"scale": "none"}))
    assert [{a for a in row.advantages if a} for row in lesson.rows] == [{0.5}, {-0.5}]


def test_when_to_stop_has_no_gradient_where_it_does_not_matter() -> None:  # rule 12
    """Stop (1 turn) or go on (3 turns), both paid 1/2 in the mean: neither is better."""
    rng = random.Random(1)
    total: dict[int, list[float]] = {1: [], 3: []}
    for seed in range(400):
        lengths = [1, 3, 1, 3]
        rewards = [float(random.Random(100 * seed + i).random() < 0.5) for i in range(4)]
        episodes = [
            play_at_random(rng, num_turns=n, reward=r)
            for n, r in zip(lengths, rewards, strict=True)
        ]
        group = Group(episodes[0].task, tuple(episodes))
        rows = grpo_lesson([group], config(grpo={"scale": "none"})).rows
        if rows:
            for length, row in zip(lengths, rows, strict=True):
                (advantage,) = {a for a in row.advantages if a}
                total[length].append(advantage)
    mean = {length: sum(values) / len(values) for length, values in total.items()}
    assert abs(mean[1] - mean[3]) < 0.05


def visit(states: list[str], rewards: list[float]) -> Episode:
    turns = [Turn(s, "a", r, "n") for s, r in zip(states, rewards, strict=True)]
    return Episode(group_of([0.0]).task, tuple(turns), Ending.DONE, "dream")


def test_turns_that_saw_the_same_state_are_compared() -> None:  # GiGPO
    # discount 1/2; at "hall": returns 1/2, 0 and, on a second visit, 1 -> mean 1/2
    first = visit(["hall", "hall"], [0.0, 1.0])
    second = visit(["hall", "cellar"], [0.0, 0.0])
    paid = [[0.0, 1.0], [0.0, 0.0]]
    got = step_advantages([first, second], paid, discount=0.5, scaled=False)
    assert got == [[0.0, 0.5], [-0.5, 0.0]]
    scaled = step_advantages([first, second], paid, discount=0.5)
    deviation = math.sqrt((0.25 + 0.25) / 3)
    assert scaled[0] == pytest.approx([0.0, 0.5 / deviation])


def test_step_advantages_are_added_turn_by_turn() -> None:
    group = group_of([1.0, 0.0], seed=3)
    alike = [
        replace(e, turns=(replace(e.turns[0], state="You are in a room."), *e.turns[1:]))
        for e in group.episodes
    ]
    group = replace(group, episodes=tuple(alike))
    plain = grpo_lesson([group], config()).rows
    settings_ = {"step_weight": 0.5, "step_discount": 0.8}
    both = grpo_lesson([group], config(grpo=settings_)).rows
    paid = [[turn.reward for turn in e.turns] for e in group.episodes]
    steps = step_advantages(group.episodes, paid, discount=0.8, min_range=1e-3)
    assert any(any(step) for step in steps)
    for a, b, by_turn, episode in zip(plain, both, steps, group.episodes, strict=True):
        base = {x for x in a.advantages if x}.pop()
        _, places = episode_rows(episode)
        for place, step in zip(places, by_turn, strict=True):
            assert b.advantages[place.start] == pytest.approx(base + 0.5 * step)


def test_the_entropy_is_taken_at_the_temperature_of_the_sampler() -> None:
    batch = make_batch(grpo_lesson([group_of([1.0, 0.0])], config()).rows)
    model = small_model()
    with torch.no_grad():
        hidden = hidden_states(model, batch.ids)
        found = [
            token_stats(model, hidden, batch, temperature, entropy=True)[1].sum()
            for temperature in (0.1, 1.0)
        ]
    assert found[0] < found[1]


def test_an_attempt_without_a_turn_is_no_attempt() -> None:  # rule 24
    group = group_of([1.0, 0.0], seed=3)
    silent = replace(group.episodes[0], turns=(), ending=Ending.TRUNCATED)
    wider = replace(group, episodes=(*group.episodes, silent))
    assert grpo_lesson([wider], config()).rows == grpo_lesson([group], config()).rows


def test_p049_an_episodes_return_is_the_sum_or_the_outcome() -> None:
    played = play_at_random(random.Random(9), num_turns=4)
    turns = [replace(t, reward=r) for t, r in zip(played.turns, (0, 0.3, 0, 1.0), strict=True)]
    paid = replace(played, turns=tuple(turns))
    other = play_at_random(random.Random(10), num_turns=2, reward=1.0)
    group = Group(paid.task, (paid, other))
    assert grpo_lesson([group], config(reward="outcome")).skipped == {"ALL_EQUAL": 1}
    by_sum = grpo_lesson([group], config(grpo={"scale": "none"})).rows
    (gain,) = {a for a in by_sum[0].advantages if a}
    assert gain == pytest.approx(0.15)  # 1.3 against 1.0


def test_p048_a_length_counts_what_was_written() -> None:
    mask = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert Row((7,) * 15, tuple(map(bool, mask))).num_trained == 9


@pytest.mark.parametrize(("success", "size", "share"), [(2 / 11, 2, 0.298), (2 / 11, 8, 0.799)])
def test_p051_how_many_groups_will_teach(success: float, size: int, share: float) -> None:
    assert informative_share(success, size) == pytest.approx(share, abs=5e-4)
    assert informative_share(0.0, size) == informative_share(1.0, size) == 0.0


def test_importance_weights_by_hand_and_capped() -> None:  # rule 15
    now, sampled = tensor(-1.0, -1.0, -1.0), tensor(-1.0, -1.5, -3.0)
    got = importance_weights(now, sampled, 2.0)
    assert_close(got, tensor(1.0, math.exp(0.5), 2.0))
    with pytest.raises(ValueError, match="cap"):
        importance_weights(now, sampled, 0.0)


def test_a_stale_sampler_is_corrected_by_its_closed_form() -> None:  # rules 15, 17
    subject = learner(objective={"importance_cap": 2.0})
    group = group_of([1.0, 0.0, 0.0, 1.0], seed=6)
    rows = grpo_lesson([group], subject.config).rows
    weighted, gap = subject._weighted(rows)
    with torch.no_grad():
        for row in weighted:
            (before,) = [r for r in rows if r.ids == row.ids]
            now = token_logprobs(subject.model, make_batch([row]))[0]
            for at in range(len(row.ids)):
                if row.mask[at]:
                    ratio = math.exp(now[at].item() - before.logprobs[at])
                    assert row.weights[at] == pytest.approx(min(ratio, 2.0), rel=1e-4)
                    assert row.logprobs[at] == pytest.approx(now[at].item(), abs=1e-5)
    assert gap > 0.1, "the sampler of these rows drew from another distribution"
    metrics = subject.update([group])
    assert metrics["policy/sampler_gap"] == pytest.approx(gap)
    assert metrics["policy/clip_fraction"] == 0, "the ratio compares with the policy as it was now"


def test_without_the_correction_the_ratio_compares_with_whoever_sampled() -> None:  # rule 17
    subject = learner()
    group = group_of([1.0, 0.0, 0.0, 1.0], seed=6)
    metrics = subject.update([group])
    assert metrics["policy/clip_fraction"] > 0.05 and metrics["policy/kl_to_sampler"] > 0.05


def test_weights_scale_a_tokens_gain() -> None:
    row = Row((3, 4), (False, True), (0.0, -1.0), (0.0, 2.0), (1.0, 0.5))
    loss, _ = policy_loss(
        torch.tensor([[0.0, -1.0]]), make_batch([row]), clip=(0.2, 0.28), num_tokens=1
    )
    assert loss.item() == pytest.approx(-1.0)


def test_the_entropy_is_that_of_the_sampling_distribution_and_a_bonus_raises_it() -> None:
    batch = make_batch([Row((3, 4), (False, True), (0.0, -1.0))])
    assert entropy_bonus(torch.tensor([[9.0, 0.7]]), batch, 2).item() == pytest.approx(0.35)
    entropy = {}
    for weight in (1e-9, 1.0):
        subject = learner(objective={"entropy": weight}, learning_rate=3e-3)
        for seed in range(6):
            metrics = subject.update([group_of([1.0, 0.0], seed=seed)])
        entropy[weight] = metrics["policy/entropy"]
    assert 0 < entropy[1e-9] < entropy[1.0] <= math.log(len(small_tokenizer())) + 1e-6


def test_a_constant_divisor_lets_long_updates_weigh_more() -> None:  # rule 13: Dr. GRPO
    rows = grpo_lesson([group_of([1.0, 0.0], seed=5)], config()).rows
    constant = learner(objective={"normalise": "constant", "constant_tokens": 64})
    assert constant._total(rows, 8) == 64 * 8, "also of those whose weight is 0"
    assert learner()._total(rows, 8) == sum(row.num_trained for row in rows)


def test_a_penalty_in_the_reward_acts_on_no_group_without_signal() -> None:  # rules 9, 14
    subject = learner(objective={"kl": 0.5, "kl_in": "reward"})
    before = weights(subject.model)
    metrics = subject.update([group_of([0.7] * 4, seed=2)])
    assert metrics["skipped/all_equal"] == 1 and same_bits(weights(subject.model), before)


def test_k1_in_the_reward_costs_what_the_policy_and_the_reference_differ_by() -> None:  # rule 14
    subject = learner(objective={"kl": 0.5, "kl_in": "reward"})
    rows = grpo_lesson([group_of([1.0, 0.0], seed=2)], subject.config).rows
    costs = subject._penalty(rows)
    for row, cost in zip(rows, costs, strict=True):
        with torch.no_grad():
            held = token_logprobs(subject.reference, make_batch([row]))[0]  # type: ignore[arg-type]
        for at in range(len(row.ids)):
            want = 0.5 * (row.logprobs[at] - held[at].item()) if row.mask[at] else 0.0
            assert cost[at] == pytest.approx(want, abs=1e-5)
    fixed = [(1.0,) * len(rows[0].ids), (0.0,) * len(rows[1].ids)]
    given = iter(fixed)
    group = group_of([1.0, 0.0], seed=2)
    lesson = grpo_lesson([group], config(grpo={"scale": "none"}), lambda rows: [next(given)])
    # the return of the first falls by its length: 1 - T against 0
    gap = (1.0 - len(rows[0].ids)) / 2
    (loss,) = {a for a in lesson.rows[0].advantages if a}
    assert loss == pytest.approx(gap)


def test_k1_as_a_reward_has_the_gradient_of_the_exact_divergence() -> None:  # rule 14
    logits = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    now = logits.log_softmax(0)
    exact = (now.exp() * (now - reference.log())).sum()
    (want,) = torch.autograd.grad(exact, logits, retain_graph=True)
    cost = (now - reference.log()).detach()  # what each draw of the policy pays
    (as_reward,) = torch.autograd.grad(
        (now.detach().exp() * now * cost).sum(), logits, retain_graph=True
    )
    assert_close(as_reward, want, atol=1e-9, rtol=0)
    (as_loss,) = torch.autograd.grad((now.detach().exp() * (now - reference.log())).sum(), logits)
    assert as_loss.abs().max() < 1e-9, "as a loss it teaches nothing"


def test_logits_in_chunks_are_those_of_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = grpo_lesson([group_of([1.0, 0.0, 0.0], seed=4)], config()).rows
    batch = make_batch(rows)
    gradients = []
    for size in (1 << 22, 5 * 400):
        monkeypatch.setattr("dreamgym.algos.forward.CHUNK_LOGITS", size)
        model = small_model()
        loss, _ = policy_loss(
            token_logprobs(model, batch), batch, clip=(0.2, 0.28), num_tokens=int(batch.mask.sum())
        )
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert (gradients[0] - gradients[1]).abs().max() < 1e-5 * gradients[0].abs().max()


def test_activations_that_are_computed_again_give_the_same_update() -> None:
    group = group_of([1.0, 0.0, 0.0, 1.0], seed=3)
    plain, again = learner(), learner(checkpointing=True)
    for each in (plain, again):
        each.update([group])
    for name, tensor_ in weights(plain.model).items():
        assert (tensor_ - weights(again.model)[name]).abs().max() < 1e-5


def test_clip_higher_lets_a_rare_token_grow() -> None:  # rule 23
    for logprob in (-0.1, -4.0):
        row = Row((3, 4), (False, True), (0.0, logprob), (0.0, 1.0))
        moved = torch.tensor([[0.0, logprob + math.log(1.25)]])
        _, metrics = policy_loss(moved, make_batch([row]), clip=(0.2, 0.28), num_tokens=1)
        assert metrics["policy/clip_fraction"] == 0
        _, strict = policy_loss(moved, make_batch([row]), clip=(0.2, 0.2), num_tokens=1)
        assert strict["policy/clip_fraction"] == 1


def test_an_update_does_not_depend_on_the_split_into_micro_batches() -> None:  # rule 13
    rows = [
        Row(tuple(range(5, 5 + n)), (False, *[True] * (n - 1))) for n in (4, 9, 20, 6)
    ]  # demonstrations, of ragged lengths too
    groups = [group_of([1.0, 0.0, 0.0, 0.25], seed=s) for s in range(2)]
    moved = []
    for size in (1, 60, 10**6):
        settings_ = config(
            optimizer="adamw",
            learning_rate=1e-3,
            warmup_steps=0,
            epochs=1,
            minibatch_tokens=10**6,
            micro_tokens=size,
            demonstrations=4,
        )
        subject = Learner(small_model(), small_tokenizer(), settings_, demonstrations=rows)
        subject.update(groups)
        moved.append(torch.cat([p.detach().flatten() for p in subject.model.parameters()]))
    assert (moved[0] - moved[2]).abs().max() < 2e-5 > (moved[1] - moved[2]).abs().max()


def test_everything_is_weighed_at_the_temperature_it_was_sampled_with() -> None:  # rule 16
    objective = {"kl": 0.1, "importance_cap": 2.0}
    subject = Learner(
        small_model(), small_tokenizer(), config(objective=objective), temperature=0.7
    )
    rows = grpo_lesson([group_of([1.0, 0.0], seed=2)], subject.config).rows
    batch = make_batch(rows)
    with torch.no_grad():
        cool = token_logprobs(small_model(), batch, 0.7)
        assert (subject._held(batch) - cool).abs().max() < 1e-6
        for row in subject._weighted(rows)[0]:
            want = token_logprobs(small_model(), make_batch([row]), 0.7)[0]
            assert row.logprobs == pytest.approx(want.tolist(), abs=1e-5)


def test_a_penalty_counts_all_rows_of_an_episode_and_may_leave_little_between_returns() -> None:
    played = play_at_random(random.Random(1), num_turns=2, reward=0.002)
    last = played.turns[-1].completion
    assert last is not None
    other = replace(last, prompt_ids=(9, *last.prompt_ids))
    forked = replace(played, turns=(played.turns[0], replace(played.turns[-1], completion=other)))
    failed = play_at_random(random.Random(2), num_turns=1)

    def penalty(rows: Any) -> list[tuple[float, ...]]:
        dear = len(rows) > 1  # a little for each of its two rows
        return [(0.0009 if dear else 0.0,) + (0.0,) * (len(row.ids) - 1) for row in rows]

    group = Group(played.task, (forked, failed))
    lesson = grpo_lesson([group], config(grpo={"scale": "none"}), penalty)
    (gain,) = {a for a in lesson.rows[0].advantages if a}
    assert gain == pytest.approx((0.002 - 2 * 0.0009) / 2)


def test_a_reference_that_is_given_is_the_one_and_does_not_move() -> None:
    other = small_model(seed=5)
    settings_ = config(objective={"kl": 0.1}, optimizer="adamw")
    subject = Learner(small_model(), small_tokenizer(), settings_, reference=other)
    batch = make_batch(grpo_lesson([group_of([1.0, 0.0])], settings_).rows)
    with torch.no_grad():
        want = token_logprobs(other, batch)
    before = weights(other)
    subject.update([group_of([1.0, 0.0])])
    assert (subject._held(batch) - want).abs().max() < 1e-6
    assert same_bits(weights(other), before) and not any(
        p.requires_grad for p in other.parameters()
    )


def test_attention_drops_nothing_while_it_trains() -> None:  # rule 19
    model = small_model()
    for block in model.model.layers:
        block.self_attn.attention_dropout = 0.5
    subject = learner(model, checkpointing=True)  # which needs training mode
    batch = make_batch(grpo_lesson([group_of([1.0, 0.0])], subject.config).rows)
    with torch.no_grad():
        twice = [token_logprobs(subject.model, batch) for _ in range(2)]
    assert subject.model.training and torch.equal(*twice)


def test_entropies_in_chunks_are_those_of_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(grpo_lesson([group_of([1.0, 0.0, 0.0], seed=4)], config()).rows)
    model = small_model()
    found = []
    with torch.no_grad():
        hidden = hidden_states(model, batch.ids)
        for size in (1 << 22, 5 * 400):
            monkeypatch.setattr("dreamgym.algos.forward.CHUNK_LOGITS", size)
            found.append(token_stats(model, hidden, batch, entropy=True)[1])
    assert (found[0] - found[1]).abs().max() < 1e-5 < found[0].std()
