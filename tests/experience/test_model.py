"""The experience model: asked again once, then a fault with a class and a count, never a reward."""

from __future__ import annotations

import asyncio
import random

import pytest
from toy_dreams import BOXES, ToyText, dream_the_toy, fact, facts_of, toy_dream

from dreamgym.envs.toy import NOTHING_HAPPENS, toy_tasks
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import Answer, answer_text
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.types import Completion, DreamFault, Task

GOOD = '{"next_state":"You see nothing.","reward":0,"done":false}'
TASK = toy_tasks(1)[0]
PROMPT = (Message("user", "look"), Message("system", ""))
UNREADABLE = {
    "UNREPAIRABLE": "The drawer opens, so the reward is 1.",
    "TRUNCATED": Completion('{"next_state":"You op', finish_reason="length"),
    "TRUNCATED_REASONING": Completion("<think>So", finish_reason="length"),
    "EMPTY": "",
    "OUT_OF_RANGE": '{"next_state":"a","reward":10,"done":true}',
    "AMBIGUOUS": GOOD + '{"next_state":"a","reward":1,"done":true}',
    "REFUSED": '{"next_state":"a","reward":NaN,"done":true}',
    "CONTRADICTION": answer_text(Answer(NOTHING_HAPPENS, 1.0, True)),
    "CONTEXT_FULL": Completion("", prompt_ids=(1, 2), finish_reason="length"),
}


class Listener(ScriptedLLM):
    """Remembers with what sampling it was asked."""

    def __init__(self, answers: list[str | Completion]) -> None:
        super().__init__(answers)
        self.asked: list[Sampling] = []

    async def complete(
        self, prompt: object, sampling: Sampling, *, session: str = ""
    ) -> Completion:
        self.asked.append(sampling)
        return await super().complete(prompt, sampling, session=session)  # type: ignore[arg-type]


def model_over(*answers: str | Completion, retries: int = 1) -> ExperienceModel:
    return ExperienceModel(
        Listener(list(answers)), ToyText(), ExperienceConfig(k=0, retries=retries)
    )


@pytest.mark.parametrize("kind", UNREADABLE)
def test_an_unreadable_answer_is_asked_for_once_more(kind: str) -> None:
    model = model_over(UNREADABLE[kind], GOOD)
    answer, message = asyncio.run(model.answer(PROMPT, "s", 7))
    assert answer.next_state == "You see nothing."
    assert message == Message("assistant", GOOD)
    assert model.faults == {kind: 1} and model.tally["answers"] == 2


@pytest.mark.parametrize("kind", UNREADABLE)
def test_after_the_retry_it_is_a_fault_with_its_class(kind: str) -> None:
    model = model_over(UNREADABLE[kind], UNREADABLE[kind], GOOD)
    with pytest.raises(DreamFault) as caught:
        asyncio.run(model.answer(PROMPT, "s", 7))
    assert caught.value.kind == kind
    assert model.faults == {kind: 2} and model.tally["answers"] == 2


def test_the_second_try_is_another_draw_from_the_same_prompt() -> None:
    model = model_over("?", GOOD)
    asyncio.run(model.answer(PROMPT, "s", 7))
    llm = model.llm
    assert isinstance(llm, Listener)
    first, second = llm.asked
    assert (first.temperature, second.temperature) == (0.0, 1.0)
    assert first.seed != second.seed
    assert llm.prompts == [PROMPT, PROMPT]


@pytest.mark.parametrize("kind", ["TRUNCATED", "TRUNCATED_REASONING"])
def test_p004_p006_what_the_limit_cut_off_is_asked_again_with_twice_the_room(kind: str) -> None:
    cut, wrong = model_over(UNREADABLE[kind], GOOD), model_over("?", GOOD)
    for model, growth in ((cut, 2), (wrong, 1)):
        asyncio.run(model.answer(PROMPT, "s", 7))
        assert isinstance(model.llm, Listener)
        first, second = model.llm.asked
        assert second.max_tokens == growth * first.max_tokens


