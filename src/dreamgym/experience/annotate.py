"""Reasons for logged transitions, from a teacher: what Eq. 5 calls R*.

One call reads one whole episode and explains every step of it (the paper's appendix C). A teacher
is any `LLM`; without one the world's reader finds the causes in the log itself. What cannot be read
is asked for once more, then counted and left out; a reason that only repeats the next state is no
reason.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.envs.text import Annotation, WorldText
from dreamgym.experience.parse import objects, strip_reasoning
from dreamgym.instructions import instructions
from dreamgym.ledger import UNKNOWN_PRICE, Price
from dreamgym.llm.base import LLM, Message, Sampling
from dreamgym.replay.rows import Where
from dreamgym.replay.store import Call, ReplayStore
from dreamgym.types import Completion, DreamFault, DreamGymError, Episode, Usage

RULES = "rules"
"""The name under which the world's own reader annotates."""
MAX_REASON = 600
_RESTATES = 20
"""Characters; a shorter next state may well stand in its reason ("Nothing happens.")."""


class _Tutorial(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    overall_plan: str = ""
    success_mode: str = ""
    failure_mode: str = ""


class _Step(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    step_id: int
    transition_plan: Annotated[str, Field(min_length=1, max_length=MAX_REASON)]


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    task_tutorial: _Tutorial = _Tutorial()
    state_transitions: list[_Step]


@dataclass(frozen=True, slots=True)
class Reasons:
    """What a teacher says of one episode."""

    steps: tuple[str, ...]  # one a turn
    tutorial: dict[str, str]


@dataclass(frozen=True, slots=True)
class Teacher:
    """An `LLM` that annotates, under the name its annotations are kept by."""

    llm: LLM
    name: str
    price: Price = UNKNOWN_PRICE
    max_tokens: int = 4096
    retries: int = 1
    in_flight: int = 8


def teacher_messages(episode: Episode) -> list[Message]:
    """The whole episode in one message; its texts are JSON strings, so none can forge another."""
    steps = [
        {"step_id": i, "action": turn.action, "answer": turn.next_state}
        for i, turn in enumerate(episode.turns, 1)
    ]
    told = {
        "task": episode.task.instruction,
        "solved": episode.success,
        "first_state": episode.task.first_state,
        "steps": steps,
    }
    text = json.dumps(told, ensure_ascii=False)
    return [Message("system", instructions("teacher")), Message("user", text)]


def read_reasons(completion: Completion, episode: Episode) -> Reasons:
    """The one valid annotation in a completion; raises DreamFault with what is wrong with it."""
    rest, _, _ = strip_reasoning(completion.text)
    cut = completion.finish_reason == "length"
    if rest is None or not rest.strip():
        raise DreamFault("TRUNCATED_REASONING" if rest is None or cut else "EMPTY")
    found = objects(rest, ("state_transitions",))
    if not found:
        raise DreamFault("TRUNCATED" if cut else "UNREPAIRABLE", rest[:80])
    if len(found) > 1:
        raise DreamFault("AMBIGUOUS", f"{len(found)} annotations")
    try:
        reply = _Reply.model_validate(found[0])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DreamFault("UNREPAIRABLE", f"{where}: {first['msg']}") from error
    if [step.step_id for step in reply.state_transitions] != list(range(1, len(episode.turns) + 1)):
        raise DreamFault("WRONG_STEPS", f"not one entry for each of {len(episode.turns)} steps")
    steps = tuple(" ".join(step.transition_plan.split()) for step in reply.state_transitions)
    for reason, turn in zip(steps, episode.turns, strict=True):
        _check_reason(reason, turn.next_state)
    return Reasons(steps, reply.task_tutorial.model_dump())


def _check_reason(reason: str, next_state: str) -> None:
    if not reason:
        raise DreamFault("EMPTY", "a step without a reason")
    if "<think>" in reason or "</think>" in reason:
        raise DreamFault("FORGED", "a reason that would end its own block")
    if restates(reason, next_state):
        raise DreamFault("RESTATES", reason[:80])


def restates(reason: str, next_state: str) -> bool:
    """Whether a reason gives the answer away in its own words instead of a cause."""
    answer, told = (" ".join(text.casefold().split()) for text in (next_state, reason))
    return len(answer) >= _RESTATES and answer in told


async def annotate_store(
    store: ReplayStore,
    teacher: Teacher,
    *,
    limit: int | None = None,
    on_episode: Callable[[int, int], None] = lambda done, total: None,
) -> Counter[str]:
    """Annotate the offline episodes that this teacher has not; returns how each one went.

    Every call is in the ledger and every annotation on the disk as soon as it is there, so that
    a killed run pays for nothing twice.
    """
    waiting = _unannotated(store, teacher.name, limit)
    places = asyncio.Semaphore(teacher.in_flight)
    outcomes: Counter[str] = Counter()

    async def one(episode_id: str, episode: Episode) -> None:
        async with places:
            outcomes[await _annotate(store, teacher, episode_id, episode)] += 1
        on_episode(sum(outcomes.values()), len(waiting))

    asked = [asyncio.create_task(one(*entry)) for entry in waiting]
    try:
        await asyncio.gather(*asked)
    finally:  # where one call breaks, its error is the user's to read and the others stop
        for task in asked:
            task.cancel()
    return outcomes


def _unannotated(store: ReplayStore, teacher: str, limit: int | None) -> list[tuple[str, Episode]]:
    done = store.annotations(teacher)
    where = Where(world="real", split="train")
    missing = [
        (episode_id, episode)
        for episode_id, episode in store.named_episodes(where)
        if episode_id not in done and episode.turns and not episode.ending.is_fault
    ]
    return missing[:limit]


async def _annotate(store: ReplayStore, teacher: Teacher, episode_id: str, episode: Episode) -> str:
    """Ask until an answer can be read or the retries are used up; returns the last outcome."""
    messages = teacher_messages(episode)
    outcome = ""
    for attempt in range(teacher.retries + 1):
        began = time.monotonic()
        sampling = Sampling(float(attempt > 0), teacher.max_tokens, attempt)
        completion = await teacher.llm.complete(messages, sampling)
        try:
            if completion.prompt_ids and not completion.ids:
                raise DreamFault("CONTEXT_FULL")
            reasons = read_reasons(completion, episode)
            outcome = "OK"
        except DreamFault as fault:
            outcome = fault.kind
        used = tokens_of(completion)
        call = Call(
            outcome, used.read, used.written, teacher.price.of(used), time.monotonic() - began
        )
        store.add_call(episode_id, teacher.name, call)
        if outcome == "OK":
            store.add_annotation(episode_id, teacher.name, reasons.steps, reasons.tutorial)
        if outcome in ("OK", "CONTEXT_FULL"):
            break  # what has no room has none the second time either
    return outcome


def tokens_of(completion: Completion) -> Usage:
    """As the server counted, else by the ids; unknown where neither is told."""
    if completion.usage:
        return completion.usage
    if completion.prompt_ids:
        return Usage(len(completion.prompt_ids), len(completion.ids))
    return Usage()


def annotate_by_rules(
    store: ReplayStore,
    text: WorldText,
    *,
    limit: int | None = None,
    on_episode: Callable[[int, int], None] = lambda done, total: None,
) -> Counter[str]:
    """The same by the world's reader: no call, no token, and nothing that can fail."""
    waiting = _unannotated(store, RULES, limit)
    for done, (episode_id, episode) in enumerate(waiting, 1):
        reasons = [note.reason for note in text.annotate(episode).notes]
        store.add_annotation(episode_id, RULES, reasons, {})
        on_episode(done, len(waiting))
    return Counter({"OK": len(waiting)} if waiting else {})


def read_logs(
    store: ReplayStore, text: WorldText, teacher: str = RULES
) -> list[tuple[Episode, Annotation]]:
    """The store's offline episodes with their hidden facts, and reasons by a teacher.

    The facts are always the reader's. Episodes that the teacher has not annotated are left out;
    DreamGymError where that leaves none.
    """
    if teacher == RULES:
        episodes: Iterable[Episode] = store.episodes(world="real", split="train")
        return [(e, text.annotate(e)) for e in episodes if not e.ending.is_fault]
    told = store.annotations(teacher)
    logs = [
        (episode, with_reasons(text.annotate(episode), told[episode_id]))
        for episode_id, episode in store.named_episodes(Where(world="real", split="train"))
        if episode_id in told and not episode.ending.is_fault
    ]
    if not logs:
        raise DreamGymError(
            f"{store.path} holds no annotation by {teacher!r}. Run `dreamgym annotate` first,"
            " or set offline.teacher = rules."
        )
    return logs


def with_reasons(annotation: Annotation, reasons: Sequence[str]) -> Annotation:
    """The same facts, another's reasons."""
    notes = [
        replace(note, reason=reason) for note, reason in zip(annotation.notes, reasons, strict=True)
    ]
    return Annotation(annotation.start, tuple(notes))
