"""Facts in the world's own sentences: what a household log shows, and when it stops being true.

A fact is one sentence about one entity ("On the shelf 1, you see a pen 1."). Three readers give
them: `hindsight` from a log (what an episode shows later is what was hidden before), the true ones
from the engine's state, and the experience model, which writes them itself while it dreams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.goal import Goal, read_goal
from dreamgym.types import Episode

NOTHING_HAPPENS = "Nothing happens."
MIDDLE = "You are in the middle of a room."
ENTITY = re.compile(r"\b[a-z]+ \d+\b")
_CONTENT = re.compile(r"(?:On|In) (?:the ([a-z]+ \d+)|it), you see ([^.]*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_OPEN = re.compile(r"The ([a-z]+ \d+) is open\.")
_FACING = re.compile(r"You are facing the ([^.]*)\.")
_STATE_VERBS = {"clean": "clean", "heat": "hot", "cool": "cool"}


def list_of(names: list[str], article: str = "a ") -> str:
    """The world's way to list: `a pen 1, and a cd 2`, or `nothing`."""
    items = [article + name for name in names]
    if not items:
        return "nothing"
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + ", and " + items[-1]


def listing_order(name: str) -> tuple[str, int]:
    """The order in which the world lists things: by type, then by falling number."""
    kind, _, number = name.rpartition(" ")
    return kind, -int(number)


def place_fact(
    name: str, contents: list[str], is_open: bool | None, facing: list[str] | None = None
) -> str:
    """`is_open` is None for a place without a door; `facing` lists what one stands before there."""
    if is_open is None:
        fact = f"On the {name}, you see {list_of(contents)}."
    else:
        door = "open" if is_open else "closed"
        fact = f"The {name} is {door}. In it, you see {list_of(contents)}."
    if facing and len(facing) > 1:
        fact += f" There you are facing the {list_of(facing, '')}."
    return fact


def agent_fact(facing: list[str], held: str | None) -> str:
    where = f"You are facing the {list_of(facing, '')}." if facing else MIDDLE
    return f"{where} You carry {'a ' + held if held else 'nothing'}."


@dataclass
class Household:
    """The world as far as a log has shown it. Places it has not shown are absent, not empty."""

    places: list[str] = field(default_factory=list)
    contents: dict[str, list[str]] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)  # places whose whole contents were told
    is_open: dict[str, bool] = field(default_factory=dict)
    states: dict[str, list[str]] = field(default_factory=dict)
    facing: list[str] = field(default_factory=list)
    neighbours: dict[str, list[str]] = field(default_factory=dict)  # seen by a `look`
    held: str | None = None
    goal: Goal | None = None

    @classmethod
    def from_first_state(cls, first_state: str, instruction: str) -> Household:
        room = first_state.split("you see", 1)[-1].split("\n")[0]
        return cls(places=ENTITY.findall(room), goal=read_goal(instruction))

    def fact(self, key: str) -> str | None:
        """The sentence about one entity, as far as known."""
        if key == "you":
            return agent_fact(self.facing, self.held)
        if key in self.contents:
            return place_fact(
                key, self.contents[key], self.is_open.get(key), self.neighbours.get(key)
            )
        if key in self.states:
            return f"The {key} is {' and '.join(self.states[key])}."
        return None

    def facts(self) -> dict[str, str]:
        """Every fact known, by entity; the agent's stands last."""
        found = {key: self.fact(key) for key in (*self.contents, *self.states, "you")}
        return {key: fact for key, fact in found.items() if fact is not None}

    def where(self, thing: str) -> str | None:
        """The place here at hand that holds a thing."""
        return next((p for p in self.facing if thing in self.contents.get(p, ())), None)


def apply(house: Household, action: str, next_state: str) -> list[str]:
    """Carry one real answer into the picture; returns the keys of the facts that it changed."""
    words = action.split(" ", 1)
    verb, rest = words[0], words[1] if len(words) > 1 else ""
    if next_state.startswith(NOTHING_HAPPENS):
        return []
    shown = _read_places(house, next_state)
    if action == "look":
        found = _FACING.search(next_state)
        if found:
            house.facing = ENTITY.findall(found[1])
            for place in house.facing:
                house.neighbours[place] = house.facing
        return []
    if verb == "go":
        place = rest.removeprefix("to ")
        before = house.facing
        house.facing = house.neighbours.get(place, [place])
        return ["you"] if house.facing != before else []
    if verb in ("open", "close"):
        house.is_open[rest] = verb == "open"
        return [rest] if rest in house.contents else []
    things = ENTITY.findall(rest)
    if verb == "take" and len(things) == 2:
        thing, place = things
        house.held = thing
        if thing not in house.contents.get(place, ()):
            return ["you"]
        house.contents[place].remove(thing)
        return [place, "you"]
    if verb == "move" and len(things) == 2:
        thing, place = things
        house.held = None
        if place not in house.contents:
            return ["you"]
        house.contents[place] = sorted([*house.contents[place], thing], key=listing_order)
        return [place, "you"]
    if verb in _STATE_VERBS and len(things) == 2:
        _set_state(house, things[0], _STATE_VERBS[verb])
        return [things[0]]
    if verb == "slice" and things:
        _set_state(house, things[0], "sliced")
        return [things[0]]
    if verb == "use" and things:
        _set_state(house, things[0], "on")
        return [things[0]]
    return shown if verb == "examine" and rest in shown else []


def _set_state(house: Household, thing: str, state: str) -> None:
    states = [s for s in house.states.get(thing, []) if {s, state} != {"hot", "cool"}]
    house.states[thing] = sorted({*states, state})


