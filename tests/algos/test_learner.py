"""One update: who takes part in it, what it moves, and that it goes on after a restart."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from episodes import (
    TASK,
    encoder,
    group_of,
    play_at_random,
    same_bits,
    small_model,
    small_tokenizer,
    weights,
)
from safetensors import SafetensorError

from dreamgym.algos.batch import Row, conversation_row, deal_rows, make_batch
from dreamgym.algos.credit import grpo_lesson
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig, SFTConfig
from dreamgym.algos.sft import fit
from dreamgym.envs.toy import ToyEnv, make_toy_env, toy_tasks
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.local import LocalLLM
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.types import Completion, Ending, Episode, Group, Task

PUBLISHED = LearnerConfig(negative=1.0, credit_refused=True)
CANARY = [Message("user", "You are in a room.")]


def learner(seed: int = 0, temperature: float = 1.0, **settings: Any) -> Learner:
    """Plain GRPO: one AdamW step for all rows, failed attempts included."""
    plain = {"optimizer": "adamw", "learning_rate": 1e-2, "warmup_steps": 0, "epochs": 1}
    plain |= {"negative": 1.0, "credit_refused": True}
    config = LearnerConfig.model_validate(plain | {"minibatch_tokens": 10**6} | settings)
    return Learner(small_model(seed), small_tokenizer(), config, temperature=temperature)


def group_rows(groups: Sequence[Group], config: LearnerConfig) -> tuple[list[Row], Counter[str]]:
    lesson = grpo_lesson(groups, config)
    return lesson.rows, lesson.skipped


def credit_of(row: Row) -> float:
    """The one advantage that all its trained tokens have."""
    (advantage,) = {a for a, on in zip(row.advantages, row.mask, strict=True) if on}
    return advantage


def say(policy: LocalLLM, temperature: float = 0.0) -> Completion:
    return asyncio.run(policy.complete(CANARY, Sampling(temperature, 8)))


@pytest.mark.parametrize("value", [0.0, 0.43, 0.7, 1.0])  # P036; engines.md rule 9
def test_a_group_with_equal_returns_is_skipped_and_counted(value: float) -> None:
    rows, skipped = group_rows([group_of([value] * 8), group_of([0.0, 1.0])], PUBLISHED)
    assert len(rows) == 2
    assert skipped == {"ALL_EQUAL": 1}


def test_two_draws_of_one_task_are_two_groups() -> None:  # P039; engines.md rule 10
    rows, skipped = group_rows([group_of([0.0] * 4), group_of([1.0] * 4)], PUBLISHED)
    assert rows == [] and skipped == {"ALL_EQUAL": 2}


def test_a_task_drawn_twice_is_played_as_two_groups_in_two_worlds() -> None:  # P039
    task = toy_tasks(1)[0]
    made: list[int] = []

    def make_env(task: Task, group: int) -> ToyEnv:
        made.append(group)
        return make_toy_env(task, group)

    policy = learner().policy(context=128)
    config = RolloutConfig(group_size=3, max_turns=1, max_tokens=4)
    draw = collect(policy, [task, task], make_env, config, world="real", seed=5)
    groups = asyncio.run(draw)
    assert [len(group.episodes) for group in groups] == [3, 3]
    assert len(set(made[:3])) == len(set(made[3:])) == 1
    assert made[0] != made[3]


def faulty(ending: Ending, seed: int) -> Episode:
    played = play_at_random(random.Random(seed), num_turns=2, reward=0.0)
    return replace(played, ending=ending, fault="UNREADABLE")


@pytest.mark.parametrize("ending", [Ending.DREAM_FAULT, Ending.ENV_FAULT])
def test_a_fault_leaves_the_groups_statistics(ending: Ending) -> None:  # P019; rule 24
    sound = group_of([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    mixed = replace(sound, episodes=(*sound.episodes[:3], faulty(ending, 1), *sound.episodes[3:]))
    assert group_rows([mixed], PUBLISHED) == group_rows([sound], PUBLISHED)
    # 2 of 7: mean 2/7, deviation sqrt(10)/7
    advantages = sorted(credit_of(row) for row in group_rows([mixed], PUBLISHED)[0])
    assert advantages == pytest.approx([-2 / 10**0.5] * 5 + [5 / 10**0.5] * 2, abs=1e-9)


def test_a_policy_is_held_to_where_it_began() -> None:
    began = weights(small_model())
    moved = {}
    for kl in (0.0, 100.0):
        subject = learner(objective={"kl": kl}, learning_rate=1e-3)
        for seed in range(8):
            metrics = subject.update([group_of([0.0, 1.0], seed=seed)])
        now = weights(subject.model)
        moved[kl] = sum((now[name] - began[name]).norm().item() for name in began)
        assert (subject.reference is None) is (kl == 0) is ("policy/kl_to_reference" not in metrics)
    assert subject.reference is not None and same_bits(weights(subject.reference), began)
    assert 0 < moved[100.0] < 0.9 * moved[0.0]


def test_failed_attempts_weigh_as_much_as_is_asked() -> None:
    group = group_of([1.0, 0.0, 0.0, 0.0])  # Eq. 3: sqrt(3), and -1/sqrt(3) three times
    published = [credit_of(row) for row in group_rows([group], PUBLISHED)[0]]
    assert published == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    half = [
        credit_of(row)
        for row in group_rows([group], PUBLISHED.model_copy(update={"negative": 0.5}))[0]
    ]
    assert half == pytest.approx([3**0.5, *[-(3**-0.5) / 2] * 3])
    rows, skipped = group_rows([group], PUBLISHED.model_copy(update={"negative": 0.0}))
    assert [credit_of(row) for row in rows] == pytest.approx([3**0.5])
    assert not skipped, "it was informative, though most of it was left out"


def refusing(episode: Episode, turn: int) -> Episode:
    turns = list(episode.turns)
    turns[turn] = replace(turns[turn], valid=False)
    return replace(episode, turns=tuple(turns))


def test_what_the_world_refused_has_no_part_in_a_success_but_in_a_failure() -> None:
    group = group_of([1.0, 0.0])
    refused = replace(group, episodes=tuple(refusing(e, 0) for e in group.episodes))
    plain, _ = group_rows([group], PUBLISHED)
    config = PUBLISHED.model_copy(update={"credit_refused": False})
    (success, failure), _ = group_rows([refused], config)
    first = refused.episodes[0].turns[0].completion
    assert first is not None and failure.mask == plain[1].mask
    assert success.num_trained == plain[0].num_trained - len(first.ids)
    assert not any(success.mask[: len(first.prompt_ids) + len(first.ids)])
    assert success.ids == plain[0].ids, "it is still read"


def shown_rows() -> list[Row]:
    talk = [Message("user", "You are in a room."), Message("assistant", "open box 1")]
    return [conversation_row(talk, encoder())]


def test_an_update_imitates_demonstrations_beside_what_paid() -> None:
    likelihood = {}
    for number in (0, 5):
        config = LearnerConfig(learning_rate=1e-3, warmup_steps=0, demonstrations=number)
        subject = Learner(small_model(), small_tokenizer(), config, demonstrations=shown_rows())
        metrics = subject.update([group_of([1.0, 0.0])])
        assert ("policy/imitation_loss" in metrics) is (number > 0)
        with torch.no_grad():
            likelihood[number] = token_logprobs(subject.model, make_batch(shown_rows())).sum()
    assert likelihood[5] > likelihood[0] + 0.1


def test_demonstrations_alone_are_no_update() -> None:  # P046: no signal changes nothing
    subject = Learner(
        small_model(), small_tokenizer(), LearnerConfig(), demonstrations=shown_rows()
    )
    before = weights(subject.model)
    metrics = subject.update([group_of([1.0, 1.0]), group_of([0.0, 0.0])])
    assert metrics["train/tokens"] == 0 and metrics["skipped/all_equal"] == 2
    assert same_bits(weights(subject.model), before)


def test_the_learner_takes_the_weight_of_failed_attempts_from_its_settings() -> None:
    group = group_of([1.0, 0.0, 0.0])
    tokens = {
        negative: learner(negative=negative).update([group])["train/tokens"]
        for negative in (0.0, 0.5, 1.0)
    }
    assert 0 < tokens[0.0] < tokens[0.5] == tokens[1.0]


def test_rows_are_dealt_once_each_into_parts_of_about_so_many_tokens() -> None:
    rows = [
        Row(tuple(range(size)), (True,) * size) for size in (3, 5, 8, 2, 9, 4, 4, 30, 1, 6, 7, 12)
    ]
    parts = deal_rows(rows, 12, random.Random(3))
    assert sorted(len(row.ids) for part in parts for row in part) == sorted(
        len(row.ids) for row in rows
    )
    sizes = [sum(len(row.ids) for row in part) for part in parts]
    assert all(size <= 12 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    assert all(a + len(b[0].ids) > 12 for a, b in zip(sizes, parts[1:], strict=False))
    assert parts != deal_rows(rows, 12, random.Random(4))
    assert deal_rows([], 12, random.Random(0)) == []


def rates_of(subject: Learner, updates: int) -> list[float]:
    """The learning rate of every optimiser step."""
    rates: list[float] = []
    for optimizer in subject.optimizers[:1]:
        optimizer.register_step_post_hook(
            lambda done, *rest: rates.append(done.param_groups[0]["lr"])
        )
    for seed in range(updates):
        subject.update([group_of([0.0, 1.0], seed=seed)])
    return rates


def test_the_rate_rises_over_the_first_steps_and_falls_over_the_run() -> None:
    subject = learner(learning_rate=1.0e-3, warmup_steps=3, minibatch_tokens=1)  # two steps each
    subject.num_updates = 4
    falling = [1 - step / 8 for step in range(8)]
    warm = [1 / 4, 2 / 4, 3 / 4, 1, 1, 1, 1, 1]
    expected = [1e-3 * a * b for a, b in zip(falling, warm, strict=True)]
    assert rates_of(subject, 4) == pytest.approx(expected)
    assert rates_of(learner(learning_rate=1e-3), 3) == pytest.approx([1e-3] * 3)


def test_every_step_divides_by_the_same_number_however_long_its_rows_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DAPO's token sum: a step that happens to be short must not weigh as much as a full one."""
    subject = learner(minibatch_tokens=1, epochs=2)
    seen: list[tuple[int, float]] = []
    monkeypatch.setattr(
        subject,
        "_optimise",
        lambda rows, num_tokens: (
            seen.append((rows[0].num_trained, num_tokens)) or {"policy/kl_to_sampler": 0.0}
        ),
    )
    subject.update([group_of([1.0, 0.0, 0.0])])
    lengths, divisors = zip(*seen, strict=True)
    assert len(seen) == 6 and len(set(lengths)) > 1
    assert divisors == pytest.approx([sum(lengths) / 6] * 6)


