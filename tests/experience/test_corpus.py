"""What the experience model learns from: its own episode is never shown to it as an example."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from toy_dreams import ToyText, toy_dream

from dreamgym.envs.toy import make_toy_env, toy_expert, toy_tasks
from dreamgym.experience.corpus import (
    HIDDEN_SHARE,
    experience_corpus,
    hidden_conversation,
    transition_conversations,
    variant_conversations,
)
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import VARIANT_REQUEST, Telling
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.replay.checks import Provenance
from dreamgym.replay.retrieve import LexicalRetriever
from dreamgym.replay.store import ReplayStore
from dreamgym.types import Ending, Episode, Task, Turn

TEXT = ToyText()


def lived(task: Task, mark: str = "") -> Episode:
    """The expert's episode in the real toy world; `mark` makes its states recognisable."""

    async def live() -> Episode:
        env = make_toy_env(task, 0)
        state, turns = await env.start(task), []
        while True:
            action = toy_expert(task, [t.next_state for t in turns])
            result = await env.step(action)
            turns.append(Turn(state, action, result.reward, result.state + mark))
            if result.ending is Ending.DONE:
                return Episode(task, tuple(turns), Ending.DONE, "real")
            state = result.state

    return asyncio.run(live())


@pytest.fixture
def logs(tmp_path: Path) -> tuple[list[Episode], LexicalRetriever]:
    episodes = [lived(task, f" [{task.id}]") for task in toy_tasks(6)]
    with ReplayStore(tmp_path / "replay.sqlite") as store:
        store.add_episodes(episodes, provenance=Provenance(run="t", agent="expert", env="toy"))
        return episodes, LexicalRetriever.from_store(store)


def shown(messages: Sequence[str]) -> list[str]:
    return [
        line for text in messages for line in text.split("\n") if line.startswith("Elsewhere: ")
    ]


def test_retrieval_never_shows_the_task_that_is_learnt(
    logs: tuple[list[Episode], LexicalRetriever],
) -> None:
    episodes, retriever = logs
    for episode in episodes:
        telling, annotation = Telling(k=2), TEXT.annotate(episode)
        (talk,) = transition_conversations(episode, annotation, telling, retriever=retriever)
        looked_up = shown([m.text for m in talk if m.role == "system"])
        assert len(looked_up) == 2 * len(episode.turns)
        assert not any(f"[{episode.task.id}]" in line for line in looked_up)


def test_nor_does_the_dream_show_the_task_that_is_dreamt(
    logs: tuple[list[Episode], LexicalRetriever],
) -> None:
    episodes, retriever = logs
    model = ExperienceModel(ScriptedLLM([]), TEXT, ExperienceConfig(k=5), retriever=retriever)
    for episode in episodes:
        turn = episode.turns[0]
        lookup = model.ask([], turn.state, turn.action, [], episode.task)[-1]
        assert len(shown([lookup.text])) == 5
        assert f"[{episode.task.id}]" not in lookup.text


def test_training_and_dreaming_build_the_same_messages() -> None:
    task = toy_tasks(1)[0]
    episode = lived(task)
    annotation = TEXT.annotate(episode)
    (learnt,) = transition_conversations(episode, annotation, Telling())
    world = toy_dream(known={task.id: annotation.start})

    async def dream() -> None:
        env = world.make_env(task, 0)
        await env.start(task)
        for turn in episode.turns:
            await env.step(turn.action)

    # a box that the log did not open is dreamt, but no action of the log asks for it
    asyncio.run(dream())
    asked = world.model.llm.prompts[-1]  # type: ignore[attr-defined]
    learnt_asks = [m for m in learnt if m.role != "assistant"]
    assert [m for m in asked if m.role != "assistant"] == learnt_asks
    bodies = [json.loads(m.text.split("</think>")[1]) for m in learnt if m.role == "assistant"]
    assert [body["next_state"] for body in bodies] == [t.next_state for t in episode.turns]
    assert [body["reward"] for body in bodies] == [t.reward for t in episode.turns]
    assert [body["done"] for body in bodies] == [t.done for t in episode.transitions()]


def test_a_hidden_state_is_learnt_only_as_far_as_the_log_shows_it() -> None:
    episode = lived(toy_tasks(1)[0])
    start = TEXT.annotate(episode).start
    talk = hidden_conversation(episode, TEXT.annotate(episode), TEXT, random.Random(0))
    asked = {q.text: a.text for q, a in zip(talk[1::2], talk[2::2], strict=True)}
    assert asked == {f"What is at the {box}?": told for box, told in start.items()}
    assert 0 < len(asked) < 4
    blind = Episode(episode.task, episode.turns[:0], Ending.TURN_LIMIT, "real")
    assert hidden_conversation(blind, TEXT.annotate(blind), TEXT, random.Random(0)) == []


def test_any_order_of_the_places_is_learnt() -> None:
    task = Task("t", "take the key", toy_tasks(1)[0].first_state)
    turns = tuple(
        Turn("s", f"open box {n}", 0.0, f"You open box {n}. In it, you see a coin.")
        for n in (1, 2, 3)
    )
    episode = Episode(task, turns, Ending.TURN_LIMIT, "real")
    rng = random.Random(0)
    orders = {
        tuple(m.text for m in hidden_conversation(episode, TEXT.annotate(episode), TEXT, rng)[1::2])
        for _ in range(60)
    }
    assert len(orders) == 6


def test_harder_means_that_successes_of_its_kind_took_longer() -> None:
    def episode(kind: str, length: int, ending: Ending = Ending.DONE) -> Episode:
        turns = [Turn("s", "look", 0.0, "s")] * (length - 1) + [Turn("s", "take", 1.0, "s")]
        return Episode(Task(kind, f"do {kind}", "room", kind), tuple(turns), ending, "real")

    failed = episode("never", 9, Ending.TURN_LIMIT)
    logs = [episode("short", 2), episode("long", 5), failed]
    talks = variant_conversations(logs, TEXT, random.Random(0))
    assert len(talks) == 1
    opening, request, answer = talks[0]
    assert "do short" in opening.text
    assert (request.text, answer.text) == (VARIANT_REQUEST, "do long")


def test_what_follows_is_kept_apart_from_what_is_partly_chance() -> None:
    episodes = [lived(task) for task in toy_tasks(200)]
    logs = [(episode, TEXT.annotate(episode)) for episode in episodes]
    corpus = experience_corpus(logs, TEXT, Telling(), retriever=None, seed=0)
    assert corpus.transitions == [
        talk for log in logs for talk in transition_conversations(*log, Telling())
    ]
    questions = [talk[1].text for talk in corpus.guesses]
    hidden = sum(question.startswith("What is at") for question in questions)
    assert abs(hidden / len(episodes) - HIDDEN_SHARE) < 0.1  # three standard deviations
    assert questions.count(VARIANT_REQUEST) == len(questions) - hidden > 0
    assert corpus == experience_corpus(logs, TEXT, Telling(), retriever=None, seed=0)
