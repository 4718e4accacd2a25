"""What the experience model reads is its interface: a change of it must be seen, and meant."""

from __future__ import annotations

from dataclasses import replace

from dreamgym.envs.text import Annotation, Note
from dreamgym.experience.corpus import transition_conversations
from dreamgym.experience.prompts import (
    Answer,
    Telling,
    answer_text,
    hidden_question,
    lookup_message,
    opening,
    question,
    reopening,
    variant_messages,
)
from dreamgym.llm.base import Message, Role
from dreamgym.types import Ending, Episode, Task, Turn

TASK = Task(
    "t", "put a pen in drawer", "You see a drawer 1.\n\nYour task is to: put a pen in drawer."
)
HOME = Episode(
    TASK,
    (
        Turn(TASK.first_state, "open drawer 1", 0.0, "You open the drawer 1."),
        Turn("You open the drawer 1.", "fly", 0.0, "Nothing happens.", valid=False),
        Turn("Nothing happens.", "move pen 1 to drawer 1", 1.0, "You move the pen 1."),
    ),
    Ending.DONE,
    "real",
)
START = {
    "drawer 1": "The drawer 1 is closed. In it, you see nothing.",
    "you": "You are facing the drawer 1. You carry a pen 1.",
}
NOTES = (
    Note("It is closed.", ("The drawer 1 is open. In it, you see nothing.",)),
    Note("", ()),
    Note("The pen is wanted.", ("The drawer 1 is open. In it, you see a pen 1.",)),
)


def test_the_messages_of_one_episode_are_these() -> None:
    assert transition_conversations(HOME, Annotation(START, NOTES), Telling())[0] == [
        Message("user", TASK.first_state),
        Message("user", "open drawer 1"),
        Message(
            "system",
            "The drawer 1 is closed. In it, you see nothing."
            " You are facing the drawer 1. You carry a pen 1. Task: put a pen in drawer.",
        ),
        Message(
            "assistant",
            '<think>It is closed.</think>{"next_state":"You open the drawer 1.",'
            '"reward":0,"done":false}',
        ),
        Message("user", "fly"),
        Message(
            "system",
            "You are facing the drawer 1. You carry a pen 1."
            " The drawer 1 is open. In it, you see nothing. Task: put a pen in drawer.",
        ),
        Message("assistant", '{"next_state":"Nothing happens.","reward":0,"done":false}'),
        Message("user", "move pen 1 to drawer 1"),
        Message(
            "system",
            "The drawer 1 is open. In it, you see nothing."
            " You are facing the drawer 1. You carry a pen 1. Task: put a pen in drawer.",
        ),
        Message(
            "assistant",
            '<think>The pen is wanted.</think>{"next_state":"You move the pen 1.",'
            '"reward":1,"done":true}',
        ),
    ]


def test_without_history_every_turn_opens_with_the_state_before_it() -> None:
    told = transition_conversations(HOME, Annotation(START, NOTES), Telling(history=False))
    whole = transition_conversations(HOME, Annotation(START, NOTES), Telling())[0]
    assert [talk[0].text for talk in told] == [turn.state for turn in HOME.turns]
    assert [talk[1:] for talk in told] == [whole[1:4], whole[4:7], whole[7:10]]


def test_without_reasoning_only_the_answers_lose_their_reasons() -> None:
    (told,) = transition_conversations(HOME, Annotation(START, NOTES), Telling(reasoning=False))
    whole = transition_conversations(HOME, Annotation(START, NOTES), Telling())[0]
    assert [m.text for m in told] == [m.text.split("</think>")[-1] for m in whole]
    assert any("<think>" in m.text for m in whole)


def test_without_a_hidden_state_no_fact_is_looked_up() -> None:
    (told,) = transition_conversations(HOME, Annotation(START, NOTES), Telling(hidden=False))
    looked_up = [m.text for m in told if m.role == "system"]
    assert looked_up == ["Task: put a pen in drawer."] * 3


def test_an_instruction_that_the_first_state_does_not_tell_is_told() -> None:
    assert opening(TASK) == Message("user", TASK.first_state)
    silent = Task("t", "take the key", "You see a box 1.")
    assert opening(silent).text == "You see a box 1.\n\nYour task is to: take the key"


def test_the_most_similar_transition_stands_nearest_to_the_facts_and_the_task_last() -> None:
    similar = [("open a", "It is."), ("open b", "No.")]
    assert lookup_message(["A is here.", "B is there."], similar, "take the key") == Message(
        "system",
        "Elsewhere: open b > No.\nElsewhere: open a > It is.\n"
        "A is here. B is there. Task: take the key.",
    )
    assert lookup_message([], [], "take the key").text == "Task: take the key."


def test_p075_a_past_that_an_assistant_opens_is_told_whole() -> None:
    roles: tuple[Role, ...] = ("assistant", "user", "system")
    for role in roles:
        past = [Message(role, "I have opened ticket 7."), Message("user", "thank you")]
        asked = question(Telling(), past, "s", "close ticket 7", ["A fact."], [], TASK)
        assert asked[:2] == past


def test_p078_a_huge_state_is_cut_in_every_prompt() -> None:
    huge = "x" * 199_990 + "y" * 10
    shown = [
        opening(replace(TASK, first_state=huge)).text,
        reopening(huge).text,
        lookup_message([], [("look", huge)], "i").text,
    ]
    for text in shown:
        assert len(text) < 14_000 and "y" * 10 in text
        assert text.count("[... 187k chars cut ...]") == 1


def test_hidden_facts_and_harder_tasks_are_asked_for_in_these_words() -> None:
    assert hidden_question("drawer 1") == Message("user", "What is at the drawer 1?")
    assert variant_messages(Telling(), TASK) == [
        Message("user", TASK.first_state),
        Message("user", "Write a harder task for this place."),
    ]


def test_an_answer_is_compact_and_keeps_letters_as_they_are() -> None:
    text = answer_text(Answer('Say "é".', 0.5, True), Telling())
    assert text == '{"next_state":"Say \\"é\\".","reward":0.5,"done":true}'