def test_solved_attempts_beside_a_fault_teach_nothing() -> None:  # a fault is not a failure
    solved = group_of([1.0, 1.0])
    group = replace(solved, episodes=(*solved.episodes, faulty(Ending.DREAM_FAULT, 2)))
    assert group_rows([group], PUBLISHED) == ([], {"ALL_EQUAL": 1})
    lonely = replace(group, episodes=group.episodes[1:])
    assert group_rows([lonely], PUBLISHED) == ([], {"FAULTS": 1})


def test_a_batch_with_nothing_to_train_moves_no_bit() -> None:  # P046
    subject = learner()
    subject.update([group_of([0.0, 1.0])])  # momentum that an empty step could apply
    before = weights(subject.model)
    for groups in ([group_of([1.0] * 4)], [Group(TASK, (faulty(Ending.ENV_FAULT, 3),))], []):
        metrics = subject.update(groups)
        assert metrics["train/tokens"] == 0 and "policy/loss" not in metrics
    assert same_bits(weights(subject.model), before)


def test_metrics_tell_how_many_groups_taught_something() -> None:
    metrics = learner().update([group_of([0.0, 1.0]), group_of([1.0, 1.0]), group_of([0.0, 0.0])])
    assert metrics["train/informative_groups"] == pytest.approx(1 / 3)
    assert metrics["skipped/all_equal"] == 2
    assert metrics["train/tokens"] > 0