def test_without_retries_nothing_is_asked_again() -> None:
    model = model_over("?", GOOD, retries=0)
    with pytest.raises(DreamFault):
        asyncio.run(model.answer(PROMPT, "s", 7))
    assert model.tally["answers"] == 1


def test_facts_that_logs_have_shown_are_taken_over_and_the_rest_is_asked_for() -> None:
    known = {TASK.id: {"box 2": fact("box 2", "ring")}, "another": {"box 1": fact("box 1", "coin")}}
    llm = ScriptedLLM([fact("box 1", "key"), fact("box 3", "coin")])
    model = toy_dream(llm, known=known).model
    facts = asyncio.run(model.imagine(TASK, 1))
    assert facts == {b: fact(b, t) for b, t in zip(BOXES, ("key", "ring", "coin"), strict=True)}
    asked = [prompt[-1].text for prompt in llm.prompts]
    assert asked == ["What is at the box 1?", "What is at the box 3?"]
    shown = [message.text for message in llm.prompts[0]]
    assert shown[1:3] == ["What is at the box 2?", fact("box 2", "ring")]
    assert list(llm.prompts[1][: len(llm.prompts[0])]) == list(llm.prompts[0])  # it only grows


def test_where_logs_have_shown_everything_nothing_is_asked() -> None:
    llm = ScriptedLLM([])
    model = toy_dream(llm, known={TASK.id: facts_of(TASK)}).model
    assert asyncio.run(model.imagine(TASK, 1)) == facts_of(TASK)
    assert llm.prompts == []


def test_a_hidden_state_that_cannot_meet_the_task_is_drawn_again() -> None:
    task = Task("t", "take the key", TASK.first_state)
    without, with_key = ("coin", "ring", "coin"), ("coin", "key", "ring")
    model = toy_dream(ScriptedLLM(dream_the_toy([without, with_key]))).model
    facts = asyncio.run(model.imagine(task, 1))
    assert facts["box 2"] == fact("box 2", "key")
    assert model.faults == {"UNSOLVABLE_START": 1}


def test_a_task_no_draw_can_meet_is_a_fault() -> None:
    task = Task("t", "take the elephant", TASK.first_state)
    model = toy_dream(hidden_tries=3).model
    with pytest.raises(DreamFault) as caught:
        asyncio.run(model.imagine(task, 1))
    assert caught.value.kind == "UNSOLVABLE"
    assert model.faults == {"UNSOLVABLE_START": 3}


def test_a_hidden_fact_cut_off_is_counted() -> None:
    cut = Completion("In the box 1, there", finish_reason="length")
    llm = ScriptedLLM([cut, fact("box 2", "key"), fact("box 3", "ring"), *["x"] * 9])
    model = toy_dream(llm).model
    asyncio.run(model.imagine(Task("t", "take the key", TASK.first_state), 1))
    assert model.faults["HIDDEN_CUT"] == 1


def test_hidden_states_are_drawn_from_seeds_of_their_own() -> None:
    """Every question of every draw has its own noise, and the same seed has the same again."""

    def noise(seed: int) -> list[int]:
        llm = Listener([fact(box, "coin") for box in BOXES] * 2)
        model = toy_dream(llm, hidden_tries=2).model
        with pytest.raises(DreamFault):
            asyncio.run(model.imagine(Task("t", "take the key", TASK.first_state), seed))
        assert all(sampling.temperature == 1.0 for sampling in llm.asked)
        return [sampling.seed for sampling in llm.asked]

    seeds = [random.Random(i).randrange(2**32) for i in range(5)]
    drawn = [number for seed in seeds for number in noise(seed)]
    assert len(set(drawn)) == len(drawn) == 30
    assert noise(seeds[0]) == drawn[:6]


def test_a_harder_task_is_what_the_model_writes_without_its_margins() -> None:
    model = model_over("  take the ring\n")
    assert asyncio.run(model.vary(TASK, 3)) == "take the ring"
