"""What the experience model reads and writes: one conversation per episode, only ever appended to.

    user       the first state, which tells the task
    user       an action
    system     what was looked up for it: similar real transitions, hidden facts, the task
    assistant  <think>why</think>{"next_state": ..., "reward": 0, "done": false}
    user       the next action ...

Without history (an ablation) every turn is a conversation of its own, opened by the state before
it. Hidden facts are asked for place by place in one of their own, variants of a task in another.
Training and dreaming build their messages here, so that they cannot drift apart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dreamgym.experience import instructed
from dreamgym.llm.base import Message, within_budget
from dreamgym.settings import Settings
from dreamgym.types import Task

VARIANT_REQUEST = "Write a harder task for this place."


@dataclass(frozen=True, slots=True)
class Answer:
    """What the experience model says of one action."""

    next_state: str
    reward: float
    done: bool
    reason: str = ""
    parse_class: str = "OK"
    logprob: float = field(default=math.nan, compare=False)
    """Mean log-probability of the next state's tokens: the raw confidence. NaN where the model
    tells none."""


def opening(task: Task) -> Message:
    """The instruction stands before a first state that does not tell it."""
    seen = within_budget(task.first_state)
    if task.instruction in seen:
        return Message("user", seen)
    return Message("user", f"{seen}\n\nYour task is to: {task.instruction}")


def reopening(state: str) -> Message:
    """What stands in for the past where there is no history: the state the action is taken in."""
    return Message("user", within_budget(state))


def action_message(action: str) -> Message:
    return Message("user", action)


class Telling(Settings):
    """What the experience model is told and what it has to say: the paper's ablations.

    Training and dreaming must agree on it.
    """

    k: int = 0
    """Similar real transitions shown for every action. 0, since our tiny models predict worse with
    them (see README); a larger model should have 1 or more."""
    reasoning: bool = True
    """A reason is written before every next state."""
    history: bool = True
    """The whole episode is shown, not only the state before the action."""
    hidden: bool = True
    """The episode's facts on what an action names are shown: what the agent cannot see yet, and
    where it stands. Without them a dream has neither rules nor guards, and the model judges."""
    instructed: bool = False
    """The model is told in words what to do and answers in sections, as one must be that was never
    fitted to this world; a fitted one reads bare messages."""


FITTED = Telling()


def beginning(telling: Telling, task: Task) -> list[Message]:
    """What an episode's conversation begins with."""
    return instructed.opening(task) if telling.instructed else [opening(task)]


def question(
    telling: Telling,
    past: Sequence[Message],
    state: str,
    action: str,
    facts: Sequence[str],
    similar: Sequence[tuple[str, str]],
    task: Task,
) -> list[Message]:
    """All that the experience model is shown when it is asked about one action."""
    facts = facts if telling.hidden else ()
    if telling.instructed:
        before = list(past) if telling.history else instructed.reopening(state, task)
        return [*before, instructed.turn(action, facts, similar)]
    before = list(past) if telling.history else [reopening(state)]
    told = lookup_message(facts, similar, task.instruction)
    return [*before, action_message(action), told]


def lookup_message(
    facts: Sequence[str], similar: Sequence[tuple[str, str]], instruction: str
) -> Message:
    """`similar` holds (action, next state) of retrieved transitions; the most similar comes last.

    The instruction is said again where it is judged: a small model that had to look for it at the
    episode's start took the action's own words for what was wanted.
    """
    shown = [f"Elsewhere: {action} > {within_budget(state)}" for action, state in reversed(similar)]
    told = " ".join([*facts, f"Task: {instruction}."])
    return Message("system", "\n".join([*shown, told]))


def answer_text(answer: Answer, telling: Telling = FITTED) -> str:
    """The target of Eq. 5, with the reward in it; also the shape that `parse` reads."""
    reward = int(answer.reward) if answer.reward == int(answer.reward) else answer.reward
    if telling.instructed:
        return instructed.answer_text(answer.next_state, str(reward), answer.done, answer.reason)
    body = {"next_state": answer.next_state, "reward": reward, "done": answer.done}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return f"<think>{answer.reason}</think>{text}" if answer.reason else text


def hidden_question(entity: str) -> Message:
    return Message("user", f"What is at the {entity}?")


def variant_messages(telling: Telling, task: Task) -> list[Message]:
    """M_task of Eq. 6, which shares its parameters with the experience model."""
    if telling.instructed:
        return instructed.variant_request(task)
    return [opening(task), Message("user", VARIANT_REQUEST)]
