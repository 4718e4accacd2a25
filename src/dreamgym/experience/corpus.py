"""Offline episodes as conversations to train the experience model on (Eq. 5), with hindsight."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dreamgym.envs.text import Annotation, WorldText
from dreamgym.experience.hidden import HiddenState
from dreamgym.experience.prompts import (
    Answer,
    Telling,
    answer_text,
    beginning,
    hidden_question,
    opening,
    question,
    variant_messages,
)
from dreamgym.llm.base import Message
from dreamgym.replay.retrieve import Retriever
from dreamgym.types import Episode, Task

Conversation = list[Message]

HIDDEN_SHARE = 0.25
"""Of the episodes that also teach what is hidden: what cannot be known is noise in a gradient."""


def asked_turns(
    episode: Episode,
    annotation: Annotation,
    telling: Telling,
    *,
    retriever: Retriever | None = None,
    episode_id: str | None = None,
) -> Iterator[tuple[Conversation, Message]]:
    """(what the experience model is shown, what it should answer), turn by turn.

    Retrieval never returns the episode's own transitions, nor another attempt's at its task.
    """
    hidden = HiddenState(annotation.start)
    past: Conversation = beginning(telling, episode.task)
    for note, step in zip(annotation.notes, episode.transitions(), strict=True):
        similar = []
        if retriever is not None and telling.k:
            hits = retriever.similar(
                step.state,
                step.action,
                telling.k,
                exclude_task=episode.task.id,
                exclude_episode=episode_id,
            )
            similar = [(hit.row.action, hit.row.next_state) for hit in hits]
        facts = hidden.about(step.action)
        asked = question(telling, past, step.state, step.action, facts, similar, episode.task)
        reason = note.reason if telling.reasoning else ""
        answer = Answer(step.next_state, step.reward, step.done, reason)
        told = Message("assistant", answer_text(answer, telling))
        yield asked, told
        past = [*asked, told]
        hidden.update(note.facts)


def transition_conversations(
    episode: Episode,
    annotation: Annotation,
    telling: Telling,
    *,
    retriever: Retriever | None = None,
    episode_id: str | None = None,
) -> list[Conversation]:
    """An episode as one conversation; without history, as one of every turn."""
    turns = list(
        asked_turns(episode, annotation, telling, retriever=retriever, episode_id=episode_id)
    )
    told = turns[-1:] if telling.history else turns
    return [[*asked, answer] for asked, answer in told]


def hidden_conversation(
    episode: Episode, annotation: Annotation, text: WorldText, rng: random.Random
) -> Conversation:
    """What was behind the doors, as far as the episode came to show it; empty where it did not."""
    places = [p for p in text.places(episode.task.first_state) if p in annotation.start]
    rng.shuffle(places)  # any of them may be known when a dream begins
    asked = [
        m for p in places for m in (hidden_question(p), Message("assistant", annotation.start[p]))
    ]
    return [opening(episode.task), *asked] if asked else []


def variant_conversations(
    episodes: Iterable[Episode], text: WorldText, telling: Telling, rng: random.Random
) -> list[Conversation]:
    """Pairs of logged tasks set in one room, the harder one second: one for every task that has
    any. A room with many tasks has so many pairs that they would crowd out all else.

    What harder means is the reader's to say; else tasks whose kind took longer to solve.
    """
    lengths: dict[str, list[int]] = defaultdict(list)
    tasks = {}
    for episode in episodes:
        tasks[episode.task.id] = episode.task
        if episode.success:
            lengths[episode.task.kind].append(len(episode.turns))
    length = {kind: sum(turns) / len(turns) for kind, turns in lengths.items()}

    def way(seed: Task, task: Task) -> str:
        told = text.harder(seed.instruction, task.instruction)
        if told is None and seed.kind in length and task.kind in length:
            differs = seed.instruction != task.instruction
            return "longer" * (differs and length[task.kind] >= length[seed.kind])
        return told or ""

    rooms = defaultdict(list)
    for task in tasks.values():
        rooms[tuple(text.places(task.first_state))].append(task)
    pairs = []
    for here in rooms.values():
        for seed in here:
            ways = defaultdict(list)
            for task in here:
                if kind := way(seed, task):
                    ways[kind].append(task)
            if ways:
                harder = rng.choice(rng.choice(list(ways.values())))
                pairs.append(
                    [*variant_messages(telling, seed), Message("assistant", harder.instruction)]
                )
    return pairs


@dataclass(frozen=True, slots=True)
class Corpus:
    """All that the experience model learns from."""

    transitions: list[Conversation]  # nearly every token follows from what stands before it
    guesses: list[Conversation]  # hidden states and harder tasks: partly chance


def experience_corpus(
    episodes: Sequence[tuple[Episode, Annotation]],
    text: WorldText,
    telling: Telling,
    *,
    retriever: Retriever | None,
    seed: int,
) -> Corpus:
    """Transitions of every episode; hidden states of some; harder tasks where rooms have two."""
    rng = random.Random(seed)
    corpus = Corpus([], [])
    for episode, annotation in episodes:
        corpus.transitions.extend(
            transition_conversations(episode, annotation, telling, retriever=retriever)
        )
        if telling.hidden and rng.random() < HIDDEN_SHARE:
            hidden = hidden_conversation(episode, annotation, text, rng)
            corpus.guesses.extend([hidden] if hidden else [])
    corpus.guesses.extend(variant_conversations((e for e, _ in episodes), text, telling, rng))
    return corpus