def _read_places(house: Household, text: str) -> list[str]:
    """Places whose contents or doors this text shows for the first time or otherwise than known."""
    subject = ""
    changed = []
    if found := _CLOSED.search(text):
        house.is_open[found[1]] = False
    if found := _OPEN.search(text):
        subject = found[1]
        house.is_open[subject] = True
    if found := _CONTENT.search(text):
        place = found[1] or subject
        seen = ENTITY.findall(found[2])
        if place in house.places:
            house.shown.add(place)
            if house.contents.get(place) != seen:
                house.contents[place] = seen
                changed.append(place)
    return changed


def reason(house: Household, action: str, next_state: str) -> str:
    """Why the world answers as it does, from the picture before the action."""
    things = ENTITY.findall(action)
    failed = next_state.startswith(NOTHING_HAPPENS)
    verb = action.split(" ", 1)[0]
    if verb in ("look", "inventory", "help"):
        return "This only looks."
    if not things:
        return "This is no action."
    thing, place = things[0], things[-1]
    here = f"You are {'' if place in house.facing else 'not '}at {place}"
    if verb == "go":
        if place not in house.places:
            return f"There is no place {place}."
        return f"{here}."
    if verb in ("open", "close"):
        door = {True: "open", False: "closed", None: "without a door"}[house.is_open.get(place)]
        return f"{here}; it is {door}."
    if verb == "examine":
        if thing in house.facing or house.held == thing:
            return f"You have {thing} before you."
        return f"You do not have {thing} before you."
    if verb == "use":
        holder = house.where(thing)
        return f"{thing} is at {holder}, before you." if holder else f"{thing} is not before you."
    hand = f"you carry {house.held or 'nothing'}"
    if verb == "take":
        if failed and place in house.facing and house.held is None:
            if house.is_open.get(place) is False:
                return f"{here}, {hand}, {place} is closed."
            return f"{here}, {hand}, {thing} is not there."
        return f"{here}, {hand}{'' if failed else f', {thing} is there'}."
    if verb == "move" and failed and place in house.facing and house.held == thing:
        door = "is closed" if house.is_open.get(place) is False else f"does not take {thing}"
        return f"{here}, {hand}, {place} {door}."
    return f"{here}, {hand}."


def verdict(house: Household, action: str, next_state: str) -> str:
    """How far the goal is met after the action; empty where the action does not bear on it."""
    goal = house.goal
    things = ENTITY.findall(action)
    verb = action.split(" ", 1)[0]
    if goal is None or next_state.startswith(NOTHING_HAPPENS):
        return ""
    if goal.lamp:
        return _lamp_verdict(house, verb, goal)
    if verb != "move" or len(things) != 2:
        return ""
    thing, place = things
    wanted = f"The task wants {goal}: "
    if kind_of(thing) != goal.object_type:
        return f"{wanted}{thing} is another thing."
    if kind_of(place) != goal.target_type:
        return f"{wanted}{place} is another place."
    if goal.state and goal.state not in house.states.get(thing, []):
        return f"{wanted}{thing} is not {goal.state}."
    alike = [x for x in house.contents.get(place, []) if kind_of(x) == goal.object_type]
    if goal.state:
        alike = [x for x in alike if goal.state in house.states.get(x, [])]
    if len(alike) < goal.count:
        return f"{wanted}only {list_of(alike, '')} is there."
    return f"{wanted}{list_of(alike, '')} is there."


def _lamp_verdict(house: Household, verb: str, goal: Goal) -> str:
    if verb not in ("use", "take", "go"):
        return ""
    held = house.held or "nothing"
    lit = next(
        (
            x
            for p in house.facing
            for x in house.contents.get(p, [])
            if "on" in house.states.get(x, [])
        ),
        None,
    )
    if lit is None and verb != "use":
        return ""
    return f"The task wants {goal}: you carry {held}, {lit or 'no lamp'} is lit here."


def kind_of(name: str) -> str:
    """`shelf` for `shelf 1`."""
    return name.rpartition(" ")[0]


def true_household(game: FastGame) -> Household:
    """The whole picture at a game's start, from the engine's own state: for audits."""
    problem, names = game.problem, game.problem.names
    house = Household(
        places=[names[place] for place in game.receptacles], goal=read_goal(game.game.goal)
    )
    at: dict[str, list[str]] = {}
    for place in game.receptacles:
        at.setdefault(problem.receptacle_locations[place], []).append(names[place])
        house.contents[names[place]] = [names[x] for x in sorted(problem.contents.get(place, ()))]
        if problem.has("openable", place):
            house.is_open[names[place]] = problem.has("opened", place)
    for together in at.values():
        for name in together:
            house.neighbours[name] = together
    return house


def hindsight(episode: Episode) -> Household:
    """What an episode shows later is what was hidden before: the start, as far as it shows it."""
    first_state, instruction = episode.task.first_state, episode.task.instruction
    seen = Household.from_first_state(first_state, instruction)
    start = Household.from_first_state(first_state, instruction)
    for turn in episode.turns:
        before = {place: list(things) for place, things in seen.contents.items()}
        doors = dict(seen.is_open)
        apply(seen, turn.action, turn.next_state)
        for place, is_open in seen.is_open.items():
            if place not in doors:  # a door first told of by opening it was closed before
                start.is_open[place] = is_open != (turn.action == f"open {place}")
        for place in seen.contents:
            if place not in before and place in seen.shown:
                start.contents[place] = list(seen.contents[place])
    start.neighbours = {place: list(names) for place, names in seen.neighbours.items()}
    return start
