"""A dream that knows the answers scores 1, one that repeats the last state scores the baseline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest

from dreamgym.audit.transitions import Fidelity, next_state_fidelity
from dreamgym.envs.alfworld.demonstrate import demonstrate
from dreamgym.envs.alfworld.facts import true_household
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.envs.text import Annotation
from dreamgym.experience.corpus import transition_conversations
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import Answer, Telling, answer_text
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.types import Episode

TEXT = AlfworldText()
Prompt = Sequence[Message]
Logs = list[tuple[Episode, Annotation]]


@pytest.fixture(scope="module")
def logs() -> Logs:
    played: Logs = []
    for index, game in enumerate(generate_games(6, seed=31)):
        agent = ("expert", "noisy", "random")[index % 3]
        episode = demonstrate(game, agent, seed=0, max_turns=25)
        played.append((episode, TEXT.annotate(episode, true_household(FastGame(game)).facts())))
    return played


def score(logs: Logs, answer: Callable[[Prompt], str], retries: int = 3) -> Fidelity:
    config = ExperienceConfig(k=0, retries=retries)
    model = ExperienceModel(ScriptedLLM(answer), TEXT, config)
    return asyncio.run(next_state_fidelity(model, logs))


def truth(logs: Logs) -> Callable[[Prompt], str]:
    """The right answer to every prompt that the logs contain."""
    book = {}
    for log in logs:
        (talk,) = transition_conversations(*log, Telling())
        for end in range(3, len(talk), 3):
            book[tuple(talk[:end])] = talk[end].text
    return lambda prompt: book[tuple(prompt)]


def repeat(prompt: Prompt) -> str:
    """The last state again, whatever was done."""
    told = [m.text.split("</think>")[-1] for m in prompt if m.role == "assistant"]
    last = json.loads(told[-1])["next_state"] if told else prompt[0].text
    return answer_text(Answer(last, 0.0, False))


def test_a_perfect_model_scores_one(logs: Logs) -> None:
    found = score(logs, truth(logs))
    turns = sum(len(episode.turns) for episode, _ in logs)
    assert found.exact.value == found.refused.value == found.reward.value == 1.0
    assert found.exact.total == found.reward.total == found.copied.total == turns
    assert found.false_success.hits == 0
    assert found.success_recall.value == found.success_precision.value == 1.0
    assert found.success_recall.total == sum(episode.success for episode, _ in logs) > 0
    assert found.f1 == found.nearly.value == found.done.value == 1.0
    assert found.refused.total > 0
    assert not found.faults


def test_a_model_that_repeats_the_last_state_scores_the_baseline(
    logs: Logs,
) -> None:
    found = score(logs, repeat)
    assert found.exact == found.copied
    assert 0 < found.exact.hits < found.exact.total
    assert found.success_recall.value == 0.0 and found.false_success.hits == 0


def test_a_model_that_always_pays_is_seen_through(
    logs: Logs,
) -> None:
    found = score(logs, lambda prompt: answer_text(Answer("You won.", 1.0, True)))
    assert found.false_success.value == 1.0 and found.success_recall.value == 1.0
    assert found.exact.hits == 0
    assert found.reward.hits == found.success_recall.total


def test_an_unreadable_answer_is_wrong_and_is_not_asked_again(
    logs: Logs,
) -> None:
    found = score(logs, lambda prompt: "hm", retries=3)
    assert found.exact.hits == found.reward.hits == found.refused.hits == 0
    assert found.faults == {"UNREPAIRABLE": found.exact.total}
    assert found.success_recall.value == 0.0 and found.false_success.hits == 0


def test_one_wrong_answer_is_one_wrong_answer(
    logs: Logs,
) -> None:
    right = truth(logs)
    first = logs[0][0].task.first_state

    def slip(prompt: Prompt) -> str:
        if len(prompt) == 9 and prompt[0].text == first:  # the third turn of one episode
            return answer_text(Answer("slip", 0.0, False))
        return right(prompt)

    found = score(logs, slip)
    assert found.exact.total - found.exact.hits == 1


def test_the_true_past_is_shown_whatever_the_model_said_before(
    logs: Logs,
) -> None:
    llm = ScriptedLLM(lambda prompt: answer_text(Answer("wrong", 0.0, False)))
    model = ExperienceModel(llm, TEXT, ExperienceConfig(k=0))
    asyncio.run(next_state_fidelity(model, logs))
    assert not any("wrong" in message.text for prompt in llm.prompts for message in prompt)


def test_the_numbers_can_be_saved(logs: Logs) -> None:
    data = json.loads(json.dumps(score(logs, repeat).data()))
    assert data["exact"]["value"] == data["copied"]["hits"] / data["copied"]["total"]
    none = json.loads(json.dumps(score([], repeat).data()))
    assert (none["exact"]["total"], none["exact"]["value"]) == (0, None)
