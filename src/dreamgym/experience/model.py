"""The experience model: reasons about an action, then writes next state and reward (Eq. 4)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dreamgym.envs.text import WorldText
from dreamgym.experience import instructed
from dreamgym.experience.confidence import RAW, Calibration
from dreamgym.experience.parse import read_answer, strip_reasoning
from dreamgym.experience.prompts import (
    Answer,
    Telling,
    hidden_question,
    opening,
    question,
    variant_messages,
)
from dreamgym.llm.base import LLM, Message, Sampling
from dreamgym.replay.retrieve import Retriever
from dreamgym.types import Completion, DreamFault, ModelFault, Task


class ExperienceConfig(Telling):
    """How a dream is dreamt."""

    llm: str = ""
    """Who answers in dreams: empty is the run's own fitted model; `openai:MODEL` is a model at
    `server.url`, else a folder, a GGUF file, `smollm2` or a name in the Hub's cache. Such a model
    needs no training; it should be `instructed`, with `k` 4 and the history."""
    max_tokens: int = 112
    """For one answer: reasoning, next state and reward."""
    temperature: float = 0.0
    """Of the next state. 0 keeps luck out of a group's rewards."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often an answer that is unreadable, or that a guard refuses, is asked again before the
    episode ends as a dream fault."""
    guard: bool = True
    """Refuse an answer that cannot be true by the dream's own past: INCONSISTENT."""
    min_confidence: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Refuse an answer whose calibrated chance of being right is lower: LOW_CONFIDENCE. 0 accepts
    any."""
    grounded: bool = True
    """What real logs of a task have shown of its place holds in every dream of it; without it the
    whole hidden state is dreamt up."""
    rules: bool = True
    """The world's reader refuses, without asking the model, what the dream's own facts rule out."""
    judge: Literal["facts", "model"] = "facts"
    """Who pays the reward: the goal checked on the dream's own facts where a reader can, or the
    model's own word, which those facts must then support. Under `facts` every disagreement with the
    model's claim is counted, under `model` an unsupported claim is a SPURIOUS fault."""
    max_hidden_tokens: int = 2048
    """For a whole hidden state, where an instructed model writes it in one answer."""
    hidden_tries: int = 4
    """Hidden states written for a task before it counts as one the world cannot contain."""

    @model_validator(mode="after")
    def _has_facts(self) -> ExperienceConfig:
        if not self.hidden and (self.judge == "facts" or self.rules or self.guard):
            raise ValueError(
                "without a hidden state there are no facts to go by: with hidden = false set"
                " judge = model, rules = false and guard = false"
            )
        return self


