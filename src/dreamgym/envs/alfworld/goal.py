"""Read a household instruction: which object, in which state, where to, how many."""

from __future__ import annotations

import re
from dataclasses import dataclass

STATES = {"hot": "hot", "heat": "hot", "cool": "cool", "cold": "cool", "clean": "clean"}
_LAMP = re.compile(r"\b(?:look at|examine)(?: (?:the|a|an|some))? (\w+) (?:under|with) the (\w+)")
_PUT = re.compile(
    r"(\w+)(?: and (?:put|place) (?:it|them))? (?:in|on|in/on) (?:the |a |an )?(\w+)$"
)
_STATE_FIRST = re.compile(r"\b(?:put|find) (?:a|an|some|the|two)?\s*(hot|cool|cold|clean)\b")
_VERB_FIRST = re.compile(r"^(heat|cool|clean)\b")


@dataclass(frozen=True, slots=True)
class Goal:
    """What ends a household task. `lamp` tasks are met in front of a lit lamp, object in hand."""

    object_type: str
    target_type: str  # a receptacle's type, or the lamp's where `lamp` is true
    state: str = ""  # hot, cool, clean or nothing
    count: int = 1
    lamp: bool = False

    def __str__(self) -> str:
        if self.lamp:
            return f"a {self.object_type} in hand by a lit {self.target_type}"
        what = f"{self.state} {self.object_type}".strip()
        number = "two" if self.count == 2 else "a"
        return f"{number} {what} in {self.target_type}"


def read_goal(instruction: str) -> Goal | None:
    """The goal an instruction states, or nothing where it is not in the world's own phrases."""
    text = " ".join(instruction.lower().strip().rstrip(".").split())
    if found := _LAMP.search(text):
        return Goal(found[1], found[2], lamp=True)
    found = _PUT.search(text)
    if not found:
        return None
    state = _VERB_FIRST.search(text) or _STATE_FIRST.search(text)
    count = 2 if re.search(r"\btwo\b", text) else 1
    return Goal(found[1], found[2], STATES[state[1]] if state else "", count)


def harder(seed: Goal, goal: Goal) -> str:
    """How a goal asks for more than its seed, in words; empty where it does not.

    More steps are harder: a second object, a condition, a lamp. At equal length another place for
    the same thing counts too, since the agent has not learnt it by heart.
    """
    if goal.count > seed.count and _length(goal) > _length(seed):
        return "more objects"
    if _length(goal) > _length(seed):
        return "extra condition"
    if _length(goal) == _length(seed) and goal.object_type == seed.object_type and goal != seed:
        return "other condition" if goal.state != seed.state else "other receptacle"
    return ""


def _length(goal: Goal) -> int:
    """What comes on top of carrying one thing to its place."""
    return 2 * (goal.count - 1) + bool(goal.state) + goal.lamp
