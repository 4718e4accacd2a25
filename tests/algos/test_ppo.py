"""Eq. 2 by hand and against NumPy; the critic; what an episode's end means to it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from episodes import (
    encoder,
    group_of,
    play_at_random,
    small_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from ppo_parts import by_position, config, constant_critic, learner, tensor
from torch.testing import assert_close

from dreamgym.agents.prompt import policy_messages
from dreamgym.algos.credit import ppo_lesson, ppo_steps
from dreamgym.algos.critic import Critic
from dreamgym.algos.ppo import gae, whiten
from dreamgym.algos.settings import PPOConfig
from dreamgym.types import Ending, Episode, Group


def test_advantages_by_hand() -> None:
    # γ = 0.9, λ = 0.5; surprises: 0.9*0.4 - 0.5 = -0.14, 0.9*0.6 - 0.4 = 0.14, 1 - 0.6 = 0.4
    # from the end: 0.4; 0.14 + 0.45*0.4 = 0.32; -0.14 + 0.45*0.32 = 0.004
    got, returns = gae(tensor(0, 0, 1), tensor(0.5, 0.4, 0.6), discount=0.9, trace=0.5)
    assert_close(got, tensor(0.004, 0.32, 0.4), atol=1e-12, rtol=0)
    assert_close(returns, tensor(0.504, 0.72, 1.0), atol=1e-12, rtol=0)


def numpy_gae(
    rewards: NDArray[np.float64], values: NDArray[np.float64], g: float, lam: float, last: float
) -> NDArray[np.float64]:
    """The sum of Eq. 2, term by term."""
    after = np.append(values[1:], last)
    surprise = rewards + g * after - values
    n = len(rewards)
    return np.array(
        [sum((g * lam) ** (j - t) * surprise[j] for j in range(t, n)) for t in range(n)]
    )


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_advantages_agree_with_numpy(seed: int, discount: float, trace: float) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    rewards, values, last = rng.normal(size=size), rng.normal(size=size), float(rng.normal())
    got, returns = gae(
        torch.tensor(rewards), torch.tensor(values), discount=discount, trace=trace, last=last
    )
    want = numpy_gae(rewards, values, discount, trace, last)
    assert np.abs(got.numpy() - want).max() < 1e-6
    assert np.abs(returns.numpy() - want - values).max() < 1e-6


def test_what_follows_a_cut_is_worth_something_and_what_follows_an_end_is_not() -> None:  # rule 8
    cut, _ = gae(tensor(0.5), tensor(0.0), discount=0.9, trace=0.95, last=1.0)
    over, _ = gae(tensor(0.5), tensor(0.0), discount=0.9, trace=0.95)
    assert cut.item() == pytest.approx(0.5 + 0.9) and over.item() == pytest.approx(0.5)


def test_rewards_and_values_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        gae(tensor(0, 1), tensor(0.5), discount=1, trace=1)


def test_p042_a_reward_lands_on_the_last_token_that_the_policy_wrote() -> None:  # rules 5, 6
    played = play_at_random(random.Random(3), num_turns=3, reward=1.0)
    for level in ("token", "turn"):
        steps, _ = ppo_steps(played, config(level=level), encoder(), 512)
        last = played.turns[-1].completion
        assert last is not None
        assert steps.rewards[-1] == 1.0 and sum(steps.rewards) == 1.0
        assert steps.places[-1].stop == len(last.prompt_ids) + len(last.ids)
        # γ = 0: the reward is all that a step sees, and it is not lost to what stands after it
        judged = constant_critic(0.0)
        judged.config = PPOConfig(discount=0.0)
        (result,) = judged.judge([steps], 4096)
        assert result.advantages.tolist() == [0.0] * (len(steps.places) - 1) + [1.0]


def test_words_of_the_world_between_turns_are_no_time_steps() -> (
    None
):  # rule 6: compressed = expanded
    short = play_at_random(random.Random(5), num_turns=3, reward=1.0)
    critic = constant_critic(0.25)
    results = []
    for padding in (0, 40):
        turns = list(short.turns)
        for index in range(1, 3):
            completion = turns[index].completion
            assert completion is not None
            # the world says more before this turn, and so before all later ones
            at = len(turns[0].completion.prompt_ids) + len(turns[0].completion.ids)  # type: ignore[union-attr]
            more = (7,) * padding
            ids = completion.prompt_ids
            turns[index] = replace(
                turns[index], completion=replace(completion, prompt_ids=ids[:at] + more + ids[at:])
            )
        steps, _ = ppo_steps(
            replace(short, turns=tuple(turns)), config(level="token"), encoder(), 512
        )
        results.append(critic.judge([steps], 4096)[0].advantages)
    assert torch.equal(results[0], results[1])


def padded_turn(episode: Episode, turn: int, number: int) -> Episode:
    """The same episode, with a thought of so many more tokens in one turn."""
    turns = list(episode.turns)
    completion = turns[turn].completion
    assert completion is not None
    at = len(completion.prompt_ids)
    thought, silent = (9,) * number, (0.0,) * number
    turns[turn] = replace(
        turns[turn],
        completion=replace(
            completion,
            ids=thought + completion.ids,
            logprobs=silent + completion.logprobs,
        ),
    )
    for later in range(turn + 1, len(turns)):
        after = turns[later].completion
        assert after is not None
        ids = after.prompt_ids
        turns[later] = replace(
            turns[later], completion=replace(after, prompt_ids=ids[:at] + thought + ids[at:])
        )
    return replace(episode, turns=tuple(turns))


def test_a_longer_thought_costs_nothing_turn_by_turn_and_something_token_by_token() -> (
    None
):  # rule 7
    played = play_at_random(random.Random(6), num_turns=3, reward=1.0)
    longer = padded_turn(played, 1, 20)
    critic = constant_critic(0.0)
    first = {}
    for level in ("turn", "token"):
        critic.config = PPOConfig(level=level, discount=0.9, trace=1.0)
        for name, episode in (("short", played), ("long", longer)):
            steps, _ = ppo_steps(episode, config(level=level), encoder(), 512)
            first[level, name] = critic.judge([steps], 4096)[0].advantages[0].item()
    assert first["turn", "short"] == first["turn", "long"] == pytest.approx(0.9**2)
    assert first["token", "long"] == pytest.approx(first["token", "short"] * 0.9**20)


@pytest.mark.parametrize(
    ("ending", "cut"),
    [
        (Ending.TURN_LIMIT, True),
        (Ending.TRUNCATED, False),
        (Ending.DONE, False),
        (Ending.INVALID, False),
    ],
)
def test_only_an_episode_that_we_stopped_is_bootstrapped(
    ending: Ending, cut: bool
) -> None:  # rule 8
    played = replace(play_at_random(random.Random(7), num_turns=2), ending=ending)
    steps, _ = ppo_steps(played, config(), encoder(), 512)
    assert steps.cut is cut
    (judged,) = constant_critic(0.5).judge([steps], 4096)
    # γ = 1 and V = 1/2 everywhere: the last surprise is V(s_T) - V = 0, or 0 - V
    assert judged.advantages[-1].item() == pytest.approx(0.0 if cut else -0.5)


def test_a_cut_episode_is_valued_in_the_state_that_the_policy_would_have_read_next() -> None:
    played = replace(play_at_random(random.Random(8), num_turns=2), ending=Ending.TURN_LIMIT)
    steps, _ = ppo_steps(played, config(), encoder(), 512)
    state = played.turns[-1].next_state
    want = encoder().prompt(policy_messages(played.task.instruction, played.turns, state))
    (asked,) = steps.asked()
    assert list(asked.ids) == want and asked.places[-1] == len(want)
    # where the context has no room for it, the critic is asked where the policy stopped
    short, _ = ppo_steps(played, config(), encoder(), len(steps.rows[0].ids))
    assert short.asked()[0].ids == steps.rows[0].ids


def test_p049_rewards_of_turns_are_kept_apart() -> None:
    played = play_at_random(random.Random(9), num_turns=4)
    turns = [replace(t, reward=r) for t, r in zip(played.turns, (0, 0.3, 0, 1.0), strict=True)]
    paid = replace(played, turns=tuple(turns))
    assert ppo_steps(paid, config(), encoder(), 512)[0].rewards == [0, 0.3, 0, 1.0]
    outcome = config().model_copy(update={"reward": "outcome"})
    assert ppo_steps(paid, outcome, encoder(), 512)[0].rewards == [0, 0, 0, 1.0]


def test_whitening_needs_two_that_differ() -> None:  # rule 22
    assert whiten(tensor()).tolist() == []
    assert whiten(tensor(3.0)).tolist() == [3.0]
    assert whiten(tensor(0.7, 0.7, 0.7)).abs().max() < 1e-12
    assert_close(whiten(tensor(1, 3)), tensor(-1, 1))


def test_whitening_is_over_the_whole_update() -> None:  # rule 22: not per micro-batch
    groups = [group_of([1.0, 0.0], seed=s) for s in (1, 2)]
    small, large = (
        ppo_lesson(
            groups,
            config().model_copy(update={"micro_tokens": size}),
            constant_critic(0.2),
            encoder(),
        )
        for size in (1, 10**6)
    )
    for a, b in zip(small.rows, large.rows, strict=True):
        assert a.advantages == pytest.approx(b.advantages, abs=1e-6)


def test_a_fault_is_no_part_of_it() -> None:  # rule 24
    sound = group_of([1.0, 0.0], seed=2)
    broken = replace(play_at_random(random.Random(1), num_turns=2), ending=Ending.DREAM_FAULT)
    mixed = replace(sound, episodes=(*sound.episodes, broken))
    for critic in (constant_critic(0.1),):
        got = ppo_lesson([mixed, Group(sound.task, (broken,))], config(), critic, encoder())
        want = ppo_lesson([sound], config(), critic, encoder())
        assert got.rows == want.rows and got.skipped == {"FAULTS": 1}


def test_a_better_turn_than_expected_is_made_likelier() -> None:
    group = group_of([1.0, 0.0], seed=4)
    lesson = ppo_lesson([group], config(whiten=False), constant_critic(0.5), encoder())
    solved, failed = ({a for a in row.advantages if a} for row in lesson.rows)
    assert all(a > 0 for a in solved) and all(a < 0 for a in failed)


def test_failed_attempts_and_refused_actions_weigh_what_is_asked() -> None:
    group = group_of([1.0, 0.0], seed=4)
    refused = replace(group.episodes[0].turns[0], valid=False)
    solved = replace(group.episodes[0], turns=(refused, *group.episodes[0].turns[1:]))
    shy = config(whiten=False).model_copy(update={"negative": 0.0, "credit_refused": False})
    lesson = ppo_lesson(
        [replace(group, episodes=(solved, group.episodes[1]))], shy, constant_critic(0.5), encoder()
    )
    (row,) = lesson.rows
    first = refused.completion
    assert first is not None
    assert not any(row.mask[: len(first.prompt_ids) + len(first.ids)])
    assert row.num_trained == sum(len(t.completion.ids) for t in solved.turns[1:] if t.completion)


def test_an_update_that_leads_too_far_from_who_sampled_is_broken_off() -> None:
    groups = [group_of([1.0, 0.0, 1.0, 0.0], seed=s) for s in range(3)]
    taken = {}
    for limit in (0.0, 1e-6):
        subject = learner(ppo={"critic_warmup": 0, "stop_kl": limit}, minibatch_tokens=1)
        metrics = subject.update(groups)
        taken[limit] = subject.num_optimised
        assert ("policy/steps_not_taken" in metrics) is (limit > 0)
    assert taken[0.0] == 2 * 12 and taken[1e-6] == 1
    assert metrics["policy/steps_not_taken"] == pytest.approx(1 - 1 / 24)


def test_a_value_is_read_before_the_token_is_written() -> None:
    critic = Critic(small_model(), PPOConfig(critic="shared", discount=1.0), muon=False)
    torch.nn.init.normal_(critic.head.weight)
    steps, _ = ppo_steps(play_at_random(random.Random(2), num_turns=2), config(), encoder(), 512)
    (row,) = steps.asked()
    hidden = critic.model.get_decoder()(torch.tensor([row.ids])).last_hidden_state[0]
    want = [critic.head(hidden[place.start - 1]).item() for place in steps.places]
    (judged,) = critic.judge([steps], 4096)
    assert judged.values.tolist() == pytest.approx(want, abs=1e-5)


def test_what_follows_a_cut_is_the_value_of_the_state_after_it() -> None:  # rule 8
    played = replace(play_at_random(random.Random(7), num_turns=2), ending=Ending.TURN_LIMIT)
    steps, _ = ppo_steps(played, config(), encoder(), 512)
    (judged,) = by_position(constant_critic(0.0)).judge([steps], 4096)
    (asked,) = steps.asked()
    after, before = (len(asked.ids) - 1) / 100, (steps.places[-1].start - 1) / 100
    assert judged.advantages[-1].item() == pytest.approx(after - before)


def test_where_nothing_is_bootstrapped_a_cut_is_an_end() -> None:
    played = replace(play_at_random(random.Random(7), num_turns=2), ending=Ending.TURN_LIMIT)
    steps, _ = ppo_steps(played, config(bootstrap=False), encoder(), 512)
    assert not steps.cut and steps.asked()[0].places == tuple(p.start for p in steps.places)


def test_a_state_that_does_not_go_on_from_the_row_is_read_in_one_of_its_own() -> None:
    played = replace(play_at_random(random.Random(7), num_turns=2), ending=Ending.TURN_LIMIT)
    last = played.turns[-1].completion
    assert last is not None
    other = replace(last, prompt_ids=(9, *last.prompt_ids))  # as a rewriting template would have it
    forked = replace(played, turns=(played.turns[0], replace(played.turns[-1], completion=other)))
    steps, _ = ppo_steps(forked, config(), encoder(), 512)
    asked = steps.asked()
    assert len(steps.rows) == 2 and len(asked) == 3 and asked[-1].ids == steps.next_prompt
    assert asked[-1].places == (len(steps.next_prompt),)
    (judged,) = by_position(constant_critic(0.0)).judge([steps], 4096)
    after, before = (len(steps.next_prompt) - 1) / 100, (steps.places[-1].start - 1) / 100
    assert judged.advantages[-1].item() == pytest.approx(after - before)


def test_rewards_between_turns_fall_on_the_last_token_of_each() -> None:  # P049, rule 5
    played = play_at_random(random.Random(9), num_turns=3)
    turns = [replace(t, reward=r) for t, r in zip(played.turns, (0.2, 0.3, 0.5), strict=True)]
    steps, of_turn = ppo_steps(
        replace(played, turns=tuple(turns)), config(level="token"), encoder(), 512
    )
    ends = [len(of_turn) - 1 - of_turn[::-1].index(number) for number in range(3)]
    assert [steps.rewards[at] for at in ends] == [0.2, 0.3, 0.5]
    assert sum(steps.rewards) == pytest.approx(1.0)


@pytest.mark.parametrize("level", ["turn", "token"])
def test_a_penalty_is_paid_where_its_tokens_were_written(level: str) -> None:  # rule 14
    played = play_at_random(random.Random(9), num_turns=3, reward=1.0)
    steps, _ = ppo_steps(
        played,
        config(level=level),
        encoder(),
        512,
        lambda rows: [tuple(at / 1000 for at in range(len(row.ids))) for row in rows],
    )
    for place, reward in zip(steps.places, steps.rewards, strict=True):
        paid = float(place == steps.places[-1])
        assert reward == pytest.approx(paid - sum(range(place.start, place.stop)) / 1000)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_divergence_in_the_reward_is_taken_there_and_nowhere_else(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule 14
    objective = {"kl": 0.1, "kl_in": "reward"}
    subject = learner(algorithm=algorithm, objective=objective, ppo={"critic_warmup": 0})
    asked: list[int] = []
    penalty = subject._penalty
    monkeypatch.setattr(subject, "_penalty", lambda rows: asked.append(len(rows)) or penalty(rows))
    metrics = subject.update([group_of([1.0, 0.0])])
    assert asked and "policy/loss" in metrics and "policy/kl_to_reference" not in metrics


def test_whitened_advantages_keep_what_sets_episodes_apart() -> None:  # rule 22
    groups = [group_of([1.0, 0.0, 0.0], seed=s) for s in (1, 2)]
    lesson = ppo_lesson(groups, config(trace=1.0), constant_critic(0.5), encoder())
    episodes = [e for group in groups for e in group.episodes]
    # γ = λ = 1: every turn's advantage is the return less 1/2
    plain = [e.reward - 0.5 for e in episodes for _ in e.turns]
    mean = sum(plain) / len(plain)
    spread = (sum((x - mean) ** 2 for x in plain) / len(plain)) ** 0.5
    for episode, row in zip(episodes, lesson.rows, strict=True):
        (advantage,) = {round(a, 6) for a in row.advantages if a}
        assert advantage == pytest.approx((episode.reward - 0.5 - mean) / spread, abs=1e-5)


def test_outcomes_that_are_alike_teach_nothing_whatever_was_paid_on_the_way() -> None:  # P049
    group = group_of([1.0, 1.0], seed=4)
    turns = list(group.episodes[0].turns)
    assert len(turns) > 1
    turns[0] = replace(turns[0], reward=0.5)
    paid = replace(
        group, episodes=(replace(group.episodes[0], turns=tuple(turns)), *group.episodes[1:])
    )
    outcome = config().model_copy(update={"reward": "outcome"})
    lesson = ppo_lesson([paid], outcome, constant_critic(0.1), encoder())
    assert lesson.skipped == {"ALL_EQUAL": 1} and not lesson.rows
    assert ppo_lesson([paid], config(), constant_critic(0.1), encoder()).rows


def test_advantages_are_whitened_only_where_that_is_asked() -> None:  # rule 22
    groups = [group_of([1.0, 0.0, 0.25], seed=s) for s in (1, 2)]
    given = config(whiten=False, trace=1.0)
    critic = Critic(small_model(), given.ppo, muon=False)
    rows = ppo_lesson(groups, given, critic, encoder()).rows
    assert {a for row in rows for a in row.advantages if a} == {1.0, 0.25}
