"""DPO by hand, against NumPy, and that it makes what was solved likelier than what was not."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from episodes import encoder, play_at_random, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.algos.batch import Row, episode_rows, make_batch
from dreamgym.algos.dpo import dpo_loss, fit_dpo, preference_pairs
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.settings import DPOConfig
from dreamgym.types import Ending, Episode, Task


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def test_the_loss_by_hand() -> None:
    # β = 0.5: 0.5 * ((-1 + 2) - (-3 + 2)) = 1, and -log σ(1) = log(1 + e^-1)
    loss, metrics = dpo_loss(one(-1), one(-3), one(-2), one(-2), beta=0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-12)
    assert metrics == {"dpo/margin": 1.0, "dpo/accuracy": 1.0}
    same, _ = dpo_loss(one(-2), one(-2), one(-2), one(-2), beta=0.5)
    assert same.item() == pytest.approx(math.log(2), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 5))
@settings(max_examples=60, deadline=None)
def test_the_loss_agrees_with_numpy(seed: int, beta: float) -> None:
    a, b, c, d = np.random.default_rng(seed).normal(size=(4, 5)) * 3
    loss, _ = dpo_loss(*map(torch.tensor, (a, b, c, d)), beta=beta)
    margin = beta * ((a - c) - (b - d))
    assert abs(loss.item() - np.mean(np.logaddexp(0, -margin))) < 1e-6


def attempt(task: str, reward: float, seed: int, ending: Ending = Ending.DONE) -> Episode:
    played = play_at_random(random.Random(seed), num_turns=2, reward=reward)
    return replace(played, task=Task(task, "take the key"), ending=ending)


def test_pairs_are_of_one_task_and_no_attempt_stands_in_two() -> None:
    episodes = [
        attempt("a", 1.0, 1),
        attempt("a", 1.0, 2),
        attempt("a", 0.0, 3),
        attempt("b", 1.0, 4),
        attempt("c", 0.0, 5),
        attempt("d", 1.0, 6),
        attempt("d", 0.0, 7, Ending.DREAM_FAULT),  # no failure of the agent's
        attempt("d", 0.0, 8, Ending.TURN_LIMIT),
    ]
    pairs = preference_pairs(episodes, 10, seed=0)
    assert sorted((good.task.id, bad.task.id) for good, bad in pairs) == [("a", "a"), ("d", "d")]
    assert all(good.success and not bad.success for good, bad in pairs)
    assert {bad.ending for _, bad in pairs} == {Ending.DONE, Ending.TURN_LIMIT}
    assert len(preference_pairs(episodes, 1, seed=0)) == 1


def rows_of(seed: int) -> tuple[Row, Row]:
    (good,), _ = episode_rows(attempt("a", 1.0, seed))
    (bad,), _ = episode_rows(attempt("a", 0.0, seed + 100))
    return good, bad


def test_what_was_solved_becomes_likelier_than_what_was_not() -> None:
    model = small_model()
    pairs = [rows_of(seed) for seed in range(12)]

    def margins() -> torch.Tensor:
        with torch.no_grad():
            sums = [token_logprobs(model, make_batch(pair)).sum(dim=1) for pair in pairs]
        return torch.stack([good - bad for good, bad in sums])

    before = margins()
    metrics = fit_dpo(model, pairs, DPOConfig(learning_rate=3e-3, epochs=3), seed=0)
    assert metrics["dpo/accuracy"] == 1.0 and metrics["dpo/loss"] < 0.9 * math.log(2)
    assert ((margins() - before) > 0).all()


def test_the_words_of_the_world_are_not_learnt_from() -> None:  # P034
    good, bad = rows_of(1)
    rng = random.Random(0)

    def noised(row: Row) -> Row:
        ids = [
            id if on else rng.randrange(5, len(encoder().tokenizer))
            for id, on in zip(row.ids, row.mask, strict=True)
        ]
        return replace(row, ids=tuple(ids))

    model = small_model()
    batch = make_batch([good, noised(bad)])
    assert (token_logprobs(model, batch)[~batch.mask.bool()] == 0).all()


def test_without_a_pair_there_is_nothing_to_learn() -> None:
    with pytest.raises(ValueError, match="no pair"):
        fit_dpo(small_model(), [], DPOConfig(), seed=0)
