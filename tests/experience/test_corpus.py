"""What the experience model learns from: its own episode is never shown to it as an example."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from toy_dreams import ToyText, toy_dream

from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.envs.text import PlainText, WorldText
from dreamgym.envs.toy import make_toy_env, toy_expert, toy_tasks
from dreamgym.experience.corpus import (
    HIDDEN_SHARE,
    experience_corpus,
    hidden_conversation,
    transition_conversations,
    variant_conversations,
)
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import VARIANT_REQUEST, Telling, opening
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
    talks = variant_conversations(logs, TEXT, Telling(), random.Random(0))
    assert len(talks) == 1
    opened, request, answer = talks[0]
    assert "do short" in opened.text
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


def solved(task: Task, length: int) -> Episode:
    turns = [Turn("s", "look", 0.0, "s")] * (length - 1) + [Turn("s", "take", 1.0, "s")]
    return Episode(task, tuple(turns), Ending.DONE, "real")


HALL = "Looking quickly around you, you see a desk 1, a shelf 1, and a microwave 1."


def set_in(place: str, *instructions: str) -> list[Task]:
    return [Task(f"{place}/{words}", words, place, kind=words) for words in instructions]


def pairs(episodes: Sequence[Episode], text: WorldText, seed: int = 0) -> list[tuple[str, str]]:
    talks = variant_conversations(episodes, text, Telling(), random.Random(seed))
    told = {episode.task.instruction: episode.task for episode in episodes}
    seeds = {opening(task): words for words, task in told.items()}
    return [(seeds[talk[0]], talk[-1].text) for talk in talks]


def test_a_room_with_many_tasks_gives_one_pair_for_each_that_has_a_harder_one() -> None:
    things = [
        f"put {number} {thing} in desk"
        for thing in ("mug", "pen", "cup")
        for number in ("a", "two")
    ]
    logs = [solved(task, 5) for task in set_in(HALL, *things)] * 3
    found = pairs(logs, AlfworldText())
    assert [seed for seed, _ in found] == [words for words in things if "put a" in words]
    assert all("two" in harder for _, harder in found)
    assert {harder for seed in range(40) for _, harder in pairs(logs, AlfworldText(), seed)} == {
        words for words in things if "two" in words
    }


def test_each_way_of_being_harder_is_as_likely_however_many_tasks_show_it() -> None:
    many = [
        f"put two {thing} in desk" for thing in ("pen", "cup", "cd", "key", "egg", "pan", "pot")
    ]
    logs = [
        solved(task, 5) for task in set_in(HALL, "put a mug in desk", "put a mug in shelf", *many)
    ]
    found = [dict(pairs(logs, AlfworldText(), seed))["put a mug in desk"] for seed in range(100)]
    assert 35 < found.count("put a mug in shelf") < 65


def test_what_the_reader_calls_harder_counts_and_not_what_took_longer() -> None:
    short, long = set_in(HALL, "put a mug in desk", "put a hot mug in desk")
    for turns in ((2, 9), (9, 2)):
        logs = [solved(task, length) for task, length in zip((short, long), turns, strict=True)]
        assert pairs(logs, AlfworldText()) == [(short.instruction, long.instruction)]


def test_where_the_reader_cannot_tell_lengths_do() -> None:
    short, long = set_in(HALL, "wash the cat", "comb the dog")
    logs = [solved(short, 2), solved(long, 9)]
    assert pairs(logs, AlfworldText()) == []  # it can tell: these are no tasks of its world
    assert pairs(logs, PlainText()) == [(short.instruction, long.instruction)]
    alike = [solved(short, 4), solved(long, 4)]
    assert len(pairs(alike, PlainText())) == 2  # either may be the harder one


def test_tasks_of_two_rooms_are_no_pair() -> None:
    kitchen = HALL.replace("desk 1", "fridge 1")
    logs = [solved(set_in(HALL, "put a mug in desk")[0], 3)]
    logs += [solved(set_in(kitchen, "put two mug in desk")[0], 9)]
    assert pairs(logs, AlfworldText()) == []
