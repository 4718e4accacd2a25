"""The main loop: dream, learn, remember; now and then wake up and measure in the real world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dreamgym.algos.learner import Learner
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum
from dreamgym.envs.base import MakeEnv
from dreamgym.evaluate import evaluate
from dreamgym.experience.dream import DreamWorld
from dreamgym.metrics_log import JsonlLog
from dreamgym.replay.checks import Provenance
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.run_folder import swap_folder
from dreamgym.train_metrics import DreamMeter, group_metrics, nothing_to_learn
from dreamgym.types import Group, NothingToLearn, Task

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop is made of, already built."""

    learner: Learner
    curriculum: Curriculum
    dream: DreamWorld
    make_env: MakeEnv  # the world to train in: the dream's, or a real one
    make_real: MakeEnv  # the held-out games
    replay: ReplayStore
    eval_tasks: Sequence[Task]


async def train(
    cfg: RunConfig, parts: Parts, log: JsonlLog, folder: Path, on_step: OnStep = lambda s, m: None
) -> None:
    """`cfg.steps` updates; goes on after the last checkpoint where there is one."""
    updates, dreamt = log.read(), DreamMeter(parts.dream.model)
    for step in range(parts.learner.step, cfg.steps):
        began = time.monotonic()
        policy = parts.learner.policy(slots=cfg.rollout.in_flight)
        tasks = parts.curriculum.sample(step)
        seed = cfg.seed * 1_000_003 + step
        groups = await collect(
            policy, tasks, parts.make_env, cfg.rollout, world=cfg.train_world, seed=seed
        )
        rolled = time.monotonic()
        del policy  # its snapshot and cache, before the next one's are made

        metrics = group_metrics(groups, cfg.train_world) | parts.learner.update(groups)
        parts.curriculum.record(groups)  # half-solved tasks come back more often
        if cfg.train_world == "dream" and cfg.curriculum.variants_per_step:
            await parts.curriculum.grow(groups, parts.dream.model, step)
        remember(parts, groups, cfg, step)  # dreams ground later dreams
        parts.dream.forget()

        if cfg.eval_every and (step + 1) % cfg.eval_every == 0:
            result = await evaluate(
                parts.learner.policy(slots=cfg.rollout.in_flight),
                parts.eval_tasks,
                parts.make_real,
                eval_rollout(cfg),
                world="real",
                seed=cfg.seed,
            )
            metrics |= result.metrics("real")
        metrics |= {
            **dreamt.since_last(),
            "time/rollout_s": rolled - began,
            "time/step_s": time.monotonic() - began,
            "curriculum/variants": float(len(parts.curriculum.variants)),
            "curriculum/share": sum(task.generation > 0 for task in tasks) / len(tasks),
        }
        log.append({"step": step, **metrics})
        updates.append(metrics)
        stuck = nothing_to_learn(updates, cfg.stop_after, to_come=cfg.steps - step - 1)
        if stuck or (step + 1) % cfg.save_every == 0 or step + 1 == cfg.steps:
            save(parts, folder)
        on_step(step, metrics)
        if stuck:
            raise NothingToLearn(stuck)


def eval_rollout(cfg: RunConfig) -> RolloutConfig:
    """As the world is: its own step limit, and no other."""
    limits = {"max_turns": 50, "invalid_limit": 50}
    return cfg.rollout.model_copy(update={"temperature": cfg.eval_temperature} | limits)


def remember(parts: Parts, groups: Sequence[Group], cfg: RunConfig, step: int) -> None:
    """Put the step's episodes into the replay buffer, and into the retriever's index."""
    episodes = [e for group in groups for e in group.episodes if e.turns]
    provenance = Provenance(
        run=f"online-{cfg.seed}",
        agent="policy",
        split="online",
        model=f"step-{step}",
        env="alfworld",
    )
    parts.replay.add_episodes(episodes, provenance=provenance)
    if parts.dream.model.retriever is not None:
        parts.dream.model.retriever.sync(parts.replay)


def save(parts: Parts, folder: Path) -> None:
    """The learner and the curriculum, in one rename."""
    fresh = folder.with_name(folder.name + ".new")
    parts.learner.save(fresh)
    (fresh / "curriculum.json").write_text(parts.curriculum.state())
    swap_folder(fresh, folder)
