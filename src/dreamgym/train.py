"""The main loop: dream, learn, remember; now and then wake up and measure in the real world."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dreamgym.algos.learner import Learner
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum
from dreamgym.envs.base import MakeEnv
from dreamgym.evaluate import evaluate
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceModel
from dreamgym.metrics_log import JsonlLog
from dreamgym.replay.checks import Provenance
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.run_folder import swap_folder
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
    barren: list[Mapping[str, float]] = []  # updates in a row with nothing to learn from
    for step in range(parts.learner.step, cfg.steps):
        began = time.monotonic()
        before = dream_counts(parts.dream.model)
        policy = parts.learner.policy(slots=cfg.rollout.in_flight)
        tasks = parts.curriculum.sample(step)
        seed = cfg.seed * 1_000_003 + step
        groups = await collect(
            policy, tasks, parts.make_env, cfg.rollout, world=cfg.train_world, seed=seed
        )
        rolled = time.monotonic()

        metrics = group_metrics(groups, cfg.train_world) | parts.learner.update(groups)
        metrics |= dream_rates(dream_counts(parts.dream.model) - before)
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
            "time/rollout_s": rolled - began,
            "time/step_s": time.monotonic() - began,
            "curriculum/variants": float(len(parts.curriculum.variants)),
            "curriculum/share": sum(task.generation > 0 for task in tasks) / len(tasks),
        }
        log.append({"step": step, **metrics})
        if (step + 1) % cfg.save_every == 0 or step + 1 == cfg.steps:
            save(parts, folder)
        on_step(step, metrics)
        barren = [] if metrics["train/informative_groups"] else [*barren, metrics]
        if len(barren) == cfg.stop_after:
            raise NothingToLearn(why_barren(barren))


def eval_rollout(cfg: RunConfig) -> RolloutConfig:
    """As the world is: its own step limit, and no other."""
    limits = {"max_turns": 50, "invalid_limit": 50}
    return cfg.rollout.model_copy(update={"temperature": cfg.eval_temperature} | limits)


def group_metrics(groups: Sequence[Group], world: str) -> dict[str, float]:
    """What the rollouts were like: success, endings, faults by class."""
    episodes = [episode for group in groups for episode in group.episodes]
    valid = [episode for episode in episodes if not episode.ending.is_fault]
    endings = Counter(f"ending/{episode.ending}" for episode in episodes)
    faults = Counter(f"fault/{episode.fault.lower()}" for episode in episodes if episode.fault)
    turns = [turn for episode in valid for turn in episode.turns]
    return {
        "reward/none_share": 1 - len(valid) / max(1, len(episodes)),
        f"{world}/train_success": sum(e.success for e in valid) / max(1, len(valid)),
        f"{world}/train_turns": len(turns) / max(1, len(valid)),
        f"{world}/invalid_actions": sum(not t.valid for t in turns) / max(1, len(turns)),
        **{name: count / len(episodes) for name, count in (endings + faults).items()},
    }


def dream_counts(model: ExperienceModel) -> Counter[str]:
    """What the experience model has been asked and what came of it, so far."""
    return model.tally + Counter({f"fault_{k.lower()}": n for k, n in model.faults.items()})


def dream_rates(counts: Counter[str]) -> dict[str, float]:
    """Per answer: asked again, refused by a rule beforehand, at odds with the facts, each fault."""
    answers = counts["answers"]
    return {f"dream/{k}": n / max(1, answers) for k, n in counts.items() if k != "answers"}


def why_barren(updates: Sequence[Mapping[str, float]]) -> str:
    """What stood in the way of learning, the commonest first, and what can be done about it."""
    skipped = {
        reason: sum(metrics.get(f"skipped/{reason}", 0.0) for metrics in updates)
        for reason in ("faults", "all_equal")
    }
    if skipped["faults"] > skipped["all_equal"]:
        faults = [name for name in updates[-1] if name.startswith("fault/")]
        worst = max(faults, key=lambda name: updates[-1][name], default="fault/").partition("/")[2]
        why = (
            f"FAULTS, mostly {worst.upper()}: episodes broke off by no fault of the policy. "
            "Look at `dreamgym audit` of this run; fit the experience model longer"
        )
    else:
        why = (
            "ALL_EQUAL: every task's attempts ended alike, too hard or too easy for this policy. "
            "Try larger groups, easier tasks or a longer clone"
        )
    return f"{len(updates)} updates in a row had no group to learn from. {why}"


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
