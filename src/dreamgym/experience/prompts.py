"""What the experience model reads and writes: one conversation per episode, only ever appended to.

    user       the first state, which tells the task
    user       an action
    system     what was looked up for it: similar real transitions, hidden facts, the task
    assistant  <think>why</think>{"next_state": ..., "facts": [...], "reward": 0, "done": false}
    user       the next action ...

Hidden facts are asked for place by place in a conversation of their own, variants of a task in
a third. Training and dreaming build their messages here, so that they cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.llm.base import Message
from dreamgym.types import Task

VARIANT_REQUEST = "Write a harder task for this place."


@dataclass(frozen=True, slots=True)
class Answer:
    """What the experience model says of one action."""

    next_state: str
    reward: float
    done: bool
    reason: str = ""
    facts: tuple[str, ...] = ()
    parse_class: str = "OK"


def opening(task: Task) -> Message:
    """The instruction stands before a first state that does not tell it."""
    if task.instruction in task.first_state:
        return Message("user", task.first_state)
    return Message("user", f"{task.first_state}\n\nYour task is to: {task.instruction}")


def action_message(action: str) -> Message:
    return Message("user", action)


def lookup_message(
    facts: Sequence[str], similar: Sequence[tuple[str, str]], instruction: str
) -> Message:
    """`similar` holds (action, next state) of retrieved transitions; the most similar comes last.

    The instruction is said again where it is judged: a small model that had to look for it at the
    episode's start took the action's own words for what was wanted.
    """
    shown = [f"Elsewhere: {action} > {state}" for action, state in reversed(similar)]
    told = " ".join([*facts, f"Task: {instruction}."])
    return Message("system", "\n".join([*shown, told]))


def answer_text(answer: Answer) -> str:
    """The target of Eq. 5, with the reward in it; also the shape that `parse` reads."""
    body = {
        "next_state": answer.next_state,
        "facts": list(answer.facts),
        "reward": int(answer.reward) if answer.reward == int(answer.reward) else answer.reward,
        "done": answer.done,
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"<think>{answer.reason}</think>{text}" if answer.reason else text


def hidden_question(entity: str) -> Message:
    return Message("user", f"What is at the {entity}?")


def variant_messages(task: Task) -> list[Message]:
    """M_task of Eq. 6, which shares its parameters with the experience model."""
    return [opening(task), Message("user", VARIANT_REQUEST)]
