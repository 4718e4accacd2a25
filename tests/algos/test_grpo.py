"""Golden numbers of Eq. 3 and of the clipped objective, and both against NumPy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from episodes import group_of, small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.testing import assert_close

from dreamgym.algos.batch import Batch, Row, make_batch
from dreamgym.algos.credit import grpo_lesson
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.grpo import group_advantages
from dreamgym.algos.objective import policy_loss, reference_kl
from dreamgym.algos.settings import LearnerConfig

CLIP = (0.2, 0.28)


def one_token(logprob: float, sampled: float, advantage: float) -> tuple[torch.Tensor, Batch]:
    """The log-probability of a single trained token now, and the batch that holds it."""
    batch = make_batch([Row((3, 4), (False, True), (0.0, sampled), (0.0, advantage))])
    return torch.tensor([[0.0, logprob]], requires_grad=True), batch


def test_advantages_compare_inside_a_group() -> None:
    half_solved = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]))
    assert_close(half_solved, torch.tensor([1.0, -1.0, -1.0, 1.0]))
    # one of four: mean 1/4, deviation sqrt(3)/4
    one_of_four = group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    low = -1 / math.sqrt(3)
    want = torch.tensor([math.sqrt(3), low, low, low], dtype=torch.float64)
    assert_close(one_of_four, want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.43, 0.7, 1.0])  # P036; engines.md rule 9
def test_equal_returns_give_exactly_zero(value: float, dtype: torch.dtype) -> None:
    for size in range(1, 17):
        got = group_advantages(torch.full((size,), value, dtype=dtype))
        assert got.tolist() == [0.0] * size


def test_returns_that_differ_by_the_rounding_of_a_sum_are_equal() -> None:  # P036: max - min <= tol
    assert 0.1 + 0.2 != 0.3
    got = group_advantages(torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64))
    assert got.tolist() == [0.0, 0.0, 0.0]


@given(st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=2, max_size=16))
@settings(max_examples=60, deadline=None)
def test_advantages_agree_with_numpy(returns: list[float]) -> None:
    got = group_advantages(torch.tensor(returns, dtype=torch.float64)).numpy()
    values = np.array(returns)
    spread = np.sqrt(np.mean((values - np.mean(values)) ** 2))
    equal = len(set(returns)) == 1
    want = np.zeros_like(values) if equal else (values - np.mean(values)) / spread
    assert np.abs(got - want).max() < 1e-6
    assert abs(got.sum()) < 1e-9


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.5, 1.0, -1.28, 0.0),  # a gain is capped at 1 + 0.28 ...
        (1.5, -1.0, 1.5, 1.5),  # ... a loss is not
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),  # below 1 - 0.2 there is nothing more to win
        (1.25, 2.0, -2.5, -2.5),  # inside the wider upper bound
    ],
)
def test_clip_is_one_sided(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    logprobs, batch = one_token(math.log(ratio), 0.0, advantage)
    got, metrics = policy_loss(logprobs, batch, clip=CLIP, num_tokens=1)
    got.backward()
    assert got.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, gradient], abs=1e-6)
    assert metrics["policy/clip_fraction"] == float(gradient == 0.0)


def test_the_drift_from_the_sampler_is_measured_by_a_number_that_is_never_negative() -> None:
    for ratio, want in [(1.0, 0.0), (1.5, 0.5 - math.log(1.5)), (0.5, -0.5 + math.log(2))]:
        logprobs, batch = one_token(math.log(ratio) - 1.0, -1.0, 1.0)
        _, metrics = policy_loss(logprobs, batch, clip=CLIP, num_tokens=1)
        assert metrics["policy/kl_to_sampler"] == pytest.approx(want, abs=1e-6)


def test_the_divergence_and_its_gradient_are_those_of_the_exact_one() -> None:  # engines.md rule 14
    """Over all three tokens there are, each weighted by how often the sampler draws it."""
    logits = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)  # not the policy any more
    reference = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    now = logits.log_softmax(0)
    exact = (now.exp() * (now - reference.log())).sum()
    (want,) = torch.autograd.grad(exact, logits, retain_graph=True)
    estimate = torch.zeros((), dtype=torch.float64)
    for token in range(3):
        _, batch = one_token(0.0, sampler[token].log().item(), 1.0)
        logprobs = torch.stack([now.new_zeros(()), now[token]])[None]
        held = torch.stack([now.new_zeros(()), reference[token].log()])[None]
        estimate = estimate + sampler[token] * reference_kl(logprobs, held, batch, 1)
    (got,) = torch.autograd.grad(estimate, logits)
    assert estimate.item() == pytest.approx(exact.item(), abs=1e-6)
    assert_close(got, want, atol=1e-6, rtol=0)


def test_the_divergence_does_not_see_what_the_world_wrote() -> None:  # P034; engines.md rule 4
    batch = make_batch([Row((5, 6, 7), (False, True, False), (0.0, -1.0, 0.0))])
    logprobs = torch.tensor([[-7.0, -0.5, -9.0]], requires_grad=True)
    divergences = [
        reference_kl(logprobs, torch.tensor([[other, -2.0, other]]), batch, 1)
        for other in (0.0, -30.0)
    ]
    assert divergences[0].item() == divergences[1].item() > 0
    divergences[0].backward()
    assert logprobs.grad is not None and logprobs.grad[0, [0, 2]].tolist() == [0.0, 0.0]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_loss_agrees_with_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, now, want, num_tokens = [], [], 0.0, 1
    for _ in range(rng.integers(1, 6)):
        size = int(rng.integers(1, 10))
        mask = rng.random(size) < 0.6
        old, new = rng.uniform(-4, 0, size), rng.uniform(-4, 0, size)
        advantage = float(rng.normal())
        sampled = (0.0, *(old * mask).tolist())
        rows.append(
            Row((7,) * (size + 1), (False, *mask.tolist()), sampled, (advantage,) * (size + 1))
        )
        now.append(torch.tensor([0.0, *new], dtype=torch.float64))
        want += numpy_loss(mask, np.float32(old).astype(np.float64), new, np.float32(advantage))
        num_tokens += int(mask.sum())
    logprobs = torch.nn.utils.rnn.pad_sequence(now, batch_first=True)
    got, _ = policy_loss(logprobs, make_batch(rows), clip=CLIP, num_tokens=num_tokens)
    assert abs(got.item() - want / num_tokens) < 1e-6


def numpy_loss(
    mask: NDArray[np.bool_], old: NDArray[np.float64], new: NDArray[np.float64], advantage: float
) -> float:
    """By the cases of the clip: a gain is capped from above, a loss from below."""
    ratio = np.exp(new - old)
    ratio = np.minimum(ratio, 1 + CLIP[1]) if advantage >= 0 else np.maximum(ratio, 1 - CLIP[0])
    return -float(np.sum(ratio[mask]) * np.float64(advantage))


def test_the_gradient_does_not_depend_on_the_split_into_micro_batches() -> None:  # rule 13
    model = small_model()
    rows = grpo_lesson(
        [group_of([1.0, 0.0, 0.0, 1.0, 0.0, 0.25, 0.0, 0.0], seed=5)], LearnerConfig(negative=1.0)
    ).rows
    random.Random(0).shuffle(rows)
    assert len({len(row.ids) for row in rows}) > 3, "the lengths must be ragged"
    num_tokens = sum(row.num_trained for row in rows)
    gradients = []
    for size in (1, 2, 8):
        model.zero_grad()
        for start in range(0, len(rows), size):
            batch = make_batch(rows[start : start + size])
            loss, _ = policy_loss(
                token_logprobs(model, batch), batch, clip=CLIP, num_tokens=num_tokens
            )
            loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    scale = gradients[0].abs().max()
    assert scale > 1e-3
    for other in gradients[1:]:
        assert (gradients[0] - other).abs().max() < 1e-5 * scale


def credits_of(config: LearnerConfig, *groups: list[float]) -> list[float]:
    """The advantage of every attempt that is learnt from."""
    lesson = grpo_lesson([group_of(rewards, seed=i) for i, rewards in enumerate(groups)], config)
    return [{a for a in row.advantages if a}.pop() for row in lesson.rows]


def test_the_settings_choose_the_baseline_and_the_scale() -> None:
    def chosen(**grpo: object) -> LearnerConfig:
        return LearnerConfig.model_validate({"negative": 1.0, "grpo": grpo})

    low = -1 / math.sqrt(3)
    one_of_four = [1.0, 0.0, 0.0, 0.0]
    assert credits_of(chosen(), one_of_four) == pytest.approx([math.sqrt(3), low, low, low])
    assert credits_of(chosen(scale="none"), one_of_four) == pytest.approx([0.75, *[-0.25] * 3])
    left_out = chosen(scale="none", leave_one_out=True)
    assert credits_of(left_out, one_of_four) == pytest.approx([1.0, *[-1 / 3] * 3])
    # centred: ±1/2 and ±1/4, whose mean square is 5/32
    spread = math.sqrt(5 / 32)
    got = credits_of(chosen(scale="batch"), [1.0, 0.0], [0.5, 0.0])
    assert got == pytest.approx([0.5 / spread, -0.5 / spread, 0.25 / spread, -0.25 / spread])