def test_after_an_update_a_new_policy_samples_with_the_new_weights() -> None:  # P052
    subject = learner()
    old = subject.policy()
    before = say(old)
    subject.update([group_of([0.0, 1.0, 0.0, 1.0])])
    after = say(subject.policy())
    assert after != before
    assert say(old) == before, "a handle is a snapshot: it must not change while it samples"
    ids = torch.tensor([[*after.prompt_ids, *after.ids]])
    with torch.no_grad():
        logprobs = subject.model(input_ids=ids).logits[0].log_softmax(-1)[:-1]
    trained = logprobs.gather(1, ids[0, 1:, None])[-len(after.ids) :, 0].tolist()
    assert list(after.logprobs) == pytest.approx(trained, abs=1e-4)


def test_the_first_pass_is_on_policy_at_the_temperature_it_was_sampled_with() -> None:  # rule 16
    subject = learner(temperature=0.7, epochs=1)
    talk = [Message("user", toy_tasks(1)[0].first_state), Message("assistant", "look")]
    habit = SFTConfig(num_tokens=1500, tokens_per_step=100, warmup_steps=1, learning_rate=1e-2)
    fit(subject.model, [conversation_row(talk, encoder())], habit, seed=0)  # to end its messages
    config = RolloutConfig(group_size=4, max_turns=3, max_tokens=6, temperature=0.7)
    tasks = toy_tasks(2)
    policy = subject.policy(context=256)
    groups = asyncio.run(collect(policy, tasks, make_toy_env, config, world="real", seed=0))
    paid = [
        replace(group, episodes=tuple(with_reward(e, i % 2) for i, e in enumerate(group.episodes)))
        for group in groups
    ]
    rows, _ = group_rows(paid, PUBLISHED)
    assert rows, "at least one group must have two episodes with a whole turn"
    batch = make_batch(rows)
    with torch.no_grad():
        now = token_logprobs(subject.model, batch, 0.7)
        other = token_logprobs(subject.model, batch, 1.0)
    assert ((now - batch.logprobs) * batch.mask).abs().max() < 1e-4
    assert ((other - batch.logprobs) * batch.mask).abs().max() > 1e-2
    metrics = subject.update(paid)
    assert metrics["policy/kl_to_sampler"] < 1e-6 and metrics["policy/clip_fraction"] == 0


