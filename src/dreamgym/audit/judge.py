"""An LLM's opinion of predicted states, on the paper's four rubrics. No answer is no score."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.audit.transitions import Prediction
from dreamgym.experience.parse import objects, strip_reasoning
from dreamgym.instructions import instructions
from dreamgym.llm.base import LLM, Message, Sampling
from dreamgym.types import Completion, DreamFault, DreamGymError

RUBRICS = ("causal_consistency", "diversity", "informativeness", "hallucination")

_Score = Annotated[int, Field(ge=0, le=2)]


class _Scores(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    causal_consistency: _Score
    diversity: _Score
    informativeness: _Score
    hallucination: _Score


class _Verdict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    rubric_scores: _Scores


def judge_messages(prediction: Prediction) -> list[Message]:
    """One transition, its texts as JSON strings, so that none can speak for itself."""
    assert prediction.answer is not None
    told = {
        "task": prediction.step.task.instruction,
        "state": prediction.step.state,
        "action": prediction.step.action,
        "next_state": prediction.answer.next_state,
    }
    return [
        Message("system", instructions("judge")),
        Message("user", json.dumps(told, ensure_ascii=False)),
    ]


def read_scores(completion: Completion) -> dict[str, int]:
    """Four scores; raises DreamFault with the class of what is wrong. Nothing is guessed."""
    rest, _, _ = strip_reasoning(completion.text)
    if rest is None or not rest.strip():
        raise DreamFault("TRUNCATED_REASONING" if rest is None else "EMPTY")
    found = objects(rest, ("rubric_scores",))
    if len(found) != 1:
        raise DreamFault("AMBIGUOUS" if found else "UNREPAIRABLE", rest[:80])
    try:
        return _Verdict.model_validate(found[0]).rubric_scores.model_dump()
    except ValidationError as error:
        limits = ("greater_than_equal", "less_than_equal")
        kind = "OUT_OF_RANGE" if error.errors()[0]["type"] in limits else "UNREPAIRABLE"
        raise DreamFault(kind, rest[:80]) from error


async def judge(
    llm: LLM,
    predictions: Sequence[Prediction],
    on_answer: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Mean scores over what could be read; failures are counted by class and in no mean."""

    async def one(prediction: Prediction) -> dict[str, int] | str:
        try:
            return read_scores(await llm.complete(judge_messages(prediction), Sampling(0.0, 256)))
        except DreamFault as fault:
            return fault.kind
        except DreamGymError:
            return "JUDGE_UNAVAILABLE"
        finally:
            on_answer()

    asked = [p for p in predictions if p.answer is not None]
    told = await asyncio.gather(*map(one, asked))
    scores = [verdict for verdict in told if isinstance(verdict, dict)]
    return {
        "asked": len(asked),
        "judged": len(scores),
        "failures": dict(Counter(verdict for verdict in told if isinstance(verdict, str))),
        "scores": {name: fmean(s[name] for s in scores) if scores else None for name in RUBRICS},
    }
