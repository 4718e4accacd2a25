"""How a model that was never fitted is asked: in words, section by section.

    system     what it is to do (`instructions/dream.md`)
    user       <first_state>, <task>
    user       <similar>, <facts>, <action>
    assistant  <think>, <next_state>, <reward>, <done>
    user       the next <similar>, <facts>, <action> ...

Sections and not JSON: a long state then needs no escapes, and one that quotes a section is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dreamgym.instructions import instructions
from dreamgym.llm.base import Message, within_budget
from dreamgym.types import DreamFault, Task

_NAMES = (
    "first_state", "state", "task", "similar", "facts", "action", "known", "places", "examples",
    "think", "next_state", "reward", "done",
)  # fmt: skip
_FORGED = re.compile(rf"<(?=/?(?:{'|'.join(_NAMES)})>)")
_SHOWN_FACTS = 12


def section(name: str, text: str) -> str:
    """One section; what would open or close another one inside it is taken apart."""
    return f"<{name}>\n{_FORGED.sub('< ', text)}\n</{name}>"


def opening(task: Task) -> list[Message]:
    """What every question about an episode begins with."""
    told = [section("first_state", within_budget(task.first_state))]
    told.append(section("task", task.instruction))
    return [Message("system", instructions("dream")), Message("user", "\n".join(told))]


def reopening(state: str, task: Task) -> list[Message]:
    """What stands in for the past where there is no history."""
    told = [section("state", within_budget(state)), section("task", task.instruction)]
    return [Message("system", instructions("dream")), Message("user", "\n".join(told))]


def turn(action: str, facts: Sequence[str], similar: Sequence[tuple[str, str]]) -> Message:
    """One action and what was looked up for it; `similar` has the most similar one first."""
    told = []
    if similar:
        records = [f"> {did}\n{within_budget(state)}" for did, state in reversed(similar)]
        told.append(section("similar", "\n\n".join(records)))
    if facts:
        told.append(section("facts", "\n".join(facts)))
    told.append(section("action", action))
    return Message("user", "\n".join(told))


def answer_text(next_state: str, reward: str, done: bool, reason: str) -> str:
    """The answer as it is asked for."""
    think = f"<think>{reason}</think>\n" if reason else ""
    told = f"<reward>{reward}</reward>\n<done>{str(done).lower()}</done>"
    return f"{think}<next_state>{next_state}</next_state>\n{told}"


def hidden_request(
    task: Task, known: Mapping[str, str], places: Sequence[str], examples: Mapping[str, str]
) -> list[Message]:
    """All unseen places of a task at once. `examples` are facts of other tasks, as logs show
    them."""
    told = [section("first_state", within_budget(task.first_state))]
    told.append(section("task", task.instruction))
    shown = [f"{place}: {fact}" for place, fact in list(examples.items())[:_SHOWN_FACTS]]
    told.append(section("examples", "\n".join(shown) or "none"))
    told.append(section("known", "\n".join(f"{p}: {fact}" for p, fact in known.items()) or "none"))
    told.append(section("places", "\n".join(places)))
    return [Message("system", instructions("hidden")), Message("user", "\n".join(told))]


def read_hidden(text: str, places: Sequence[str]) -> dict[str, str]:
    """The sentence for each place; raises DreamFault where a place has none, or two."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        place, colon, fact = line.strip().lstrip("-* ").partition(":")
        name = place.strip().casefold()
        if not colon or name not in places:
            continue  # prose around the lines
        if found.setdefault(name, fact.strip()) != fact.strip():
            raise DreamFault("AMBIGUOUS", f"two facts about the {name}")
    missing = [place for place in places if not found.get(place)]
    if missing:
        raise DreamFault("INCOMPLETE", f"nothing about the {missing[0]}")
    return found


def variant_request(task: Task) -> list[Message]:
    """M_task of Eq. 6 by a model that was never fitted."""
    told = [section("first_state", within_budget(task.first_state))]
    told.append(section("task", task.instruction))
    return [Message("system", instructions("variant")), Message("user", "\n".join(told))]
