"""Offline episodes as conversations to train the experience model on (Eq. 5), with hindsight."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dreamgym.envs.text import Annotation, WorldText
from dreamgym.experience.hidden import HiddenState
from dreamgym.experience.prompts import (
    Answer,
    action_message,
    answer_text,
    hidden_question,
    lookup_message,
    opening,
    variant_messages,
)
from dreamgym.llm.base import Message
from dreamgym.replay.retrieve import Retriever
from dreamgym.types import Episode

Conversation = list[Message]

HIDDEN_SHARE = 0.25
"""Of the episodes that also teach what is hidden: what cannot be known is noise in a gradient."""


def transition_conversation(
    episode: Episode,
    annotation: Annotation,
    *,
    retriever: Retriever | None = None,
    k: int = 0,
    episode_id: str | None = None,
) -> Conversation:
    """Every turn of an episode: action, what is looked up for it, reasoning, next state, reward.

    Retrieval never returns the episode's own transitions, nor another attempt's at its task.
    """
    hidden = HiddenState(annotation.start)
    messages = [opening(episode.task)]
    for note, step in zip(annotation.notes, episode.transitions(), strict=True):
        similar = []
        if retriever is not None and k:
            hits = retriever.similar(
                step.state, step.action, k, exclude_task=episode.task.id, exclude_episode=episode_id
            )
            similar = [(hit.row.action, hit.row.next_state) for hit in hits]
        answer = Answer(step.next_state, step.reward, step.done, note.reason, note.facts)
        messages += [
            action_message(step.action),
            lookup_message(hidden.about(step.action), similar, episode.task.instruction),
            Message("assistant", answer_text(answer)),
        ]
        hidden.update(note.facts)
    return messages


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


def variant_conversations(episodes: Iterable[Episode], text: WorldText) -> list[Conversation]:
    """Pairs of tasks set in one room, the one that took longer second: what harder means here."""
    lengths: dict[str, list[int]] = defaultdict(list)
    tasks = {}
    for episode in episodes:
        tasks[episode.task.id] = episode.task
        if episode.success:
            lengths[episode.task.kind].append(len(episode.turns))
    length = {kind: sum(turns) / len(turns) for kind, turns in lengths.items()}
    rooms = defaultdict(list)
    for task in tasks.values():
        if task.kind in length:
            rooms[tuple(text.places(task.first_state))].append(task)
    return [
        [*variant_messages(seed), Message("assistant", harder.instruction)]
        for tasks_here in rooms.values()
        for seed in tasks_here
        for harder in tasks_here
        if seed.instruction != harder.instruction and length[harder.kind] >= length[seed.kind]
    ]


@dataclass(frozen=True, slots=True)
class Corpus:
    """All that the experience model learns from."""

    transitions: list[Conversation]  # nearly every token follows from what stands before it
    guesses: list[Conversation]  # hidden states and harder tasks: partly chance


def experience_corpus(
    episodes: Sequence[Episode], text: WorldText, *, retriever: Retriever | None, k: int, seed: int
) -> Corpus:
    """Transitions of every episode; hidden states of some; harder tasks where rooms have two."""
    rng = random.Random(seed)
    corpus = Corpus([], variant_conversations(episodes, text))
    for episode in episodes:
        annotation = text.annotate(episode)
        corpus.transitions.append(
            transition_conversation(episode, annotation, retriever=retriever, k=k)
        )
        if rng.random() < HIDDEN_SHARE:
            hidden = hidden_conversation(episode, annotation, text, rng)
            corpus.guesses.extend([hidden] if hidden else [])
    return corpus
