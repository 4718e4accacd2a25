"""How far a dream agrees with the real world, transition by transition, on held-out episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.envs.text import Annotation
from dreamgym.evaluate import Rate
from dreamgym.experience.corpus import transition_conversation
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.types import DreamFault, Episode, Transition


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
    model: ExperienceModel, episodes: Sequence[Episode], annotations: Sequence[Annotation]
) -> Fidelity:
    """Each transition is predicted from its true past (teacher-forced), without a second try.

    `annotations` carry the hidden state to be given: the true one for the bar in worlds.md, or what
    hindsight found. A fault counts as a wrong prediction here, for it is the model that is judged.
    """
    strict = ExperienceModel(
        model.llm, model.text, _strict(model.config), retriever=model.retriever
    )
    pairs = await asyncio.gather(
        *(
            _one(strict, episode, annotation, f"audit/{i}")
            for i, (episode, annotation) in enumerate(zip(episodes, annotations, strict=True))
        )
    )
    rows = [row for pair in pairs for row in pair]
    return _summarise(rows, strict)


def _strict(config: ExperienceConfig) -> ExperienceConfig:
    return config.model_copy(update={"retries": 0, "temperature": 0.0})


async def _one(
    model: ExperienceModel, episode: Episode, annotation: Annotation, session: str
) -> list[tuple[Transition, Any]]:
    messages = transition_conversation(
        episode, annotation, retriever=model.retriever, k=model.config.k
    )
    rows = []
    for index, step in enumerate(episode.transitions()):
        try:
            answer, _ = await model.answer(messages[: 3 * index + 3], session, index)
        except DreamFault:
            answer = None
        rows.append((step, answer))
    await model.llm.release(session)
    return rows


def _summarise(rows: Sequence[tuple[Transition, Any]], model: ExperienceModel) -> Fidelity:
    def rate(hits: Sequence[bool]) -> Rate:
        return Rate(sum(hits), len(hits))

    def same(step: Transition, answer: Any) -> bool:
        return answer is not None and answer.next_state == step.next_state

    return Fidelity(
        exact=rate([same(s, a) for s, a in rows]),
        copied=rate([s.state == s.next_state for s, _ in rows]),
        refused=rate([same(s, a) for s, a in rows if s.next_state == model.text.failure]),
        reward=rate([a is not None and (a.reward, a.done) == (s.reward, s.done) for s, a in rows]),
        false_success=rate([a is not None and a.reward > 0 for s, a in rows if s.reward == 0]),
        missed_success=rate([a is None or a.reward == 0 for s, a in rows if s.reward > 0]),
        faults=Counter(model.faults),
    )
