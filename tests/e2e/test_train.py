"""What the loop counts, and when it gives up."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from toy_dreams import ToyText, toy_dream
from toy_policy import clumsy_policy, toy_tokenizer

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
from dreamgym.train import Parts, dream_counts, dream_rates, group_metrics, train
from dreamgym.types import Ending, Episode, Group, NothingToLearn

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
    before = dream_counts(model)
    model.tally.update(answers=20, asked_again=5, refused=10)
    model.faults["INCONSISTENT"] += 4
    assert dream_rates(dream_counts(model) - before) == {
        "dream/asked_again": 0.25,
        "dream/refused": 0.5,
        "dream/fault_inconsistent": 0.2,
    }
    assert dream_rates(Counter()) == {}


def run(dream: DreamWorld, path: Path, **changes: int) -> list[dict[str, object]]:
    """Eight updates in a dream; returns what was logged."""
    cfg = RunConfig(
        steps=8,
        rollout=RolloutConfig(group_size=2, max_turns=2, max_tokens=8),
        curriculum=CurriculumConfig(tasks_per_step=2, variants_per_step=0),
        **changes,
    )
    learner = Learner(clumsy_policy(seed=0), toy_tokenizer(), LearnerConfig(optimizer="adamw"))
    with ReplayStore(path / "replay.sqlite") as store, JsonlLog(path / "metrics.jsonl") as log:
        parts = Parts(
            learner=learner,
            curriculum=Curriculum(TASKS, cfg.curriculum, seed=0),
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


def test_p022_five_updates_with_nothing_to_learn_from_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(NothingToLearn, match=r"FAULTS, mostly .*dreamgym audit") as caught:
        run(broken_dream(), tmp_path)
    assert caught.value.exit_code == 4
    logged = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert len(logged) == 5 and (tmp_path / "policy").exists()  # nothing is lost
    assert all(line["skipped/faults"] == 2 for line in logged)


def test_p022_nothing_stops_a_run_that_is_told_to_go_on(tmp_path: Path) -> None:
    assert len(run(broken_dream(), tmp_path, stop_after=0)) == 8
