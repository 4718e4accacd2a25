"""The whole loop must learn: in the real toy world, and in a dream of it, for the real one."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_dreams import facts_of, toy_dream
from toy_policy import clumsy_policy, real_success, toy_tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig, PPOConfig
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig
from dreamgym.envs.toy import make_toy_env, toy_tasks
from dreamgym.experience.model import ExperienceConfig
from dreamgym.metrics_log import JsonlLog, read_jsonl
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.run_folder import settled
from dreamgym.train import Parts, run_name, train

ROLLOUT = RolloutConfig(group_size=8, max_turns=6, max_tokens=8)
# 1e-3 learns by luck; two hundred steps are to lead far from the start
LEARNER = LearnerConfig(
    optimizer="adamw",
    learning_rate=3e-4,
    minibatch_tokens=1_000,
    epochs=2,
    negative=1.0,
    credit_refused=True,
)
TASKS = toy_tasks(48, seed=1)
HELD_OUT = toy_tasks(60, seed=2)
NUM_STEPS = 200


@pytest.fixture(scope="module")
def cloned() -> PreTrainedModel:
    torch.set_num_threads(1)
    return clumsy_policy(seed=0)


PPO = LEARNER.model_copy(
    update={
        "algorithm": "ppo",
        "ppo": PPOConfig(
            critic_learning_rate=3e-4, discount=1.0, trace=0.95, whiten=True, stop_kl=0
        ),
    }
)


def learner_of(model: PreTrainedModel, config: LearnerConfig = LEARNER) -> Learner:
    return Learner(copy.deepcopy(model), toy_tokenizer(), config)


@pytest.mark.parametrize("config_", [LEARNER, PPO], ids=["grpo", "ppo"])
def test_it_learns_in_the_real_toy_world(cloned: PreTrainedModel, config_: LearnerConfig) -> None:
    learner = learner_of(cloned, config_)
    before = real_success(learner.policy(), HELD_OUT)
    for step in range(NUM_STEPS if config_ is LEARNER else NUM_STEPS // 2):  # which is enough
        tasks = [TASKS[(step * 8 + i) % len(TASKS)] for i in range(8)]
        groups = asyncio.run(
            collect(learner.policy(), tasks, make_toy_env, ROLLOUT, world="real", seed=step)
        )
        learner.update(groups)
    after = real_success(learner.policy(), HELD_OUT)
    print(f"real: {before:.2f} -> {after:.2f}")
    assert before < 0.4 and after > 0.8


def config(steps: int, **more: Any) -> RunConfig:
    return RunConfig(
        steps=steps,
        experience=ExperienceConfig(k=0),
        rollout=ROLLOUT,
        learner=LEARNER,
        curriculum=CurriculumConfig(tasks_per_step=8, variants_per_step=1),
        **more,
    )


class Killed(Exception):
    """The run ends here, in the middle of everything."""


def train_in_the_dream(
    cfg: RunConfig, model: PreTrainedModel, path: Path, kill_after: int | None = None
) -> Parts:
    """What `dreamgym train` does, with a scripted experience model; goes on where one stopped."""
    checkpoint = settled(path / "policy")
    if checkpoint:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    learner = learner_of(model)
    dream = toy_dream(known={task.id: facts_of(task) for task in TASKS})
    curriculum = Curriculum(TASKS, cfg.curriculum, dream, seed=cfg.seed)
    if checkpoint:
        learner.load_optimizer(checkpoint)
        curriculum.restore((checkpoint / "curriculum.json").read_text())

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if step == kill_after:
            raise Killed

    with ReplayStore(path / "replay.sqlite") as store, JsonlLog(path / "metrics.jsonl") as log:
        log.truncate_after(learner.step - 1)
        parts = Parts(
            learner=learner,
            curriculum=curriculum,
            dream=dream,
            make_env=dream.make_env,
            make_real=make_toy_env,
            replay=store,
            eval_tasks=HELD_OUT[:10],
        )
        asyncio.run(train(cfg, parts, log, path / "policy", on_step))
    return parts


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """Everything logged but the times."""
    return [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in read_jsonl(path / "metrics.jsonl")
    ]


def test_what_is_learnt_in_the_dream_holds_in_the_real_world(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    before = real_success(learner_of(cloned).policy(), HELD_OUT)
    cfg = config(NUM_STEPS, save_every=NUM_STEPS)
    parts = train_in_the_dream(cfg, cloned, tmp_path)
    after = real_success(parts.learner.policy(), HELD_OUT)
    print(f"dream: {before:.2f} -> {after:.2f}")
    assert before < 0.4 and after > 0.8
    assert parts.dream.model.faults.keys() <= {"UNSOLVABLE_START"}
    with ReplayStore(tmp_path / "replay.sqlite") as store:
        assert store.real_transitions(run_name(cfg)) == 0
        assert store.counts()["episodes"] > 100


def test_a_killed_run_goes_on_to_the_numbers_of_an_uninterrupted_one(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    cfg = config(5, save_every=2, eval_every=2)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    through = train_in_the_dream(cfg, cloned, whole)
    with pytest.raises(Killed):
        train_in_the_dream(cfg, cloned, cut, kill_after=2)
    assert len(metrics_of(cut)) == 3  # one step was logged past the checkpoint
    resumed = train_in_the_dream(cfg, cloned, cut)
    assert metrics_of(cut) == metrics_of(whole)
    assert [line["step"] for line in metrics_of(whole)] == [0, 1, 2, 3, 4]
    assert any(line.get("policy/grad_norm", 0) > 0 for line in metrics_of(whole)[2:])
    assert resumed.curriculum.state() == through.curriculum.state()
    weights = through.learner.model.state_dict()
    for name, tensor in resumed.learner.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
