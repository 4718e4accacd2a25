"""The whole job, stage by stage: collect, fit, clone, measure, dream, measure again, report.

Every finished stage leaves its files and a mark; a killed run goes on at the first unmarked one.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from dreamgym import build
from dreamgym.algos.adapter import require_peft
from dreamgym.algos.learner import Learner
from dreamgym.audit.transitions import next_state_fidelity
from dreamgym.config import RunConfig
from dreamgym.curriculum.curriculum import Curriculum, task_hash
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.envs.alfworld.world import AlfworldWorld, Backend
from dreamgym.envs.metered import Meter, metered
from dreamgym.evaluate import Evaluation, Rate, evaluate
from dreamgym.experience.annotate import RULES, Teacher, annotate_by_rules, annotate_store
from dreamgym.gate import Gate, alarm
from dreamgym.ledger import Ledger
from dreamgym.llm.local import LocalLLM
from dreamgym.llm.transport import ServerConfig
from dreamgym.llm.weights import load_model
from dreamgym.llms import is_served, limits_of, open_llm, price_of, served_model
from dreamgym.metrics_log import JsonlLog
from dreamgym.replay.store import ReplayStore, copy_store
from dreamgym.run_folder import RunFolder, settled, write_json
from dreamgym.settings import load_config
from dreamgym.train import GATE, Parts, eval_rollout, real_transitions, run_name, train
from dreamgym.train_metrics import few_informative
from dreamgym.types import DreamGymError, Episode


class Progress(Protocol):
    """Shows how far a stage is. `bar` opens one stage's bar: call it with what is done so far."""

    def bar(self, name: str, total: int) -> AbstractContextManager[Callable[[int, str], None]]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One run: its config, its folder, and where progress is shown."""

    cfg: RunConfig
    folder: RunFolder
    progress: Progress
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def path(self) -> Path:
        return self.folder.path

    def stage(self, name: str, work: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Do a stage once; its data come back on every later start."""
        if not self.folder.stage_done(name):
            began = time.monotonic()
            data = dict(work())
            self.folder.mark_stage(name, data | {"seconds": round(time.monotonic() - began, 1)})
        return self.folder.stage_data(name)


def run_job(job: Job, *, until: str = "after") -> dict[str, Any]:
    """Run every stage up to `until`; returns the data of all that are done."""
    cfg = job.cfg
    if cfg.learner.adapter.rank:
        require_peft()  # now, and not after the fit
    torch.manual_seed(cfg.seed)
    with closing(Ledger(limits_of(cfg.server), job.path / "ledger.jsonl")) as ledger:
        return _run_stages(replace(job, cfg=with_cache(cfg, job.path), ledger=ledger), until)


def with_cache(cfg: RunConfig, run: Path) -> RunConfig:
    """Replies are kept in the run folder, unless another file is named."""
    cache = cfg.server.cache or str(run / "replies.sqlite")
    return cfg.model_copy(update={"server": cfg.server.model_copy(update={"cache": cache})})


def _run_stages(job: Job, until: str) -> dict[str, Any]:
    cfg = job.cfg
    if cfg.init:
        job.stage("init", lambda: take_over(job))
    games = build.make_games(cfg.world, cfg.seed, cfg.gate.tasks if cfg.gated else 0)
    results: dict[str, Any] = {}
    with ReplayStore(job.path / "replay.sqlite") as store:
        stages: dict[str, Callable[[], Mapping[str, Any]]] = {
            "collect": lambda: _collect(job, games, store),
            "fit": lambda: _fit(job, store),
            "audit": lambda: _audit(job, games, store),
            "clone": lambda: _clone(job, store),
            "before": lambda: _measure(job, games, store, job.path / "cloned"),
            "dream": lambda: _dream(job, games, store),
            "after": lambda: _measure(job, games, store, promoted(job.path)),
        }
        for name, work in stages.items():
            if name == "dream":
                _warn_of_few(job, results["before"])
            results[name] = job.stage(name, work)
            if name == until:
                break
    if "after" in results:
        _warn_of_divergence(results)
    if job.ledger.lines:
        results["ledger"] = job.ledger.data()
    return results


