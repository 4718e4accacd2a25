"""Who takes part in a lesson, and with what weight: settings of the learner seen in its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from episodes import group_of, small_model, small_tokenizer

from dreamgym.algos.batch import Row, make_batch
from dreamgym.algos.credit import grpo_lesson
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig
from dreamgym.types import Group

PUBLISHED = {"negative": 1.0, "credit_refused": True, "demonstrations": 0}


def config(**changes: Any) -> LearnerConfig:
    return LearnerConfig.model_validate(PUBLISHED | changes)


def learner(model: Any = None, **changes: Any) -> Learner:
    plain = {"optimizer": "adamw", "learning_rate": 1e-2, "warmup_steps": 0, "epochs": 1}
    both = config(**(plain | {"minibatch_tokens": 10**6} | changes))
    return Learner(small_model() if model is None else model, small_tokenizer(), both)


def test_the_constant_counts_every_episode_of_a_taught_group() -> None:  # rule 13
    for negative in (0.0, 1.0):
        lesson = grpo_lesson([group_of([1.0] + [0.0] * 7)], config(negative=negative))
        assert lesson.num_episodes == 8 and len(lesson.rows) == (8 if negative else 1)


def test_a_divergence_is_held_over_all_that_was_written() -> None:
    group = group_of([1.0, 0.0], seed=3)
    written = sum(len(t.completion.ids) for e in group.episodes for t in e.turns if t.completion)
    shy = {"negative": 0.0}
    for objective in ({"kl": 0.1}, {"entropy": 0.1}):
        rows = grpo_lesson([group], config(objective=objective, **shy)).rows
        assert sum(row.num_trained for row in rows) == written
    assert sum(row.num_trained for row in grpo_lesson([group], config(**shy)).rows) < written


def test_steps_are_compared_by_the_outcome_where_that_is_asked() -> None:
    group = group_of([1.0, 0.0], seed=3)
    turns = [replace(t, state="hall") for t in group.episodes[0].turns]
    assert len(turns) > 1

    def first_paid(reward: float) -> Group:
        first = replace(group.episodes[0], turns=(replace(turns[0], reward=reward), *turns[1:]))
        return replace(group, episodes=(first, *group.episodes[1:]))

    settings_ = config(reward="outcome", grpo={"step_weight": 1.0})
    found = [grpo_lesson([first_paid(reward)], settings_).rows for reward in (0.0, 0.9)]
    assert found[0] and [r.advantages for r in found[0]] == [r.advantages for r in found[1]]


def test_the_bounds_of_the_clip_are_those_that_were_set() -> None:  # rules 17, 23
    for low, high, cuts in ((0.5, 0.1, (0, 1)), (0.1, 0.5, (1, 0))):
        subject = learner(objective={"clip_low": low, "clip_high": high})
        row = Row((3, 4), (False, True))
        now = token_logprobs(subject.model, make_batch([row]))[0, 1].detach()
        for ratio, gain, cut in zip((0.7, 1.3), (-1.0, 1.0), cuts, strict=True):
            sampled = (now - torch.tensor(ratio).log()).item()
            batch = make_batch([replace(row, logprobs=(0.0, sampled), advantages=(0.0, gain))])
            assert subject._policy_loss(batch, 1)[1]["policy/clip_fraction"] == cut


def test_the_gap_to_the_sampler_is_a_mean_over_what_was_written() -> None:  # rule 15
    subject = learner(objective={"importance_cap": 2.0})
    rows = grpo_lesson([group_of([1.0, 0.0])], subject.config).rows
    batch = make_batch(rows)
    off = (token_logprobs(subject.model, batch).detach() - batch.logprobs) * batch.mask
    assert subject._weighted(rows)[1] == pytest.approx(
        (off.abs().sum() / batch.mask.sum()).item(), rel=1e-4
    )


def test_the_discount_of_steps_is_the_one_that_was_set() -> None:  # GiGPO
    group = group_of([1.0, 0.0], seed=3)
    met = [
        replace(e, turns=tuple(replace(t, state=f"{i or n}/{i}") for i, t in enumerate(e.turns)))
        for n, e in enumerate(group.episodes)
    ]
    met = [replace(e, turns=(replace(e.turns[0], state="hall"), *e.turns[1:])) for e in met]
    group = replace(group, episodes=tuple(met))
    size = len(met[0].turns)
    assert size > 1
    grpo = {"step_weight": 0.5, "step_discount": 0.5, "scale": "none"}
    first = grpo_lesson([group], config(grpo=grpo)).rows[0]
    # at "hall": 0.5^(size - 1) against 0, half of it above the mean
    assert first.advantages[first.mask.index(True)] == pytest.approx(0.5 + 0.5 * 0.5**size)