def with_reward(episode: Episode, reward: float) -> Episode:
    if not episode.turns:
        return episode
    last = replace(episode.turns[-1], reward=float(reward))
    return replace(episode, turns=(*episode.turns[:-1], last), ending=Ending.DONE)


def test_what_paid_becomes_likelier_and_what_did_not_less_likely() -> None:
    subject = learner(learning_rate=1e-3)
    rows, _ = group_rows([group_of([1.0, 0.0], seed=4)], PUBLISHED)
    batch = make_batch(rows)
    before = token_logprobs(subject.model, batch).detach().sum(dim=1)
    # ratios start at 1: the sampler's numbers are the model's own
    kept = token_logprobs(subject.model, batch).detach()
    subject._optimise(
        [
            replace(row, logprobs=tuple(p[: len(row.ids)].tolist()))
            for row, p in zip(rows, kept, strict=True)
        ],
        sum(row.num_trained for row in rows),
    )
    change = token_logprobs(subject.model, batch).detach().sum(dim=1) - before
    assert change[0] > 0 > change[1]


def test_a_gradient_that_is_not_finite_is_not_applied() -> None:
    subject = learner()
    before = weights(subject.model)
    group = group_of([0.0, 1.0])
    episodes = []
    for episode in group.episodes:
        completion = replace(
            episode.turns[0].completion, logprobs=(-1e9,) * len(episode.turns[0].completion.ids)
        )
        turns = (replace(episode.turns[0], completion=completion), *episode.turns[1:])
        episodes.append(replace(episode, turns=turns))
    with pytest.raises(FloatingPointError, match="not applied"):
        subject.update([replace(group, episodes=tuple(episodes))])
    assert same_bits(weights(subject.model), before)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_saved_learner_goes_on_to_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    subject = learner(epochs=2, minibatch_tokens=40, optimizer=optimizer, warmup_steps=30)
    first, second = group_of([0.0, 1.0, 0.5]), group_of([1.0, 0.0, 0.0, 0.0], seed=8)
    subject.update([first])
    subject.save(tmp_path)
    model = type(subject.model).from_pretrained(tmp_path, dtype=torch.float32)
    other = Learner(model, small_tokenizer(), subject.config, reference=small_model())
    other.load_optimizer(tmp_path)
    assert other.step == subject.step == 1
    assert other.num_optimised == subject.num_optimised > 2
    metrics, metrics_other = subject.update([second]), other.update([second])
    assert metrics == metrics_other
    assert same_bits(weights(subject.model), weights(other.model))
    # the optimiser's momentum took part: without it the step is another one
    fresh = Learner(
        type(subject.model).from_pretrained(tmp_path, dtype=torch.float32),
        small_tokenizer(),
        subject.config,
    )
    fresh.step, fresh.num_optimised = other.step - 1, subject.num_optimised - 1
    fresh.update([second])
    assert not same_bits(weights(fresh.model), weights(other.model))


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.mkdir, (self.path,)  # type: ignore[return-value]


def test_a_pickle_in_place_of_the_optimiser_is_refused_unread(tmp_path: Path) -> None:  # P100
    subject = learner()
    subject.update([group_of([0.0, 1.0])])
    subject.save(tmp_path)
    before = weights(subject.model)
    bomb = pickle.dumps(Bomb(tmp_path / "harmed"))
    (tmp_path / "optimizer.safetensors").write_bytes(bomb)
    with pytest.raises(SafetensorError):
        subject.load_optimizer(tmp_path)
    assert not (tmp_path / "harmed").exists()
    assert same_bits(weights(subject.model), before)
    pickle.loads(bomb)
    assert (tmp_path / "harmed").exists(), "the bomb must be a live one"
