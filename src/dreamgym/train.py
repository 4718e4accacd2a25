"""The main loop: dream, learn, remember; now and then wake up and measure in the real world."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from dreamgym.algos.learner import Learner
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum
from dreamgym.envs.base import Env, MakeEnv
from dreamgym.envs.metered import Meter
from dreamgym.evaluate import evaluate
from dreamgym.experience.dream import DreamWorld
from dreamgym.gate import Gate
from dreamgym.metrics_log import JsonlLog
from dreamgym.replay.checks import Provenance
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.run_folder import swap_folder
from dreamgym.settings import config_digest
from dreamgym.train_metrics import DreamMeter, diverged, group_metrics, nothing_to_learn
from dreamgym.types import DreamGymError, Episode, Group, NothingToLearn, Task, World

logger = logging.getLogger(__name__)
GATE = "-gate"
"""What the gate's episodes are counted under, after the run's name."""

OnStep = Callable[[int, dict[str, float]], None]


def no_world(task: Task, group: int) -> Env:
    """For a loop that has no gate."""
    raise DreamGymError(f"there is no world to validate {task.id} in")


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
    validation: Sequence[Task] = ()  # the gate's, in the real world as well
    make_validation: MakeEnv = no_world
    gate: Gate | None = None
    meter: Meter = field(default_factory=Meter)  # of real transitions, held-out games apart
    chosen: JsonlLog | None = None  # where the curriculum's choices are told

    def gate_cost(self, max_turns: int) -> float:
        """Real transitions that the gate takes once; 0 without a gate."""
        return self.gate.cost(len(self.validation), max_turns) if self.gate else 0.0


async def train(
    cfg: RunConfig, parts: Parts, log: JsonlLog, folder: Path, on_step: OnStep = lambda s, m: None
) -> None:
    """`cfg.steps` updates; goes on after the last checkpoint where there is one."""
    updates, dreamt = log.read(), DreamMeter(parts.dream.model)
    if parts.gate is not None and parts.gate.incumbent is None:
        await pass_gate(cfg, parts, step=-1)
    lengths = [m[f"{cfg.train_world}/train_turns"] for m in updates]
    turns = next(filter(None, reversed(lengths)), cfg.rollout.max_turns / 2)
    size = cfg.rollout.group_size
    for step in range(parts.learner.step, cfg.steps):
        began, worked = time.monotonic(), time.process_time()
        keep = parts.gate_cost(cfg.rollout.max_turns)  # so that what is learnt can be promoted
        chosen = parts.curriculum.sample(step)[: parts.meter.carries(turns * size, keep)]
        if not chosen and step:
            break  # a run that was killed when it had spent its budget
        if not chosen:
            raise DreamGymError(
                f"real_budget carries no update: {parts.meter.left} transitions are left, a group "
                f"takes some {turns * size:.0f} and the last gate {keep:.0f}. Raise it, or lower "
                "gate.tasks"
            )
        policy = parts.learner.policy(slots=cfg.rollout.in_flight)
        tasks = [choice.task for choice in chosen]
        seed = cfg.seed * 1_000_003 + step
        with reserved(cfg, parts, len(tasks) * size):
            groups = await collect(
                policy, tasks, parts.make_env, cfg.rollout, world=cfg.train_world, seed=seed
            )
            remember(parts, groups, cfg, step)  # dreams ground later dreams
        rolled = time.monotonic()
        del policy  # its snapshot and cache, before the next one's are made

        metrics = group_metrics(groups, cfg.train_world) | parts.learner.update(groups)
        parts.curriculum.record(groups)  # half-solved tasks come back more often
        grown = await parts.curriculum.grow(groups, step) if cfg.train_world == "dream" else []
        parts.dream.forget()
        turns = metrics[f"{cfg.train_world}/train_turns"] or turns
        last = step + 1 == cfg.steps or not parts.meter.carries(turns * size, keep)
        metrics |= {
            **dreamt.since_last(),
            "real/transitions": float(real_transitions(cfg, parts.replay)),
            "time/rollout_s": rolled - began,
            "time/step_s": time.monotonic() - began,
            "time/cpu_s": time.process_time() - worked,  # where the cores are shared, fairer
            "curriculum/variants": float(len(parts.curriculum.variants)),
            "curriculum/share": sum(task.generation > 0 for task in tasks) / len(tasks),
        }
        metrics |= await measure(cfg, parts, step, last=last)
        last = last or not parts.meter.carries(turns * size, keep)  # after what the gate has spent
        if told := diverged([*updates, metrics]):
            logger.error(told)
        log.append({"step": step, **metrics, "alarm": float(bool(told))})
        if parts.chosen is not None:
            choices = [choice.data() for choice in chosen]
            parts.chosen.append(
                {"step": step, "chosen": choices, "grown": [v.data() for v in grown]}
            )
        updates.append(metrics)
        stuck = nothing_to_learn(updates, cfg.stop_after, to_come=cfg.steps - step - 1)
        if stuck or last or (step + 1) % cfg.save_every == 0:
            save(parts, folder)
        on_step(step, metrics)
        if stuck:
            raise NothingToLearn(stuck)
        if last:
            break


async def measure(cfg: RunConfig, parts: Parts, step: int, *, last: bool) -> dict[str, float]:
    """What the real world says now and then: on held-out games, and at the gate."""
    metrics: dict[str, float] = {}
    if cfg.eval_every and ((step + 1) % cfg.eval_every == 0 or last):
        result = await evaluate(
            parts.learner.policy(slots=cfg.rollout.in_flight),
            parts.eval_tasks,
            parts.make_real,
            eval_rollout(cfg),
            world="real",
            seed=cfg.seed,
        )
        metrics |= result.metrics("real")
    every = cfg.gate.every if cfg.train_world == "real" else cfg.gate.dream_every
    if parts.gate is not None and ((step + 1) % every == 0 or last):
        metrics |= await pass_gate(cfg, parts, step, last=last)
    return metrics


async def pass_gate(
    cfg: RunConfig, parts: Parts, step: int, *, last: bool = False
) -> dict[str, float]:
    """Let the policy play the validation tasks, and keep it if it is better than the best so far.

    What that costs is metered and counted. Where the budget does not carry it, and once more at
    the run's end, nothing is promoted.
    """
    assert parts.gate is not None
    cost = parts.gate_cost(cfg.rollout.max_turns)
    if not parts.meter.carries(cost, 0.0 if last or step < 0 else cost):
        return {"gate/skipped": 1.0}
    played: list[Episode] = []
    as_trained = eval_rollout(cfg).model_copy(update={"max_turns": cfg.rollout.max_turns})
    with reserved(cfg, parts, len(parts.validation), "real"):
        result = await evaluate(
            parts.learner.policy(slots=cfg.rollout.in_flight),
            parts.validation,
            parts.make_validation,
            as_trained,
            world="real",
            seed=cfg.seed,
            on_episode=played.append,
        )
        parts.replay.add_episodes(played, provenance=provenance(cfg, step, "validation"))
    verdict, kept = parts.gate.judge(result, step)
    if kept:
        fresh = parts.gate.folder.with_name(parts.gate.folder.name + ".new")
        parts.learner.save_weights(fresh)
        (fresh / "gate.json").write_text(kept)
        swap_folder(fresh, parts.gate.folder)
    return verdict.metrics()


def eval_rollout(cfg: RunConfig) -> RolloutConfig:
    """As the world is: its own step limit, and no other."""
    limits = {"max_turns": 50, "invalid_limit": 50}
    return cfg.rollout.model_copy(update={"temperature": cfg.eval_temperature} | limits)


def reserved(
    cfg: RunConfig, parts: Parts, episodes: int, world: World | None = None
) -> AbstractContextManager[None]:
    """So many episodes of the real world are counted before they are played; dreams cost none."""
    if (world or cfg.train_world) == "dream":
        return nullcontext()
    most = episodes * cfg.rollout.max_turns
    left = parts.meter.left
    return parts.replay.reserved(run_name(cfg), most if left is None else min(most, left))


def run_name(cfg: RunConfig) -> str:
    """Under which the store counts what a run lives through online; a run that begins from another
    has that one's store, and not its count."""
    return f"online-{config_digest(cfg)[:12]}"


def real_transitions(cfg: RunConfig, store: ReplayStore) -> int:
    """Steps of the real world that this run has paid for, the gate's included."""
    return sum(store.real_transitions(run_name(cfg) + part) for part in ("", GATE))


def provenance(cfg: RunConfig, step: int, split: str) -> Provenance:
    return Provenance(
        run=run_name(cfg) + (GATE if split == "validation" else ""),
        agent="policy",
        split=split,
        model=f"step-{step}",
        env="alfworld",
    )


def remember(parts: Parts, groups: Sequence[Group], cfg: RunConfig, step: int) -> None:
    """Put the step's episodes into the replay buffer, and into the retriever's index."""
    episodes = [e for group in groups for e in group.episodes if e.turns]
    parts.replay.add_episodes(episodes, provenance=provenance(cfg, step, "online"))
    if parts.dream.model.retriever is not None:
        parts.dream.model.retriever.sync(parts.replay)


def save(parts: Parts, folder: Path) -> None:
    """The learner and the curriculum, in one rename."""
    fresh = folder.with_name(folder.name + ".new")
    parts.learner.save(fresh)
    (fresh / "curriculum.json").write_text(parts.curriculum.state())
    swap_folder(fresh, folder)
