"""The parts of an audit: each measures one thing about one run's dream."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from dreamgym import build
from dreamgym.audit.episodes import Compared, compare, effective_groups, rank_agreement, ratio
from dreamgym.audit.judge import judge
from dreamgym.audit.luck import measure_luck
from dreamgym.audit.transitions import (
    Prediction,
    copy_last_state,
    facts_changed,
    nearest_neighbour,
    predict,
    predict_in_dream,
    rate_data,
    split,
    strictly,
    summarise,
    turn_range,
)
from dreamgym.config import RunConfig
from dreamgym.envs.alfworld.demonstrate import demonstrate
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.policies import PROBES, ExpertPolicy, RandomPolicy
from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.envs.base import Env, MakeEnv
from dreamgym.envs.text import Annotation
from dreamgym.evaluate import Rate
from dreamgym.evaluate import summarise as success_of
from dreamgym.experience.confidence import auroc, calibration_error, reliability
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceModel
from dreamgym.job import Progress
from dreamgym.llm.base import LLM
from dreamgym.llm.local import LocalLLM
from dreamgym.llm.weights import load_model
from dreamgym.replay.retrieve import LexicalRetriever
from dreamgym.replay.store import ReplayStore
from dreamgym.rollout import RolloutConfig, collect, group_number
from dreamgym.train import eval_rollout
from dreamgym.types import DreamFault, DreamGymError, Episode, Task

PROBE_TURNS = 20
"""A probe that has not been paid by then is not paid later: it does the same all the time."""


NUM_TOLD = 3
"""Dreams that are written out for people to read."""


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """How much is measured."""

    episodes: int = 40  # held-out tasks that every policy plays, and logs of the transitions
    sequences: int = 10  # of fixed actions, for luck
    replays: int = 5
    groups: int = 20
    group_size: int = 4
    judged: int = 100  # transitions an LLM judge is asked about
    backend: Literal["fast", "engine"] = "fast"

    def __post_init__(self) -> None:
        for name in ("episodes", "sequences", "replays"):
            if getattr(self, name) < 1:
                raise DreamGymError(f"--{name} {getattr(self, name)}: an audit needs 1 or more")


@dataclass(frozen=True)
class Audit:
    """What is judged, and by what."""

    run: Path
    cfg: RunConfig
    config: AuditConfig
    dream: DreamWorld
    games: Sequence[Game]
    store: ReplayStore
    progress: Progress
    judge: LLM | None = None
    judge_name: str = ""

    @property
    def model(self) -> ExperienceModel:
        return self.dream.model

    @cached_property
    def tasks(self) -> list[Task]:
        """Held-out tasks with the first state that the real world gives."""
        return build.first_states(self.games)

    @cached_property
    def truth(self) -> dict[str, Mapping[str, str]]:
        return {game.id: build.true_facts(game) for game in self.games}

    def dream_with(
        self, known: Mapping[str, Mapping[str, str]] | None = None, **config: Any
    ) -> DreamWorld:
        """The same dream, told other hidden states or dreamt otherwise."""
        return DreamWorld(
            ExperienceModel(
                self.model.llm,
                self.model.text,
                self.model.config.model_copy(update=config),
                retriever=self.model.retriever,
                known=known,
                calibration=self.model.calibration,
            )
        )

    @cached_property
    def policies(self) -> dict[str, LLM]:
        """From weak to strong, as far as the run has trained any."""
        made: dict[str, LLM] = {"random": RandomPolicy()}
        for name in ("cloned", "policy"):
            if (self.run / name / "config.json").exists():
                weights = load_model(self.run / name)
                made[name] = LocalLLM(*weights, slots=self.cfg.rollout.in_flight)
        return made | {"half expert": ExpertPolicy(noise=0.5), "expert": ExpertPolicy()}

    @property
    def own_policy(self) -> str:
        """The name of the policy the run has trained, or of one that fails and succeeds."""
        return next((n for n in ("policy", "cloned") if n in self.policies), "half expert")


Log = tuple[Episode, Annotation]
Tick = Callable[[], None]
Part = Callable[[Audit, Tick], Coroutine[Any, Any, dict[str, Any]]]


async def transitions(audit: Audit, tick: Tick) -> dict[str, Any]:
    """Next states, rewards and ends; with the true hidden state, and with a dreamt one."""
    logs = build.held_out_episodes(audit.games, audit.cfg.seed, len(audit.games))
    failure = audit.model.text.failure
    alone = await predict(strictly(audit.model), logs)
    dreamt = await predict_in_dream(audit.dream, logs)
    retriever = audit.model.retriever or LexicalRetriever.from_store(audit.store)
    predictors = {
        "experience model alone": alone,
        "as dreamt": dreamt,
        "copy the last state": copy_last_state(alone),
        "nearest neighbour in replay": nearest_neighbour(alone, retriever),
    }
    imagined = await _imagined(audit, [episode for episode, _ in logs])
    guessed = await predict_in_dream(audit.dream, imagined)
    tick()
    return {
        "true hidden state": {k: summarise(p, failure).data() for k, p in predictors.items()},
        "dreamt hidden state": summarise(guessed, failure).data(),
        "turns": fmean(len(episode.turns) for episode, _ in logs),
        "by facts changed": split(dreamt, facts_changed),
        "by turn": split(dreamt, turn_range),
        "by rule": rate_data(_share(dreamt, lambda p: p.by == "rule")),
        "confidence": _confidence(audit.model, alone),
    }


def _share(predictions: Sequence[Prediction], is_so: Callable[[Prediction], bool]) -> Rate:
    return Rate(sum(map(is_so, predictions)), len(predictions))


async def _imagined(audit: Audit, episodes: Sequence[Episode]) -> list[Log]:
    """The same logs under hidden states that the model has dreamt up for their tasks."""
    text = audit.model.text
    starts = await asyncio.gather(
        *(audit.dream.start_facts(episode.task, n) for n, episode in enumerate(episodes)),
        return_exceptions=True,
    )
    return [
        (episode, text.annotate(episode, start))
        for episode, start in zip(episodes, starts, strict=True)
        if not isinstance(start, BaseException)
    ]


def _confidence(model: ExperienceModel, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Whether the calibrated confidence tells right from wrong where it was not calibrated."""
    known = [(model.calibration(p.answer.logprob), p.exact) for p in predictions if p.answer]
    scores, right = [s for s, _ in known], [r for _, r in known]
    bins = reliability(scores, right)
    surest = sorted(known, reverse=True)[: max(1, len(known) * 9 // 10)]
    return {
        "auroc": auroc(scores, right),
        "calibration_error": calibration_error(bins) if known else None,
        "bins": bins,
        "exact_of_surest_nine_tenths": fmean(r for _, r in surest) if known else None,
        "calibrated_on": model.calibration.num,
    }


async def episodes(audit: Audit, tick: Tick) -> dict[str, Any]:
    """Real, dream and replayed, with the true hidden state and with a dreamt one."""
    return {
        "true hidden state": await awake(audit, audit.dream_with(known=audit.truth), tick),
        "dreamt hidden state": await awake(audit, audit.dream_with(), tick),
    }


async def awake(audit: Audit, dream: DreamWorld, tick: Tick = lambda: None) -> dict[str, Any]:
    """Every policy in one dream, in the real world, and the dream's actions again when awake."""
    compared: dict[str, Compared] = {}
    with AlfworldWorld(audit.games, audit.config.backend) as real:
        for name, policy in audit.policies.items():
            compared[name] = await compare(
                policy, audit.tasks, real.make_env, dream.make_env, eval_rollout(audit.cfg),
                seed=audit.cfg.seed, on_episode=tick,
            )  # fmt: skip
    rates = {name: one.data() for name, one in compared.items()}
    ranked = ([rate[w]["value"] or 0.0 for rate in rates.values()] for w in ("dream", "real"))
    return {
        "policies": rates,
        "consistency": ratio(list(compared.values())),
        "consistency_faults_fail": ratio(list(compared.values()), faults_fail=True),
        "rank_agreement": rank_agreement(*ranked),
        "faults": dict(dream.model.faults),
        "tally": dict(dream.model.tally),
    }


async def probes(audit: Audit, tick: Tick) -> dict[str, Any]:
    """Agents that solve nothing, and the share of tasks for which the dream pays them."""
    config = RolloutConfig(group_size=1, max_turns=PROBE_TURNS, invalid_limit=PROBE_TURNS)
    dream = audit.dream_with()
    told = {}
    for name, probe in PROBES.items():
        groups = await collect(
            probe, audit.tasks, dream.make_env, config, world="dream", seed=audit.cfg.seed,
            on_episode=lambda episode: tick(),
        )  # fmt: skip
        told[name] = rate_data(success_of([g.episodes[0] for g in groups]).success)
    return told


async def luck(audit: Audit, tick: Tick) -> dict[str, Any]:
    """The expert's real actions again and again: greedy or sampled, one hidden state or many."""
    played = (demonstrate(game, "expert", seed=audit.cfg.seed) for game in audit.games)
    solved = list(itertools.islice((e for e in played if e.success), audit.config.sequences))
    told = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        fixed = audit.dream_with(known=audit.truth, temperature=temperature)
        own = audit.dream_with(temperature=temperature)
        for hidden, make in (
            ("one hidden state", lambda n, world=fixed: _numbered(world, 0, n)),
            ("a hidden state of its own", lambda n, world=own: _numbered(world, n, n)),
        ):
            luck = await measure_luck(make, solved, audit.config.replays, tick)
            told[f"{name}, {hidden}"] = luck.data()
    return told


def _numbered(world: DreamWorld, hidden: int, number: int) -> MakeEnv:
    """Environments whose hidden state and whose sampling noise are chosen apart."""

    def make(task: Task, group: int) -> Env:
        return world.make_env(task, hidden, noise=number)

    return make


async def groups(audit: Audit, tick: Tick) -> dict[str, Any]:
    """How many groups could teach GRPO anything, in the dream and in the real world."""
    name = audit.own_policy
    config = audit.cfg.rollout.model_copy(update={"group_size": audit.config.group_size})
    tasks = audit.tasks[: audit.config.groups]
    told: dict[str, Any] = {"policy": name}
    with AlfworldWorld(audit.games, audit.config.backend) as real:
        worlds = {"dream": audit.dream_with().make_env, "real": real.make_env}
        for world, make_env in worlds.items():
            rate = await effective_groups(
                audit.policies[name], tasks, make_env, config,
                world=world, seed=audit.cfg.seed, on_episode=tick,
            )  # fmt: skip
            told[world] = rate_data(rate)
    return told


async def opinion(audit: Audit, tick: Tick) -> dict[str, Any]:
    if audit.judge is None:
        return {"skipped": "no judge was given: --judge NAME names a language model"}
    logs = build.held_out_episodes(audit.games, audit.cfg.seed, len(audit.games))
    told = await predict(strictly(audit.model), logs)
    return await judge(audit.judge, told[:: max(1, len(told) // audit.config.judged)], tick)


async def dreams(audit: Audit, tick: Tick) -> dict[str, Any]:
    """Some dreams word for word, with the hidden state that only the dream knows."""
    dream = audit.dream_with()
    config = audit.cfg.rollout.model_copy(update={"group_size": 1})
    groups = await collect(
        audit.policies[audit.own_policy], audit.tasks[:NUM_TOLD], dream.make_env, config,
        world="dream", seed=audit.cfg.seed, on_episode=lambda episode: tick(),
    )  # fmt: skip
    told = []
    for number, group in enumerate(groups):
        episode = group.episodes[0]
        hidden: Mapping[str, str] | None
        try:
            hidden = await dream.start_facts(group.task, group_number(audit.cfg.seed, number))
        except DreamFault:
            hidden = None  # no world could be dreamt up for it: the fault is told
        told.append(
            {
                "task": group.task.instruction,
                "first_state": group.task.first_state,
                "hidden": None if hidden is None else dict(hidden),
                "turns": [
                    {"action": t.action, "by": t.by, "next_state": t.next_state, "reward": t.reward}
                    for t in episode.turns
                ],
                "ending": str(episode.ending),
                "fault": episode.fault,
            }
        )
    return {"policy": audit.own_policy, "dreams": told}
