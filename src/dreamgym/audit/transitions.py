"""How far a dream agrees with the real world, transition by transition, on held-out episodes.

Every transition is predicted from its true past (teacher-forced), by the experience model alone, by
the dream as it is dreamt (rules, guards, a second try), and by two predictors that know nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

from dreamgym.audit.text_scores import normalised, token_f1
from dreamgym.envs.text import Annotation
from dreamgym.evaluate import Rate
from dreamgym.experience.corpus import asked_turns
from dreamgym.experience.dream import DreamWorld, Snapshot
from dreamgym.experience.hidden import HiddenState
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import Answer
from dreamgym.llm.base import Message
from dreamgym.replay.retrieve import Retriever
from dreamgym.types import DreamFault, Ending, Episode, Transition

Logs = Sequence[tuple[Episode, Annotation]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is said of one real transition."""

    turn: int
    changed: int  # facts that the transition changes
    step: Transition
    answer: Answer | None  # None where there was none: a fault
    fault: str = ""
    by: str = "model"

    @property
    def exact(self) -> bool:
        return self.answer is not None and self.answer.next_state == self.step.next_state

    @property
    def nearly(self) -> bool:
        """Exact but for case, punctuation and blanks."""
        if self.answer is None:
            return False
        return normalised(self.answer.next_state) == normalised(self.step.next_state)

    @property
    def f1(self) -> float:
        return token_f1(self.answer.next_state, self.step.next_state) if self.answer else 0.0


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Shares of transitions that a predictor got right or wrong. A fault is a wrong prediction."""

    exact: Rate
    nearly: Rate
    f1: float
    copied: Rate  # the baseline: the next state is the last one again
    refused: Rate  # exact match where the world's true answer was its failure text
    reward: Rate  # reward and done both right
    done: Rate
    success_precision: Rate  # of the rewards paid, those that the world paid
    success_recall: Rate  # of the rewards the world paid, those paid here
    false_success: Rate  # among transitions without a reward: one was paid
    faults: Counter[str] = field(default_factory=Counter)

    def data(self) -> dict[str, Any]:
        rates = [f.name for f in fields(self) if f.type == "Rate"]
        told = {name: rate_data(getattr(self, name)) for name in rates}
        return told | {"f1": self.f1, "faults": dict(self.faults)}


def rate_data(rate: Rate) -> dict[str, Any]:
    """A rate with its interval; None where nothing was counted."""
    low, high = rate.interval
    value = rate.value if rate.total else None
    return {"hits": rate.hits, "total": rate.total, "value": value, "low": low, "high": high}


async def next_state_fidelity(model: ExperienceModel, logs: Logs) -> Fidelity:
    """The experience model alone, without rules, guards or a second try.

    Annotations carry the hidden state to be given: the true one for the bar in worlds.md, or what
    hindsight found.
    """
    return summarise(await predict(strictly(model), logs), model.text.failure)


def strictly(model: ExperienceModel) -> ExperienceModel:
    """The same model, greedy and asked once."""
    return ExperienceModel(
        model.llm,
        model.text,
        _strict(model.config),
        retriever=model.retriever,
        calibration=model.calibration,
    )


def _strict(config: ExperienceConfig) -> ExperienceConfig:
    return config.model_copy(update={"retries": 0, "temperature": 0.0, "min_confidence": 0.0})


@dataclass(frozen=True, slots=True)
class _Asked:
    """One transition of a log, as the dream would meet it."""

    turn: int
    changed: int
    step: Transition
    prompt: Sequence[Message]
    facts: dict[str, str]


def _asked(model: ExperienceModel, episode: Episode, annotation: Annotation) -> Iterator[_Asked]:
    hidden = HiddenState(annotation.start)
    prompts = asked_turns(episode, annotation, model.config, retriever=model.retriever)
    rows = zip(episode.transitions(), annotation.notes, prompts, strict=True)
    for turn, (step, note, (prompt, _)) in enumerate(rows):
        yield _Asked(turn, len(note.facts), step, prompt, dict(hidden.facts))
        hidden.update(note.facts)


async def predict(model: ExperienceModel, logs: Logs) -> list[Prediction]:
    """By the experience model alone, in the logs' order."""

    async def one(episode: Episode, annotation: Annotation, session: str) -> list[Prediction]:
        told = []
        for asked in _asked(model, episode, annotation):
            answer, fault = None, ""
            try:
                answer, _ = await model.answer(asked.prompt, session, asked.turn)
            except DreamFault as broken:
                fault = broken.kind
            told.append(Prediction(asked.turn, asked.changed, asked.step, answer, fault))
        await model.llm.release(session)
        return told

    told = await asyncio.gather(*(one(*log, f"audit/{i}") for i, log in enumerate(logs)))
    return [prediction for episode in told for prediction in episode]


