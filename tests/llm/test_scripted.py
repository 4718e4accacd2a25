"""The public fake answers in order or by a function, and never beyond its script."""

from __future__ import annotations

import asyncio

import pytest

from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.scripted import ScriptedLLM, ScriptExhausted
from dreamgym.types import Completion


def ask(llm: ScriptedLLM, text: str = "what now?") -> Completion:
    return asyncio.run(llm.complete([Message("user", text)], Sampling(), session="a"))


def test_answers_come_in_order_and_then_an_error() -> None:
    llm = ScriptedLLM(["look", "", "open box 1"])
    assert [ask(llm).text for _ in range(3)] == ["look", "", "open box 1"]
    with pytest.raises(ScriptExhausted, match="call 4"):
        ask(llm)


def test_a_function_answers_by_the_prompt() -> None:
    llm = ScriptedLLM(lambda prompt: prompt[-1].text.upper())
    assert ask(llm, "a").text == "A" and ask(llm, "b").text == "B"


def test_every_prompt_is_kept() -> None:
    llm = ScriptedLLM(["x", "y"])
    ask(llm, "first"), ask(llm, "second")
    assert [prompt[-1].text for prompt in llm.prompts] == ["first", "second"]
    asyncio.run(llm.release("a"))
    assert len(llm.prompts) == 2


def test_a_whole_completion_scripts_a_cut_off() -> None:
    cut = Completion("take the", (1, 2), (-0.5, -0.5), (7,), "length")
    llm = ScriptedLLM([cut])
    assert ask(llm) is cut
