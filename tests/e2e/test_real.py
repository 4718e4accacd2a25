"""The same loop in the real world: it keeps to its budget, and its gate keeps the best policy."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_dreams import toy_dream
from toy_policy import clumsy_policy, toy_tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig
from dreamgym.envs.base import Env
from dreamgym.envs.metered import Meter, metered
from dreamgym.envs.toy import ToyEnv, make_toy_env, toy_tasks
from dreamgym.experience.model import ExperienceConfig
from dreamgym.gate import Gate, GateConfig
from dreamgym.metrics_log import JsonlLog, read_jsonl
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig
from dreamgym.run_folder import settled
from dreamgym.train import GATE, Parts, real_transitions, run_name, train
from dreamgym.types import DreamGymError, Ending, EnvFault, StepResult, Task

TASKS = toy_tasks(12, seed=1)
VALIDATION = toy_tasks(16, seed=3)
HELD_OUT = toy_tasks(20, seed=2)
NO_GATE = GateConfig(every=0)
STILL = LearnerConfig(optimizer="adamw", learning_rate=1e-7)
"""So small a step that nothing is learnt."""


@pytest.fixture(scope="module")
def cloned() -> PreTrainedModel:
    torch.set_num_threads(1)
    return clumsy_policy(seed=0)


class Killed(Exception):
    """The run ends here, in the middle of everything."""


@dataclass
class Asked:
    """What the real world was asked, over all starts of a run; it may kill the run."""

    steps: Counter[str] = field(default_factory=Counter)
    kill_at: int = 0
    breaks: bool = False

    def world(self, name: str) -> Callable[[Task, int], Env]:
        return lambda task, group: CountedEnv(task, self, name)

    @property
    def total(self) -> int:
        return sum(self.steps.values())


class CountedEnv(ToyEnv):
    """The toy world, which counts."""

    __slots__ = ("asked", "name")

    def __init__(self, task: Task, asked: Asked, name: str) -> None:
        super().__init__(task)
        self.asked, self.name = asked, name

    async def step(self, action: str) -> StepResult:
        self.asked.steps[self.name] += 1
        if self.asked.total == self.asked.kill_at:
            raise Killed
        if self.asked.breaks:
            raise EnvFault("CRASH")
        return await super().step(action)


def config(**changes: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "steps": 50,
            "stop_after": 0,
            "train_world": "real",
            "experience": ExperienceConfig(k=0),
            "rollout": RolloutConfig(group_size=2, max_turns=4, max_tokens=8),
            "curriculum": CurriculumConfig(tasks_per_step=3, variants_per_step=0),
            "gate": NO_GATE,
            "learner": STILL,
            **changes,
        }
    )


def run(
    cfg: RunConfig,
    model: PreTrainedModel,
    path: Path,
    asked: Asked | None = None,
    *,
    kill_after: int | None = None,
    make_dream: Callable[[Task, int], Env] | None = None,
) -> Learner:
    """What `dreamgym train --world real` does in the toy world; goes on where one stopped."""
    path.mkdir(exist_ok=True)
    asked = asked or Asked()
    checkpoint = settled(path / "policy")
    if checkpoint:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    learner = Learner(copy.deepcopy(model), toy_tokenizer(), cfg.learner)
    dream = toy_dream()
    curriculum = Curriculum(TASKS, cfg.curriculum, dream, seed=cfg.seed)
    if checkpoint:
        learner.load_optimizer(checkpoint)
        curriculum.restore((checkpoint / "curriculum.json").read_text())

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if step == kill_after:
            raise Killed

    with ReplayStore(path / "replay.sqlite") as store, JsonlLog(path / "metrics.jsonl") as log:
        log.truncate_after(learner.step - 1)
        spent = real_transitions(cfg, store)
        meter = Meter(max(0, cfg.real_budget - spent) if cfg.real_budget else None)
        parts = Parts(
            learner=learner,
            curriculum=curriculum,
            dream=dream,
            make_env=make_dream or metered(asked.world("train"), meter),
            make_real=make_toy_env,
            replay=store,
            eval_tasks=HELD_OUT,
            validation=VALIDATION[: cfg.gate.tasks],
            make_validation=metered(asked.world("gate"), meter),
            gate=Gate(cfg.gate, path / "best") if cfg.gated else None,
            meter=meter,
        )
        asyncio.run(train(cfg, parts, log, path / "policy", on_step))
    return learner


def logged(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path / "metrics.jsonl"))


def spent(cfg: RunConfig, path: Path) -> int:
    with ReplayStore(path / "replay.sqlite", readonly=True) as store:
        return real_transitions(cfg, store)


def saved_step(path: Path) -> int:
    return int(json.loads((path / "policy" / "learner.json").read_text())["step"])


def gated(tasks: int = 16, **changes: Any) -> GateConfig:
    return GateConfig.model_validate({"every": 1, "tasks": tasks, **changes})


@pytest.mark.parametrize("gate", [NO_GATE, gated()], ids=["no gate", "gate"])
@pytest.mark.parametrize("budget", [130, 167, 211])
def test_a_run_never_asks_the_world_more_than_its_budget_and_saves_what_it_learnt(
    cloned: PreTrainedModel, tmp_path: Path, budget: int, gate: GateConfig
) -> None:
    cfg = config(real_budget=budget, gate=gate, save_every=100)
    asked = Asked()
    learner = run(cfg, cloned, tmp_path, asked)
    assert budget // 2 < asked.total <= budget, "it stops when no group fits any more"
    assert (asked.steps["gate"] > 0) is (gate is not NO_GATE)
    lines = logged(tmp_path)
    assert 0 < learner.step == len(lines) < cfg.steps
    assert saved_step(tmp_path) == learner.step, "though no checkpoint was due"
    # and a run that is over asks nothing more
    again = run(cfg, cloned, tmp_path, asked)
    assert (again.step, asked.total) == (learner.step, sum(asked.steps.values()))
    assert logged(tmp_path) == lines


def test_a_run_whose_gate_took_the_last_transitions_saves_what_it_learnt(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    changes = {"gate": gated(tasks=4), "save_every": 100, "seed": 1}
    first = Asked()
    run(config(**changes, steps=1), cloned, tmp_path / "first", first)
    cfg = config(**changes, real_budget=first.total + 3)  # less than a group takes
    asked = Asked()
    learner = run(cfg, cloned, tmp_path / "run", asked)
    assert asked.steps == first.steps and "gate/success" in logged(tmp_path / "run")[-1]
    assert saved_step(tmp_path / "run") == learner.step == 1


def test_what_was_asked_is_what_is_counted(cloned: PreTrainedModel, tmp_path: Path) -> None:
    cfg = config(real_budget=200, gate=gated(every=2))
    asked = Asked()
    run(cfg, cloned, tmp_path, asked)
    assert spent(cfg, tmp_path) == asked.total
    with ReplayStore(tmp_path / "replay.sqlite", readonly=True) as store:
        assert store.real_transitions(run_name(cfg) + GATE) == asked.steps["gate"] > 0
        assert store.real_transitions(run_name(cfg)) == asked.steps["train"] > 0
        assert {row.task_id for row in store.rows()} <= {task.id for task in TASKS}
    last = logged(tmp_path)[-1]
    assert 0 < last["real/transitions"] <= asked.total


@pytest.mark.parametrize("kill_after", [0, 2])
def test_a_killed_run_goes_on_with_what_is_left_of_its_budget(
    cloned: PreTrainedModel, tmp_path: Path, kill_after: int
) -> None:
    cfg = config(real_budget=170)
    whole, cut = Asked(), Asked()
    through = run(cfg, cloned, tmp_path / "whole", whole)
    with pytest.raises(Killed):
        run(cfg, cloned, tmp_path / "cut", cut, kill_after=kill_after)
    resumed = run(cfg, cloned, tmp_path / "cut", cut)
    assert cut == whole, "not a step was asked twice, nor one less"
    assert resumed.step == through.step == saved_step(tmp_path / "cut")
    success = [
        [line["real/train_success"] for line in logged(tmp_path / n)] for n in ("whole", "cut")
    ]
    assert success[0] == success[1]


def test_a_run_that_is_killed_while_it_plays_pays_for_what_it_had_reserved(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    cfg = config(real_budget=170)
    asked = Asked(kill_at=60)
    with pytest.raises(Killed):
        run(cfg, cloned, tmp_path, asked)
    told = asked.total
    assert told >= 60
    assert told <= spent(cfg, tmp_path) <= told + 3 * 2 * 4, "a step's episodes at most"
    asked.kill_at = 0
    run(cfg, cloned, tmp_path, asked)
    assert told < asked.total <= 170


def test_a_world_that_only_breaks_uses_up_the_budget_also_after_a_restart(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    asked = Asked(breaks=True)
    cfg = config(real_budget=30, curriculum=CurriculumConfig(tasks_per_step=1), steps=4)
    with pytest.raises(Killed):
        run(cfg, cloned, tmp_path, asked, kill_after=0)
    assert logged(tmp_path)[0]["real/train_turns"] == 0.0
    run(cfg, cloned, tmp_path, asked)
    assert len(logged(tmp_path)) == 4 and asked.total == 8


def test_a_budget_that_carries_no_update_is_refused_in_words(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    with pytest.raises(DreamGymError, match="real_budget carries no update: 3 transitions"):
        run(config(real_budget=3), cloned, tmp_path)


def test_without_a_budget_nothing_is_bounded_and_all_is_counted(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    cfg = config(steps=2)
    asked = Asked()
    assert run(cfg, cloned, tmp_path, asked).step == 2
    assert spent(cfg, tmp_path) >= asked.total > 0


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def same(path: Path, model: PreTrainedModel) -> bool:
    kept = weights(path)
    return all(
        torch.equal(kept[name], tensor) for name, tensor in model.named_parameters() if name in kept
    )


def test_the_gate_keeps_the_policy_from_before_a_collapse(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    breaks = LearnerConfig(optimizer="adamw", learning_rate=0.5)
    cfg = config(steps=4, learner=breaks, gate=gated())
    learner = run(cfg, cloned, tmp_path)
    lines = logged(tmp_path)
    assert any(line.get("policy/grad_norm", 0) > 0 for line in lines)
    incumbent = json.loads((tmp_path / "best" / "gate.json").read_text())
    assert incumbent["step"] == -1 and sum(incumbent["outcomes"].values()) > 2
    assert [line["gate/promoted"] for line in lines] == [0.0] * 4
    assert lines[-1]["gate/losses"] > lines[-1]["gate/wins"]
    assert same(tmp_path / "best", cloned)
    assert not same(tmp_path / "best", learner.model)
    # nor does a restart let the collapsed one in
    (tmp_path / "policy").rename(tmp_path / "gone")
    run(cfg.model_copy(update={"steps": 1}), learner.model, tmp_path)
    assert same(tmp_path / "best", cloned)


def test_a_better_policy_takes_the_place_of_the_best_so_far(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    best = tmp_path / "best"
    best.mkdir()
    failed = {task.id: False for task in VALIDATION}
    (best / "gate.json").write_text(json.dumps({"step": -1, "outcomes": failed}))
    asked = Asked()
    learner = run(config(steps=2, gate=gated(every=2)), cloned, tmp_path, asked)
    first, last = logged(tmp_path)
    assert "gate/success" not in first and last["gate/promoted"] == 1.0
    assert last["gate/wins"] > 0 == last["gate/losses"]
    told = json.loads((best / "gate.json").read_text())
    assert told["step"] == 1 and sum(told["outcomes"].values()) == last["gate/wins"]
    assert same(best, learner.model)
    assert 0 < asked.steps["gate"] <= 16 * 4, "it was played once: the incumbent is known"


@pytest.mark.parametrize("budget", [150, 170, 200, 230])
def test_what_a_budget_leaves_last_is_the_gates(
    cloned: PreTrainedModel, tmp_path: Path, budget: int
) -> None:
    """Else nothing that was learnt could be promoted."""
    cfg = config(real_budget=budget, gate=gated(), steps=50)
    run(cfg, cloned, tmp_path, asked := Asked())
    *before, last = logged(tmp_path)
    assert last["gate/episodes"] == len(VALIDATION) and "gate/skipped" not in last
    assert all("gate/episodes" in line or line["gate/skipped"] for line in before)
    assert asked.total <= budget


class PaysLater:
    """A dream in which nothing is paid in the first update and anything in later ones."""

    def __init__(self, made: Counter[str], free: int) -> None:
        made["envs"] += 1
        self._pays = float(made["envs"] > free)

    async def start(self, task: Task) -> str:
        return task.first_state

    async def step(self, action: str) -> StepResult:
        return StepResult("You are done.", self._pays, Ending.DONE)

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("judge", ["gate", "real"])
def test_success_in_the_dream_that_the_real_world_does_not_share_raises_the_alarm(
    cloned: PreTrainedModel, tmp_path: Path, judge: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gated(dream_every=1) if judge == "gate" else NO_GATE
    changes = {"gate": gate, "eval_every": int(judge == "real")}
    cfg = config(
        train_world="dream",
        steps=3,
        real_budget=0,
        **changes,
        curriculum=CurriculumConfig(tasks_per_step=12, variants_per_step=0),
    )
    made: Counter[str] = Counter()
    with caplog.at_level(logging.ERROR):
        run(cfg, cloned, tmp_path, make_dream=lambda task, group: PaysLater(made, 24))
    lines = logged(tmp_path)
    success = [line["dream/train_success"] for line in lines]
    assert success[0] == 0 and min(success[1:]) > 0.8
    assert all(f"{judge}/success" in line for line in lines)
    assert [line["alarm"] for line in lines] == [0.0, 1.0, 1.0]
    alarms = [record.message for record in caplog.records if record.message.startswith("ALARM")]
    assert len(alarms) == 2 and f"0.0% -> {success[1]:.1%} in the dream" in alarms[0]
    assert (spent(cfg, tmp_path) > 0) is (judge == "gate"), "held-out games cost no budget"


def test_a_dream_that_the_real_world_agrees_with_raises_no_alarm(
    cloned: PreTrainedModel, tmp_path: Path
) -> None:
    cfg = config(train_world="dream", steps=2, eval_every=1)
    run(cfg, cloned, tmp_path, make_dream=make_toy_env)
    assert [line["alarm"] for line in logged(tmp_path)] == [0.0, 0.0]