class ExperienceModel:
    """An `LLM` that stands in for a world. Every fault it meets is counted in `faults`."""

    def __init__(
        self,
        llm: LLM,
        text: WorldText,
        config: ExperienceConfig,
        *,
        retriever: Retriever | None = None,
        known: Mapping[str, Mapping[str, str]] | None = None,
        calibration: Calibration = RAW,
    ) -> None:
        """`known` holds, by task id, start facts that real logs of that task have shown."""
        self.llm, self.text, self.config = llm, text, config
        self.retriever = retriever
        self.known = dict(known or {})
        self.calibration = calibration
        self.faults: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        """`answers` and how many of them were `asked_again`; actions `refused` by rule; rewards
        where the model `disagreed` with the facts."""

    async def imagine(self, task: Task, seed: int) -> Mapping[str, str]:
        """Write what the agent cannot see yet: one fact per place, kept for the whole episode.

        What real logs of this very task have shown is taken over; the rest is drawn at temperature
        1. Raises DreamFault where no draw could meet the instruction, or all did from the start.
        """
        if not self.config.hidden:
            return {}
        for attempt in range(self.config.hidden_tries):
            facts = await self._draw_start(task, seed * 101 + attempt)
            if self.text.met(task.instruction, facts):
                self.faults["SOLVED_START"] += 1  # it would pay whoever looks, for nothing
            elif self.text.solvable(task.instruction, task.first_state, facts):
                return facts
            else:
                self.faults["UNSOLVABLE_START"] += 1
        raise DreamFault("UNSOLVABLE", f"{self.config.hidden_tries} hidden states for {task.id}")

    async def _draw_start(self, task: Task, seed: int) -> Mapping[str, str]:
        places = self.text.places(task.first_state)
        logged = self.known.get(task.id, {})
        facts = {place: logged[place] for place in places if place in logged}
        missing = [place for place in places if place not in facts]
        if self.config.instructed:
            facts |= await self._draw_at_once(task, facts, missing, seed)
        else:
            facts |= await self._draw_by_place(task, facts, missing, seed)
        return self.text.start_facts(task.instruction, task.first_state, facts)

    async def _draw_at_once(
        self, task: Task, known: Mapping[str, str], places: Sequence[str], seed: int
    ) -> Mapping[str, str]:
        """In one call, by a model that was told how."""
        if not places:
            return {}
        examples = self._examples(task, seed)
        messages = instructed.hidden_request(task, known, places, examples)
        completion = await self._ask(messages, Sampling(1.0, self.config.max_hidden_tokens, seed))
        try:
            text, _, _ = strip_reasoning(completion.text)
            return instructed.read_hidden(text or "", places)
        except DreamFault as fault:
            cut = completion.finish_reason == "length"
            self.faults["HIDDEN_CUT" if cut else f"HIDDEN_{fault.kind}"] += 1
            return {}  # the reader gives the places their empty facts

    def _examples(self, task: Task, seed: int) -> Mapping[str, str]:
        """What logs have shown of another task's places: how this world words a fact."""
        others = [name for name in sorted(self.known) if name != task.id]
        return self.known[random.Random(seed).choice(others)] if others else {}

    async def _draw_by_place(
        self, task: Task, known: Mapping[str, str], places: Sequence[str], seed: int
    ) -> Mapping[str, str]:
        """One question a place, as a fitted model has learnt to be asked."""
        messages, drawn = [opening(task)], {}
        for place, fact in known.items():
            messages += [hidden_question(place), Message("assistant", fact)]
        session = f"hidden/{task.id}/{seed}"
        for index, place in enumerate(places):
            messages.append(hidden_question(place))
            sampling = Sampling(1.0, self.config.max_tokens, seed * 997 + index)
            completion = await self._ask(messages, sampling, session)
            if completion.finish_reason == "length" or not completion.text:
                self.faults["HIDDEN_CUT"] += 1  # the reader gives this place its empty fact
            drawn[place] = completion.text
            messages.append(Message("assistant", completion.text, completion.ids))
        await self.llm.release(session)
        return drawn

    async def _ask(
        self, messages: Sequence[Message], sampling: Sampling, session: str = ""
    ) -> Completion:
        """A model that gives no answer at all breaks the dream, not the run."""
        try:
            return await self.llm.complete(messages, sampling, session=session)
        except ModelFault as fault:
            self.faults[fault.kind] += 1
            raise DreamFault(fault.kind, str(fault)) from fault

    def ask(
        self, past: Sequence[Message], state: str, action: str, facts: Sequence[str], task: Task
    ) -> list[Message]:
        """The messages that ask about one action, with what is looked up for it."""
        similar = []
        if self.retriever is not None and self.config.k:
            hits = self.retriever.similar(state, action, self.config.k, exclude_task=task.id)
            similar = [(hit.row.action, hit.row.next_state) for hit in hits]
        return question(self.config, past, state, action, facts, similar, task)

    async def answer(
        self,
        messages: Sequence[Message],
        session: str,
        seed: int,
        check: Callable[[Answer], None] = lambda answer: None,
    ) -> tuple[Answer, Message]:
        """The model's answer and the message it came in; raises DreamFault after the last retry.

        `check` raises DreamFault where an answer that can be read cannot be true.
        """
        budget = self.config.max_tokens
        for attempt in range(self.config.retries + 1):
            temperature = self.config.temperature if attempt == 0 else 1.0
            sampling = Sampling(temperature, budget, seed + attempt)
            completion = await self._ask(messages, sampling, session)
            self.tally["answers"] += 1
            self.tally["asked_again"] += attempt > 0
            try:
                if completion.prompt_ids and not completion.ids:
                    raise DreamFault(
                        "CONTEXT_FULL", "the episode is longer than the model's context"
                    )
                answer = self._weigh(read_answer(completion))
                if answer.reward > 0 and answer.next_state == self.text.failure:
                    raise DreamFault("CONTRADICTION", "a reward for an action that failed")
                check(answer)
                return answer, Message("assistant", completion.text, completion.ids)
            except DreamFault as fault:
                self.faults[fault.kind] += 1
                last = fault
                if completion.finish_reason == "length":
                    budget = 2 * self.config.max_tokens
        raise last

    def _weigh(self, answer: Answer) -> Answer:
        """The answer, unless it is less likely to be right than is asked for."""
        if self.config.min_confidence:
            sure = self.calibration(answer.logprob)
            if math.isnan(sure):
                raise DreamFault("NO_CONFIDENCE", "this model tells no log-probabilities")
            if sure < self.config.min_confidence:
                raise DreamFault("LOW_CONFIDENCE", f"{sure:.2f} for {answer.next_state[:80]!r}")
        return answer

    def inherit(self, variant: Task) -> None:
        """A variant is set in its parent's place: what logs have shown there holds for it too."""
        if variant.parent in self.known:
            self.known[variant.id] = self.known[variant.parent]

    async def vary(self, task: Task, seed: int) -> str:
        """The instruction of a harder task in the same place (Eq. 6); empty where it was cut."""
        tokens = self.config.max_hidden_tokens if self.config.instructed else 48
        sampling = Sampling(1.0, tokens, seed)
        try:
            completion = await self._ask(variant_messages(self.config, task), sampling)
        except DreamFault:
            return ""
        text, _, _ = strip_reasoning(completion.text)
        return "" if completion.finish_reason == "length" or text is None else text.strip()
