"""The reader of household text (`WorldText`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dreamgym.envs.alfworld.expert import Expert
from dreamgym.envs.alfworld.facts import (
    ENTITY,
    NOTHING_HAPPENS,
    Household,
    apply,
    hindsight,
    kind_of,
    reason,
    verdict,
)
from dreamgym.envs.alfworld.goal import harder, read_goal
from dreamgym.envs.alfworld.guards import contradiction, refused
from dreamgym.envs.text import Annotation, Note, Solver
from dreamgym.types import Episode, Task

_ONE = r"[a-z]+ \d+"
_ACTION = re.compile(
    rf"look|inventory|help|(?:go to|open|close|examine|use) {_ONE}|take {_ONE} from {_ONE}"
    rf"|move {_ONE} to {_ONE}|(?:clean|heat|cool|slice) {_ONE} with {_ONE}"
)
_TOOL = {"hot": "microwave", "cool": "fridge", "clean": "sinkbasin"}


def _beside(sentence: str) -> list[str]:
    """The places that a place's fact says share its spot."""
    return ENTITY.findall(sentence.partition(" There you are facing the ")[2])


class AlfworldText:
    """ALFWorld's sentences; the same for official and generated games."""

    failure = NOTHING_HAPPENS

    def well_formed(self, action: str) -> bool:
        return _ACTION.fullmatch(action) is not None

    def annotate(self, episode: Episode, start: Mapping[str, str] | None = None) -> Annotation:
        house = hindsight(episode)
        if start is not None:
            house = Household.from_facts(start)
            house.goal = read_goal(episode.task.instruction)
        facts = house.facts()
        notes = []
        for turn in episode.turns:
            acts = self.well_formed(turn.action)
            why = reason(house, turn.action, turn.next_state) if acts else "This is no action."
            changed = apply(house, turn.action, turn.next_state)
            why = f"{why} {verdict(house, turn.action, turn.next_state)}".strip()
            now = house.facts()
            notes.append(Note(why, tuple(now[key] for key in changed if key in now)))
        return Annotation(facts, tuple(notes))

    def changes(self, facts: Mapping[str, str], action: str, next_state: str) -> Sequence[str]:
        house = Household.from_facts(facts)
        changed = apply(house, action, next_state)
        return [fact for fact in map(house.fact, changed) if fact is not None]

    def contradiction(self, facts: Mapping[str, str], action: str, next_state: str) -> str:
        if not self.well_formed(action):
            return "" if next_state == self.failure else f"{action!r} is no action"
        return contradiction(Household.from_facts(facts), action, next_state)

    def places(self, first_state: str) -> Sequence[str]:
        return Household.from_first_state(first_state, "").places

    def start_facts(
        self, instruction: str, first_state: str, known: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Every place has a fact, every thing stands in one place, and the agent in none."""
        house = Household.from_first_state(first_state, instruction)
        placed: set[str] = set()
        for place in house.places:
            sentence = known.get(place, "")
            told = ENTITY.findall(sentence.partition("you see ")[2].partition(".")[0])
            things = [x for x in dict.fromkeys(told) if x not in placed and x not in house.places]
            placed.update(things)
            house.contents[place] = things
            if sentence.startswith(f"The {place} is "):
                house.is_open[place] = sentence.startswith(f"The {place} is open")
            together = _beside(sentence)
            if all(_beside(known.get(other, "")) == together for other in together):
                house.neighbours[place] = together or [place]
        return house.facts()

    def solvable(self, instruction: str, first_state: str, facts: Mapping[str, str]) -> bool:
        goal = read_goal(instruction)
        places = self.places(first_state)
        if goal is None:
            return False
        kinds = {kind_of(place) for place in places}
        held = {place: facts.get(place, "").partition("you see ")[2] for place in places}
        things = [x for place in places for x in ENTITY.findall(held[place].partition(".")[0])]
        if goal.lamp:
            return goal.target_type in map(kind_of, things) and goal.object_type in map(
                kind_of, things
            )
        tool = _TOOL.get(goal.state)
        if goal.target_type not in kinds or (tool and tool not in kinds):
            return False
        return sum(kind_of(x) == goal.object_type for x in things) >= goal.count

    def met(self, instruction: str, facts: Mapping[str, str]) -> bool | None:
        goal = read_goal(instruction)
        return None if goal is None else Household.from_facts(facts).meets(goal)

    def refuses(self, action: str, facts: Mapping[str, str]) -> bool:
        return refused(Household.from_facts(facts), action)

    def harder(self, seed: str, instruction: str) -> str:
        before, after = read_goal(seed), read_goal(instruction)
        return "" if before is None or after is None else harder(before, after)

    def solver(self, task: Task) -> Solver | None:
        return Expert(task.instruction, task.first_state) if read_goal(task.instruction) else None

    def meaning(self, task: Task) -> str:
        goal = read_goal(task.instruction)
        place = task.first_state.partition("Your task is to:")[0]
        return f"{' '.join(place.lower().split())}\n{goal or task.instruction.lower()}"

    def retell(self, first_state: str, instruction: str) -> str:
        return re.sub(
            r"Your task is to: .*\.\s*$",
            lambda _: f"Your task is to: {instruction}.",
            first_state,
        )
