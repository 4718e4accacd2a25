"""The toy world as a reader of its text, and as a scripted experience model that dreams it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dreamgym.envs.text import Annotation, Note
from dreamgym.envs.toy import NOTHING_HAPPENS, THINGS, contents_of
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import VARIANT_REQUEST, Answer, answer_text
from dreamgym.llm.base import LLM, Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.types import Episode, Task

BOXES = ("box 1", "box 2", "box 3")
_ACTION = re.compile(r"look|open box \d|take \w+")
_WANTED = re.compile(r"take (?:the )?(\w+)")
_FACT = re.compile(r"In the (box \d), there is a (\w+)\.")
_TAKEN = re.compile(r"You take the (\w+)\.")
_TOLD = re.compile(r"In the box \d, there is a \w+\.|You carry the \w+\.")
_OPENED = re.compile(r"You open (box \d)\. In it, you see a (\w+)\.")


def fact(box: str, thing: str) -> str:
    return f"In the {box}, there is a {thing}."


def facts_of(task: Task) -> dict[str, str]:
    """What the real toy world holds, as facts."""
    return {box: fact(box, thing) for box, thing in contents_of(task).items()}


class ToyText:
    """The toy world's `WorldText`."""

    failure = NOTHING_HAPPENS

    def well_formed(self, action: str) -> bool:
        return _ACTION.fullmatch(action) is not None

    def annotate(self, episode: Episode, start: Mapping[str, str] | None = None) -> Annotation:
        found = dict(start or {})
        for turn in episode.turns:
            for box, thing in _OPENED.findall(turn.next_state):
                found[box] = fact(box, thing)
        notes = (
            Note(
                f"So it is: {turn.action}.",
                tuple(self.changes(found, turn.action, turn.next_state)),
            )
            for turn in episode.turns
        )
        return Annotation(found, tuple(notes))

    def changes(self, facts: Mapping[str, str], action: str, next_state: str) -> Sequence[str]:
        """What is taken is carried; other facts stand in the answer as they are."""
        taken = [f"You carry the {thing}." for thing in _TAKEN.findall(next_state)]
        return [*taken, *_TOLD.findall(next_state)]

    def contradiction(self, facts: Mapping[str, str], action: str, next_state: str) -> str:
        for box, thing in _OPENED.findall(next_state):
            if facts.get(box, fact(box, thing)) != fact(box, thing):
                return f"{box} holds no {thing}"
        return ""

    def places(self, first_state: str) -> Sequence[str]:
        return BOXES

    def start_facts(
        self, instruction: str, first_state: str, known: Mapping[str, str]
    ) -> Mapping[str, str]:
        return dict(known)

    def solvable(self, instruction: str, first_state: str, facts: Mapping[str, str]) -> bool:
        wanted = _WANTED.search(instruction)
        things = [found[2] for found in map(_FACT.fullmatch, facts.values()) if found]
        return wanted is not None and wanted[1] in things

    def refuses(self, action: str, facts: Mapping[str, str]) -> bool:
        return facts.get("you", "").startswith("You carry")  # with something in hand it is over

    def met(self, instruction: str, facts: Mapping[str, str]) -> bool:
        wanted = _WANTED.search(instruction)
        return wanted is not None and facts.get("you") == f"You carry the {wanted[1]}."

    def harder(self, seed: str, instruction: str) -> str | None:
        return None

    def meaning(self, task: Task) -> str:
        # its boxes are told by its id, or its parent's: a variant has none of its own at first
        return f"{task.parent or task.id}: {task.instruction}"

    def solver(self, task: Task) -> None:
        return None

    def retell(self, first_state: str, instruction: str) -> str:
        return first_state


def dream_the_toy(orders: Sequence[Sequence[str]] = (THINGS,)) -> Callable[..., str]:
    """An experience model as a function of its prompt: it plays the toy world by what it reads.

    Asked what is hidden, it goes through `orders` of things, a new one for every first box.
    """
    order = itertools.cycle(orders)
    now: list[str] = []

    def answer(prompt: Sequence[Message]) -> str:
        nonlocal now
        question = prompt[-1].text
        if question.startswith("What is at the box"):
            number = int(question[-2])
            if number == 1 or not now:
                now = list(next(order))
            return fact(f"box {number}", now[number - 1])
        if question == VARIANT_REQUEST:
            return "take the ring"
        return answer_text(_react(prompt))

    return answer


def _react(prompt: Sequence[Message]) -> Answer:
    told = [json.loads(m.text.split("</think>")[-1]) for m in prompt if m.role == "assistant"]
    seen = dict(found for body in told for found in _OPENED.findall(body["next_state"]))
    action = prompt[-2].text
    verb, _, name = action.partition(" ")
    why = f"The boxes open: {len(seen)}."
    if verb == "look":
        scene = " ".join(f"Box {box[-1]} is open." for box in sorted(seen)) or prompt[0].text
        return Answer(scene, 0.0, False, why)
    hidden = dict(_FACT.findall(prompt[-1].text))
    if verb == "open" and name in hidden and name not in seen:
        return Answer(f"You open {name}. In it, you see a {hidden[name]}.", 0.0, False, why)
    if verb == "take" and name in seen.values():
        wanted = _WANTED.search(prompt[0].text)
        paid = float(wanted is not None and wanted[1] == name)
        return Answer(f"You take the {name}.", paid, True, why)
    return Answer(NOTHING_HAPPENS, 0.0, False, why)


def toy_dream(
    llm: LLM | None = None,
    *,
    known: Mapping[str, Mapping[str, str]] | None = None,
    **config: Any,
) -> DreamWorld:
    """A dream of the toy world, over the scripted model where no other is given.

    The model's word ends an episode: the facts would not tell of one that ends in failure.
    """
    settings = ExperienceConfig.model_validate({"k": 0, "judge": "model", **config})
    model = llm or ScriptedLLM(dream_the_toy())
    return DreamWorld(ExperienceModel(model, ToyText(), settings, known=known))