def take_over(job: Job) -> dict[str, Any]:
    """Another run's logs, experience model and policy, and its marks of what made them."""
    cfg, source = job.cfg, RunFolder(Path(job.cfg.init))
    dream = RunFolder(Path(cfg.init_experience)) if cfg.init_experience else source
    needed = [(source, "collect", "replay.sqlite"), (dream, "fit", "experience")]
    if cfg.init_weights != "none":
        needed += [(source, "clone", "cloned")]
    if cfg.init_weights == "policy":
        needed += [(source, "clone", promoted(source.path).name)]  # whether it ended or stopped
    for run, stage, name in needed:
        if not run.stage_done(stage) or not (run.path / name).exists():
            raise DreamGymError(f"{run.path} has no {name} to begin from: let it finish first")
    copy_store(source.path / "replay.sqlite", job.path / "replay.sqlite")
    _copy_model(dream.path / "experience", job.path / "experience")
    marks = {"collect": source.stage_data("collect")}
    marks |= {name: dream.stage_data(name) for name in ("fit", "audit") if dream.stage_done(name)}
    told = {"run": cfg.init, "weights": cfg.init_weights, "experience": str(dream.path)}
    if cfg.init_weights == "none":
        measured = "none"
    else:
        begun = cfg.init_weights == "cloned"
        weights = source.path / "cloned" if begun else promoted(source.path)
        _copy_model(weights, job.path / "cloned")
        marks["clone"] = source.stage_data("clone")
        measured = "before" if begun else "after"
    same = ("seed", "world", "eval_temperature", "rollout", "experience", "init_experience")
    old = read_config(source.path)
    if source.stage_done(measured) and all(getattr(cfg, n) == getattr(old, n) for n in same):
        marks["before"] = source.stage_data(measured)  # the same policy on the same games
    for name, data in marks.items():
        job.folder.mark_stage(name, data)
    return told


def _copy_model(source: Path, target: Path) -> None:
    """Weights, tokenizer and calibration; not what only training on needs."""
    shutil.rmtree(target, ignore_errors=True)
    leave = shutil.ignore_patterns(
        "optimizer*", "adapter*", "critic*", "*gate.json", "learner.json"
    )
    shutil.copytree(source, target, ignore=leave)


def promoted(run: Path) -> Path:
    """The policy a run came to: what its gate let through last, or else its last checkpoint."""
    return settled(run / "best") or run / "policy"


def _warn_of_divergence(results: dict[str, Any]) -> None:
    before, after = results["before"], results["after"]

    def rates(world: str) -> tuple[Rate, Rate]:
        told = before[world], after[world]
        return Rate(told[0]["hits"], told[0]["episodes"]), Rate(
            told[1]["hits"], told[1]["episodes"]
        )

    results["alarm"] = alarm(rates("dream"), rates("real"))
    if results["alarm"]:
        print(results["alarm"], file=sys.stderr)


def _warn_of_few(job: Job, before: Mapping[str, Any]) -> None:
    """GRPO learns from groups that are neither solved nor failed throughout."""
    success = before[job.cfg.train_world]["success"]
    if success is None or job.cfg.learner.algorithm != "grpo":
        return
    if warning := few_informative(success, job.cfg.rollout.group_size):
        print(f"warning: {warning}", file=sys.stderr)


def _collect(job: Job, games: build.Games, store: ReplayStore) -> dict[str, Any]:
    with job.progress.bar("collect offline episodes", _num_offline(job.cfg)) as tick:
        report = build.fill_store(job.cfg, games.train, store, lambda n: tick(n, ""))
    return report | store.counts()


def _num_offline(cfg: RunConfig) -> int:
    return cfg.offline.expert + cfg.offline.noisy + cfg.offline.random


def _fit(job: Job, store: ReplayStore) -> dict[str, Any]:
    """Nothing where neither the dream nor the policy begins from a fitted model."""
    if job.cfg.experience.llm and job.cfg.clone.pretrained:
        return {"skipped": f"{job.cfg.experience.llm} dreams untrained"}
    with job.progress.bar("fit experience model", job.cfg.fit.num_tokens) as tick:
        loss = build.fit_experience(
            job.cfg, store, job.path / "experience", lambda n, loss: tick(n, f"loss {loss:.2f}")
        )
    return {"loss": loss}


def _audit(job: Job, games: build.Games, store: ReplayStore) -> dict[str, Any]:
    """The dream's next states on held-out games, with the true hidden state given."""
    dream = build.make_dream(job.cfg, store, job.path / "experience", job.ledger)
    logs = build.held_out_episodes(games.eval, job.cfg.seed)
    with job.progress.bar("audit the dream", len(logs)) as tick:
        result = asyncio.run(next_state_fidelity(dream.model, logs))
        tick(len(logs), f"exact {result.exact.value:.0%}")
    return result.data()


