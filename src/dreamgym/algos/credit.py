"""From groups of episodes to rows with advantages: who is compared with whom, what is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from dreamgym.agents.prompt import policy_messages
from dreamgym.algos.batch import Row, Written, credited, episode_rows
from dreamgym.algos.critic import Critic, Steps, ValueRow, critic_metrics
from dreamgym.algos.grpo import group_advantages, scale_over, step_advantages
from dreamgym.algos.ppo import whiten
from dreamgym.algos.settings import LearnerConfig
from dreamgym.llm.encoding import Codec
from dreamgym.types import Ending, Episode, Group

SkipReason = Literal["ALL_EQUAL", "FAULTS"]
Penalty = Callable[[Sequence[Row]], list[tuple[float, ...]]]
"""What every token (T,) of every row costs, apart from the world's rewards."""
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one update learns from."""

    rows: list[Row]
    skipped: Counter[SkipReason]
    num_episodes: int = 0  # whose rows these are, those of weight 0 included
    targets: list[ValueRow] = field(default_factory=list)  # the critic's
    metrics: dict[str, float] = field(default_factory=dict)


def turn_rewards(episode: Episode, kind: Literal["sum", "outcome"]) -> list[float]:
    """What every turn was paid; as `outcome` only the last one counts."""
    rewards = [turn.reward for turn in episode.turns]
    return rewards if kind == "sum" else [0.0] * (len(rewards) - 1) + rewards[-1:]


def usable(group: Group) -> list[Episode]:
    """Faults have no reward: they leave every statistic."""
    return [e for e in group.episodes if not e.ending.is_fault and e.turns]


def grpo_lesson(
    groups: Sequence[Group], config: LearnerConfig, penalty: Penalty | None = None
) -> Lesson:
    """Rows with Eq. 3's advantages, one number for all turns of an episode (GiGPO adds its own).

    Statistics are taken over episodes, however many rows or turns each has. A group that teaches
    nothing is skipped before any forward pass, and counted by reason; whether it does is seen on
    the world's rewards alone, so that no penalty can act on it.
    """
    skipped: Counter[SkipReason] = Counter()
    taught: list[tuple[list[Episode], torch.Tensor]] = []
    grpo = config.grpo
    for group in groups:
        valid = usable(group)
        if len(valid) < 2:
            skipped["FAULTS"] += 1
            continue
        returns = torch.tensor(
            [math.fsum(turn_rewards(e, config.reward)) for e in valid], dtype=torch.float64
        )
        if returns.max() - returns.min() <= grpo.min_range:
            skipped["ALL_EQUAL"] += 1
            continue
        if penalty is not None:
            costs = [sum(map(math.fsum, penalty(episode_rows(e)[0]))) for e in valid]
            returns -= torch.tensor(costs, dtype=torch.float64)
        advantages = group_advantages(
            returns,
            scaled=grpo.scale == "std",
            leave_one_out=grpo.leave_one_out,
            min_range=0.0 if penalty else grpo.min_range,
        )
        taught.append((valid, advantages))
    if grpo.scale == "batch" and taught:
        scaled = scale_over([advantages for _, advantages in taught])
        taught = [(valid, new) for (valid, _), new in zip(taught, scaled, strict=True)]
    rows = [row for valid, advantages in taught for row in _grpo_rows(valid, advantages, config)]
    everybody = [e for valid, _ in taught for e in valid]
    return Lesson(rows, skipped, len(everybody), metrics=_forks(everybody))


def _grpo_rows(
    episodes: Sequence[Episode], advantages: torch.Tensor, config: LearnerConfig
) -> list[Row]:
    weight = config.grpo.step_weight
    steps = [[0.0] * len(e.turns) for e in episodes]
    if weight:
        steps = step_advantages(
            episodes,
            [turn_rewards(e, config.reward) for e in episodes],
            discount=config.grpo.step_discount,
            scaled=config.grpo.scale == "std",
            min_range=config.grpo.min_range,
        )
    result = []
    for episode, advantage, by_turn in zip(episodes, advantages.tolist(), steps, strict=True):
        rows, places = episode_rows(episode)
        given = [advantage + weight * step for step in by_turn]
        result += _credit(episode, rows, places, range(len(places)), given, config)
    return result


def ppo_lesson(
    groups: Sequence[Group],
    config: LearnerConfig,
    critic: Critic,
    encoder: Codec,
    penalty: Penalty | None = None,
) -> Lesson:
    """Rows with Eq. 2's advantages from the critic's values, and what the critic is to learn.

    Where all episodes of the update were paid the same, advantages would be the critic's errors
    alone: then only the critic learns.
    """
    skipped: Counter[SkipReason] = Counter()
    episodes: list[Episode] = []
    for group in groups:
        valid = usable(group)
        skipped["FAULTS"] += not valid
        episodes += valid
    if not episodes:
        return Lesson([], +skipped)
    steps, turns = zip(
        *(ppo_steps(e, config, encoder, critic.context, penalty) for e in episodes), strict=True
    )
    judged = critic.judge(steps, config.micro_tokens)
    targets = [
        row for s, j in zip(steps, judged, strict=True) for row in s.targets(j.values, j.returns)
    ]
    metrics = critic_metrics(judged) | _forks(episodes)
    paid = [math.fsum(turn_rewards(e, config.reward)) for e in episodes]
    if max(paid) - min(paid) <= TOLERANCE:
        skipped["ALL_EQUAL"] += len(groups) - skipped["FAULTS"]
        return Lesson([], +skipped, targets=targets, metrics=metrics)
    advantages = torch.cat([j.advantages for j in judged])
    if config.ppo.whiten:
        advantages = whiten(advantages)
    rows: list[Row] = []
    split = advantages.split([len(s.places) for s in steps])
    for episode, step, of_turn, given in zip(episodes, steps, turns, split, strict=True):
        rows += _credit(episode, step.rows, step.places, of_turn, given.tolist(), config)
    return Lesson(rows, +skipped, len(episodes), targets, metrics)


def ppo_steps(
    episode: Episode,
    config: LearnerConfig,
    encoder: Codec,
    context: int,
    penalty: Penalty | None = None,
) -> tuple[Steps, list[int]]:
    """An episode's time steps, and the turn that each belongs to.

    A reward falls on the last token that the policy wrote for it, whatever the world wrote after.
    An episode that our turn limit stopped is cut: the critic says what would have followed. One
    that the world ended, or that the policy spoilt (also by a completion without end), is over.
    """
    rows, places = episode_rows(episode)
    rewards = turn_rewards(episode, config.reward)
    costs = penalty(rows) if penalty else [(0.0,) * len(row.ids) for row in rows]
    steps: list[Written] = []
    paid: list[float] = []
    turns: list[int] = []
    for number, (place, reward) in enumerate(zip(places, rewards, strict=True)):
        cost = costs[place.row]
        if config.ppo.level == "turn":
            spans = [(place.start, place.stop)]
        else:
            spans = [(at, at + 1) for at in range(place.start, place.stop)]
        for start, stop in spans:
            steps.append(Written(place.row, start, stop))
            paid.append(-math.fsum(cost[start:stop]))
            turns.append(number)
        paid[-1] += reward
    cut = config.ppo.bootstrap and episode.ending is Ending.TURN_LIMIT
    following = _next_prompt(episode, encoder, context) if cut else ()
    return Steps(rows, steps, paid, cut, following), turns


def _next_prompt(episode: Episode, encoder: Codec, context: int) -> tuple[int, ...]:
    """What a turn limit kept the policy from reading; nothing where the context has no room."""
    state = episode.turns[-1].next_state
    ids = encoder.prompt(policy_messages(episode.task.instruction, episode.turns, state))
    return tuple(ids) if len(ids) <= context else ()


def _forks(episodes: Sequence[Episode]) -> dict[str, float]:
    """How many episodes took several rows; said only where some did."""
    forked = sum(len(episode_rows(episode)[0]) > 1 for episode in episodes)
    return {"train/forked_episodes": float(forked)} if forked else {}


def _credit(
    episode: Episode,
    rows: Sequence[Row],
    places: Sequence[Written],
    turns: Sequence[int],
    advantages: Sequence[float],
    config: LearnerConfig,
) -> list[Row]:
    """Rows in which failures weigh `negative`, and refused actions share in no success."""
    given = []
    for place, number, advantage in zip(places, turns, advantages, strict=True):
        if advantage < 0:
            advantage *= config.negative
        elif not (episode.turns[number].valid or config.credit_refused):
            advantage = 0.0
        given.append([advantage] * (place.stop - place.start))
    objective = config.objective
    everywhere = objective.entropy > 0 or (objective.kl > 0 and objective.kl_in == "loss")
    return credited(rows, places, given, keep=everywhere)