async def predict_in_dream(world: DreamWorld, logs: Logs) -> list[Prediction]:
    """By the dream as it is dreamt: rules, guards, a second try, and whoever judges."""

    async def one(episode: Episode, annotation: Annotation) -> list[Prediction]:
        told = []
        for asked in _asked(world.model, episode, annotation):
            past = tuple(asked.prompt[:-2]) if world.model.config.history else ()
            now = Snapshot(episode.task, 0, asked.step.state, asked.facts, past)
            told.append(await _dreamt(world, now, asked))
        return told

    told = await asyncio.gather(*(one(*log) for log in logs))
    return [prediction for episode in told for prediction in episode]


async def _dreamt(world: DreamWorld, now: Snapshot, asked: _Asked) -> Prediction:
    env = world.fork(now)
    try:
        result = await env.step(asked.step.action)
    except DreamFault as broken:
        return Prediction(asked.turn, asked.changed, asked.step, None, broken.kind)
    finally:
        await env.close()
    answer = Answer(result.state, result.reward, result.ending is Ending.DONE)
    return Prediction(asked.turn, asked.changed, asked.step, answer, by=result.by)


def copy_last_state(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The baseline that says nothing has happened."""
    return [_instead(p, Answer(p.step.state, 0.0, False)) for p in predictions]


def nearest_neighbour(predictions: Sequence[Prediction], retriever: Retriever) -> list[Prediction]:
    """The baseline that says what happened the last time: the most similar real transition."""
    told = []
    for p in predictions:
        hits = retriever.similar(
            p.step.state, p.step.action, 1, exclude_task=p.step.task.id, real_only=True
        )
        row = hits[0].row if hits else None
        told.append(_instead(p, Answer(row.next_state, row.reward, row.done) if row else None))
    return told


def _instead(prediction: Prediction, answer: Answer | None) -> Prediction:
    return Prediction(prediction.turn, prediction.changed, prediction.step, answer, by="baseline")


def summarise(predictions: Sequence[Prediction], failure: str) -> Fidelity:
    """Rates over predictions; `failure` is what the world answers to an action that fails."""

    def rate(hits: Sequence[bool]) -> Rate:
        return Rate(sum(hits), len(hits))

    rows = [(p.step, p.answer or Answer("", -1.0, False)) for p in predictions]
    paid, earned = [a.reward > 0 for _, a in rows], [s.reward > 0 for s, _ in rows]
    return Fidelity(
        exact=rate([p.exact for p in predictions]),
        nearly=rate([p.nearly for p in predictions]),
        f1=fmean(p.f1 for p in predictions) if predictions else 0.0,
        copied=rate([s.state == s.next_state for s, _ in rows]),
        refused=rate([p.exact for p in predictions if p.step.next_state == failure]),
        reward=rate([(a.reward, a.done) == (s.reward, s.done) for s, a in rows]),
        done=rate([p.answer is not None and p.answer.done == p.step.done for p in predictions]),
        success_precision=rate([e for p, e in zip(paid, earned, strict=True) if p]),
        success_recall=rate([p for p, e in zip(paid, earned, strict=True) if e]),
        false_success=rate([p for p, e in zip(paid, earned, strict=True) if not e]),
        faults=Counter(p.fault for p in predictions if p.fault),
    )


def split(
    predictions: Sequence[Prediction], by: Callable[[Prediction], str]
) -> dict[str, dict[str, Any]]:
    """Exact match and token F1 of parts."""
    parts: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        parts.setdefault(by(prediction), []).append(prediction)
    return {
        name: rate_data(Rate(sum(p.exact for p in part), len(part)))
        | {"f1": fmean(p.f1 for p in part)}
        for name, part in sorted(parts.items())
    }


def facts_changed(prediction: Prediction) -> str:
    """`0`, `1` or `2+`: an answer that changes more is harder to foresee (EnvSimBench)."""
    return "2+" if prediction.changed > 1 else str(prediction.changed)


def turn_range(prediction: Prediction) -> str:
    """Where in its episode."""
    return next(f"{low + 1:02}-{low + 5:02}" for low in range(0, 10_000, 5)
                if prediction.turn < low + 5)  # fmt: skip