def _clone(job: Job, store: ReplayStore) -> dict[str, Any]:
    with job.progress.bar("clone demonstrations", job.cfg.clone.sft.num_tokens) as tick:
        metrics = build.clone_policy(
            job.cfg,
            store,
            job.path / "experience",
            job.path / "cloned",
            lambda n, loss: tick(n, f"loss {loss:.2f}"),
        )
    return {**metrics, "demonstrations": job.cfg.clone.demonstrations}


def _measure(job: Job, games: build.Games, store: ReplayStore, weights: Path) -> dict[str, Any]:
    """Success in the real world on held-out games, and in dreams of tasks to train on."""
    cfg = job.cfg
    model, tokenizer = load_model(weights)
    policy = LocalLLM(model, tokenizer, slots=cfg.rollout.in_flight + cfg.num_dreamt)
    dream = build.make_dream(cfg, store, job.path / "experience", job.ledger)
    tasks = build.training_tasks(games, store)[: cfg.num_dreamt]

    async def measure() -> tuple[Evaluation, Evaluation]:
        total = len(games.eval) + len(tasks)
        with (
            job.progress.bar("measure", total) as tick,
            AlfworldWorld(games.eval, cfg.world.backend) as world,
        ):
            done = itertools.count(1)
            rollout = eval_rollout(cfg)
            # a dream is measured at the length it is trained at: a dreamt turn is slow
            as_trained = rollout.model_copy(update={"max_turns": cfg.rollout.max_turns})

            def count(episode: Episode) -> None:
                tick(next(done), "")

            # both at once: what is left of one when most have ended fills the other's batches
            return await asyncio.gather(
                evaluate(
                    policy, world.tasks, world.make_env, rollout,
                    world="real", seed=cfg.seed, on_episode=count,
                ),
                evaluate(
                    policy, tasks, dream.make_env, as_trained,
                    world="dream", seed=cfg.seed, on_episode=count,
                ),
            )  # fmt: skip

    real, dreamt = asyncio.run(measure())
    return {"real": as_data(real), "dream": as_data(dreamt), "faults": dict(dream.model.faults)}


def as_data(result: Evaluation) -> dict[str, Any]:
    low, high = result.success.interval
    return {
        "hits": result.success.hits,
        "episodes": result.success.total,
        "success": _known(result.success.value),
        "low": low,
        "high": high,
        "half_width": result.success.half_width,
        "mean_turns": _known(result.mean_turns),
        "by_kind": {kind: [rate.hits, rate.total] for kind, rate in result.by_kind.items()},
        "endings": dict(result.endings),
    }


def _known(value: float) -> float | None:
    """None where every episode was a fault, so that there is nothing to take a mean of."""
    return None if math.isnan(value) else value


def _learner(job: Job, store: ReplayStore) -> Learner:
    """From the last checkpoint where there is one, else from the clone."""
    cfg = job.cfg
    checkpoint = settled(job.path / "policy")
    cloned = job.path / "cloned"
    # adapters are put on what they were first put on; the checkpoint holds them apart as well
    model, tokenizer = load_model(cloned if cfg.learner.adapter.rank else checkpoint or cloned)
    held = cfg.learner.objective.kl > 0 and not cfg.learner.adapter.rank
    learner = Learner(
        model,
        tokenizer,
        cfg.learner,
        temperature=cfg.rollout.temperature,
        num_updates=cfg.steps,
        demonstrations=build.demonstration_rows(cfg, store, tokenizer),
        reference=load_model(cloned)[0] if held else None,
    )
    if checkpoint:
        learner.load_optimizer(checkpoint)
    return learner


