"""How far a dream agrees with the real world, transition by transition, on held-out episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.envs.text import Annotation
from dreamgym.evaluate import Rate
from dreamgym.experience.corpus import asked_turns
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import Answer
from dreamgym.types import DreamFault, Episode, Transition


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the experience model says of one real transition, shown its true past."""

    turn: int
    step: Transition
    answer: Answer | None  # None where it could not be read

    @property
    def exact(self) -> bool:
        return self.answer is not None and self.answer.next_state == self.step.next_state


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Shares of transitions that the dream got right or wrong, beside a trivial baseline."""

    exact: Rate
    copied: Rate  # the baseline: the next state is the last one again
    refused: Rate  # exact match where the world's true answer was its failure text
    reward: Rate  # reward and done both right
    false_success: Rate  # among transitions without a reward: the dream paid one
    missed_success: Rate  # among transitions with a reward: the dream paid none
    faults: Counter[str]

    def data(self) -> dict[str, Any]:
        rates = ("exact", "copied", "refused", "reward", "false_success", "missed_success")
        return {
            name: {
                "hits": rate.hits,
                "total": rate.total,
                "value": rate.value if rate.total else None,
            }
            for name, rate in ((name, getattr(self, name)) for name in rates)
        } | {"faults": dict(self.faults)}


async def next_state_fidelity(
    model: ExperienceModel, logs: Sequence[tuple[Episode, Annotation]]
) -> Fidelity:
    """The experience model alone, without rules, guards or a second try.

    Annotations carry the hidden state to be given: the true one for the bar in worlds.md, or what
    hindsight found. A fault counts as a wrong prediction here, for it is the model that is judged.
    """
    strict = strictly(model)
    return summarise(await predict(strict, logs), strict)


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


async def predict(
    model: ExperienceModel, logs: Sequence[tuple[Episode, Annotation]]
) -> list[Prediction]:
    """Each transition predicted from its true past (teacher-forced), in the logs' order."""
    told = await asyncio.gather(
        *(_one(model, *entry, f"audit/{i}") for i, entry in enumerate(logs))
    )
    return [prediction for episode in told for prediction in episode]


async def _one(
    model: ExperienceModel, episode: Episode, annotation: Annotation, session: str
) -> list[Prediction]:
    asked = asked_turns(episode, annotation, model.config, retriever=model.retriever)
    predictions = []
    for turn, (step, (prompt, _)) in enumerate(zip(episode.transitions(), asked, strict=True)):
        try:
            answer, _ = await model.answer(prompt, session, turn)
        except DreamFault:
            answer = None
        predictions.append(Prediction(turn, step, answer))
    await model.llm.release(session)
    return predictions


def summarise(predictions: Sequence[Prediction], model: ExperienceModel) -> Fidelity:
    """Rates over predictions."""

    def rate(hits: Sequence[bool]) -> Rate:
        return Rate(sum(hits), len(hits))

    rows = [(p.step, p.answer) for p in predictions]
    return Fidelity(
        exact=rate([p.exact for p in predictions]),
        copied=rate([s.state == s.next_state for s, _ in rows]),
        refused=rate([p.exact for p in predictions if p.step.next_state == model.text.failure]),
        reward=rate([a is not None and (a.reward, a.done) == (s.reward, s.done) for s, a in rows]),
        false_success=rate([a is not None and a.reward > 0 for s, a in rows if s.reward == 0]),
        missed_success=rate([a is None or a.reward == 0 for s, a in rows if s.reward > 0]),
        faults=Counter(model.faults),
    )
