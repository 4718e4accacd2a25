"""What the loop counts, and when it gives up."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from toy_dreams import ToyText, toy_dream
from toy_policy import clumsy_policy, toy_tokenizer
from transformers import PreTrainedModel

from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig
from dreamgym.envs.toy import make_toy_env, toy_tasks
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.metrics_log import JsonlLog, read_jsonl
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig
from dreamgym.train import Parts, train
from dreamgym.train_metrics import (
    DreamMeter,
    few_informative,
    group_metrics,
    input_dependence,
    nothing_to_learn,
)
from dreamgym.types import Ending, Episode, Group, NothingToLearn, Task, Turn

TASKS = toy_tasks(4, seed=1)


def test_p019_a_reward_that_is_none_is_counted_and_in_no_mean() -> None:
    failed = Episode(TASKS[0], (), Ending.DREAM_FAULT, "dream", fault="EMPTY")
    lived = Episode(TASKS[0], (), Ending.TURN_LIMIT, "dream")
    told = group_metrics([Group(TASKS[0], (*[lived] * 7, failed))], "dream")
    assert told["reward/none_share"] == 0.125
    assert told["fault/empty"] == 0.125 and told["dream/train_success"] == 0.0


def test_dream_rates_are_of_answers_and_of_this_step_alone() -> None:
    model = toy_dream().model
    model.tally.update(answers=10, asked_again=1)
    meter = DreamMeter(model)
    model.tally.update(answers=20, asked_again=5, refused=5)
    model.faults["INCONSISTENT"] += 4
    assert meter.since_last() == {
        "dream/asked_again": 0.25,
        "dream/disagreed": 0.0,
        "dream/by_rule": 0.2,
        "dream/faults/inconsistent": 4.0,
    }
    nothing = {"dream/asked_again": 0.0, "dream/disagreed": 0.0, "dream/by_rule": 0.0}
    assert meter.since_last() == nothing


def updates(informative: str, **more: float) -> list[dict[str, float]]:
    """One update a letter: `+` taught something, `-` nothing."""
    return [{"train/informative_groups": float(sign == "+"), **more} for sign in informative]


@pytest.mark.parametrize(
    ("informative", "stop_after", "to_come", "stops"),
    [
        ("-----", 5, 3, True),
        ("------", 5, 3, True),
        ("+-----", 5, 3, True),
        ("----", 5, 3, False),
        ("-----+", 5, 3, False),
        ("++++-----", 5, 0, False),  # it has learnt, and is over
        ("-----", 5, 0, True),  # it has learnt nothing at all
        ("+", 0, 3, False),
        ("--------", 0, 3, False),
        ("", 5, 3, False),
    ],
)
def test_p022_only_a_run_that_learns_nothing_is_stopped(
    informative: str, stop_after: int, to_come: int, stops: bool
) -> None:
    assert bool(nothing_to_learn(updates(informative), stop_after, to_come=to_come)) is stops


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"skipped/faults": 3.0, "fault/inconsistent": 0.4, "fault/empty": 0.1}, "INCONSISTENT"),
        ({"skipped/faults": 1.0, "skipped/all_equal": 2.0, "fault/empty": 0.1}, "ALL_EQUAL"),
        ({"skipped/faults": 2.0, "ending/truncated": 1.0}, "model.context"),
    ],
)
def test_p022_the_reason_is_the_real_one(more: dict[str, float], told: str) -> None:
    earlier, last = updates("----", **more), updates("-", **{"skipped/all_equal": 1.0})
    assert told in nothing_to_learn([*earlier, *last], 5, to_come=1)


@pytest.fixture(scope="module")
def cloned() -> PreTrainedModel:
    return clumsy_policy(seed=0)


def run(
    dream: DreamWorld, model: PreTrainedModel, path: Path, **changes: int
) -> list[dict[str, object]]:
    """Eight updates in a dream; returns what was logged."""
    cfg = RunConfig(
        steps=8,
        rollout=RolloutConfig(group_size=2, max_turns=2, max_tokens=8),
        curriculum=CurriculumConfig(tasks_per_step=2, variants_per_step=0),
        **changes,
    )
    learner = Learner(copy.deepcopy(model), toy_tokenizer(), LearnerConfig(optimizer="adamw"))
    with ReplayStore(path / "replay.sqlite") as store, JsonlLog(path / "metrics.jsonl") as log:
        parts = Parts(
            learner=learner,
            curriculum=Curriculum(TASKS, cfg.curriculum, dream, seed=0),
            dream=dream,
            make_env=dream.make_env,
            make_real=make_toy_env,
            replay=store,
            eval_tasks=TASKS,
        )
        asyncio.run(train(cfg, parts, log, path / "policy"))
    return list(read_jsonl(path / "metrics.jsonl"))


def broken_dream() -> DreamWorld:
    """An experience model of which nothing can be read."""
    config = ExperienceConfig(k=0, rules=False)
    return DreamWorld(ExperienceModel(ScriptedLLM(lambda prompt: "{}"), ToyText(), config))


def test_p022_five_updates_with_nothing_to_learn_from_stop_the_run(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    with pytest.raises(NothingToLearn, match=r"FAULTS, mostly .*dreamgym audit") as caught:
        run(broken_dream(), cloned, tmp_path)
    assert caught.value.exit_code == 4
    logged = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert len(logged) == 5 and (tmp_path / "policy").exists()  # nothing is lost
    assert all(line["skipped/faults"] == 2 for line in logged)


def test_p022_nothing_stops_a_run_that_is_told_to_go_on(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    assert len(run(broken_dream(), cloned, tmp_path, stop_after=0)) == 8


def test_p051_a_run_that_most_groups_cannot_teach_is_told_so_before_it_begins() -> None:
    warning = few_informative(2 / 11, 2)
    assert "18.2% success" in warning and "29.8% of the groups" in warning
    assert "8 attempts would make it 79.9%" in warning
    assert few_informative(0.5, 2) == few_informative(math.nan, 2) == ""
    assert "0.0% of the groups" in few_informative(1.0, 8)


def first_actions(*groups: str) -> list[Group]:
    """A group a string, an attempt a letter."""
    task, last = Task("t", "i"), Turn("n", "end", 0.0, "n")
    return [
        Group(
            task,
            tuple(
                Episode(task, (Turn("s", a, 0.0, "n"), last), Ending.DONE, "real") for a in group
            ),
        )
        for group in groups
    ]


def test_a_policy_that_ignores_its_input_is_seen() -> None:  # engines.md rule 23
    assert input_dependence(first_actions("aaaa", "bbbb")) == 1.0
    assert input_dependence(first_actions("aaaa", "aaaa")) == 0.0
    told = group_metrics(first_actions("aaaa", "bbbb"), "real")
    assert told["policy/input_dependence"] == 1.0
    # inside: 2 of 6 pairs agree each; across: 8 of 16
    assert input_dependence(first_actions("aabb", "abab")) == pytest.approx(1 / 3 - 1 / 2)
    rng = random.Random(0)
    anything = ["".join(rng.choices("abcdef", k=8)) for _ in range(200)]
    gap = input_dependence(first_actions(*anything))
    assert gap is not None and abs(gap) < 0.02
    for groups in (first_actions("aa"), first_actions("a", "b"), first_actions()):
        assert input_dependence(groups) is None


def test_what_the_policy_did_is_told_of_valid_attempts_and_first_actions() -> None:  # rules 23, 24
    def played(task: Task, first: str, ending: Ending = Ending.DONE) -> Episode:
        turns = (Turn("s", first, 0.0, "n"), Turn("s", "the same", 1.0, "n"))
        return Episode(task, turns, ending, "dream")

    fault = replace(played(TASKS[0], "a", Ending.DREAM_FAULT), fault="EMPTY")
    groups = [
        Group(TASKS[0], (played(TASKS[0], "a"), played(TASKS[0], "a"), fault)),
        Group(TASKS[1], (played(TASKS[1], "b"), played(TASKS[1], "b", Ending.TURN_LIMIT))),
    ]
    told = group_metrics(groups, "dream")
    assert told["dream/train_success"] == pytest.approx(3 / 4)
    assert told["policy/input_dependence"] == 1.0