def _dream(job: Job, games: build.Games, store: ReplayStore) -> dict[str, Any]:
    """The main loop. The held-out games are known to the curriculum only by their hashes."""
    cfg = job.cfg
    learner = _learner(job, store)
    tasks = build.training_tasks(games, store)
    world = build.make_dream(cfg, store, job.path / "experience", job.ledger)
    text = world.model.text
    curriculum = Curriculum(
        tasks,
        cfg.curriculum,
        world,
        seed=cfg.seed,
        held_out=[task_hash(task, text) for task in build.held_out_tasks(cfg.world, games)],
        by_cluster=cfg.learner.algorithm == "ppo",
    )
    if checkpoint := settled(job.path / "policy"):
        curriculum.restore((checkpoint / "curriculum.json").read_text())

    spent = real_transitions(cfg, store)
    meter = Meter(max(0, cfg.real_budget - spent) if cfg.real_budget else None)

    async def dream() -> None:
        with (
            JsonlLog(job.path / "metrics.jsonl") as metrics,
            JsonlLog(job.path / "curriculum.jsonl") as chosen,
            AlfworldWorld(games.train, cfg.world.backend) as real_train,
            AlfworldWorld(games.eval, cfg.world.backend) as real_eval,
            AlfworldWorld(games.validation, cfg.world.backend) as validation,
            job.progress.bar(f"train in the {cfg.train_world}", cfg.steps) as tick,
        ):
            for log in (metrics, chosen):  # what a killed run logged past its checkpoint
                log.truncate_after(learner.step - 1)
            real = metered(real_train.make_env, meter)
            parts = Parts(
                learner=learner,
                curriculum=curriculum,
                dream=world,
                make_env=world.make_env if cfg.train_world == "dream" else real,
                make_real=real_eval.make_env,
                replay=store,
                eval_tasks=real_eval.tasks,
                validation=validation.tasks,
                make_validation=metered(validation.make_env, meter),
                gate=Gate(cfg.gate, job.path / "best") if cfg.gated else None,
                meter=meter,
                chosen=chosen,
            )
            name = f"{cfg.train_world}/train_success"
            await train(
                cfg,
                parts,
                metrics,
                job.path / "policy",
                lambda step, m: tick(step + 1, f"success {m[name]:.0%}"),
            )

    asyncio.run(dream())
    return {
        "steps": learner.step,
        "faults": dict(world.model.faults),
        **world.model.tally,
        "variants": len(curriculum.variants),
        "refused": dict(curriculum.writer.refused),
        "real_transitions_online": real_transitions(cfg, store),
        "real_transitions_gate": store.real_transitions(run_name(cfg) + GATE),
    }


def measure_real(
    run: Path, games: Sequence[Game], backend: Backend, weights: str, progress: Progress
) -> Evaluation:
    """A run's policy on games of the real world, on either back end; needs no lock, changes
    nothing."""
    cfg = read_config(run)
    folder = promoted(run) if weights == "policy" else run / weights
    policy = LocalLLM(*load_model(folder), slots=cfg.rollout.in_flight)

    async def measure() -> Evaluation:
        with progress.bar("measure", len(games)) as tick, AlfworldWorld(games, backend) as world:
            done = itertools.count(1)
            return await evaluate(
                policy, world.tasks, world.make_env, eval_rollout(cfg),
                world="real", seed=cfg.seed, on_episode=lambda episode: tick(next(done), ""),
            )  # fmt: skip

    return asyncio.run(measure())


def annotate_logs(
    store: ReplayStore,
    teacher: str,
    progress: Progress,
    *,
    limit: int | None,
    server: ServerConfig,
    ledger: Ledger,
) -> dict[str, Any]:
    """Reasons for the store's offline episodes, by rules or by any language model."""
    with progress.bar(f"annotate by {teacher}", limit or store.counts()["real_episodes"]) as tick:

        def show(done: int, total: int) -> None:
            tick(done, "")

        if teacher == RULES:
            outcomes = annotate_by_rules(store, AlfworldText(), limit=limit, on_episode=show)
        else:
            llm = open_llm(teacher, "teacher", server, ledger, slots=server.in_flight)
            price = price_of(served_model(teacher) if is_served(teacher) else teacher, server)
            made = Teacher(llm, teacher, price, in_flight=server.in_flight)
            outcomes = asyncio.run(annotate_store(store, made, limit=limit, on_episode=show))
    return {
        "episodes": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "annotated": len(store.annotations(teacher)),
        "ledger": store.ledger(teacher),
    }


def read_config(run: Path) -> RunConfig:
    """The resolved config that a run was made with."""
    path = run / "config.toml"
    if not path.exists():
        raise DreamGymError(f"{run} is no run folder: it has no config.toml")
    settings, _ = load_config(RunConfig, path)
    return settings


def finish(job: Job, results: Mapping[str, Any]) -> None:
    """Save what the run found where reports read it."""
    write_json(job.path / "summary.json", results)
    job.folder.list_files("summary.json", "metrics.jsonl")
