"""Facts in the world's own sentences: what a household log shows, and when it stops being true.

A fact is one sentence about one entity ("On the shelf 1, you see a pen 1."). `hindsight` reads them
from a log (what an episode shows later is what was hidden before), `true_household` from the
engine's state, and `apply` keeps them while an episode goes on, lived or dreamt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.goal import Goal, read_goal
from dreamgym.types import Episode, Turn

NOTHING_HAPPENS = "Nothing happens."
MIDDLE = "You are in the middle of a room."
ENTITY = re.compile(r"\b[a-z]+ \d+\b")
CONTENT = re.compile(r"(?:On|In) (?:the ([a-z]+ \d+)|it), you see ([^.]*)\.")
CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
OPEN = re.compile(r"The ([a-z]+ \d+) is open\.")
FACING = re.compile(r"You are facing the ([^.]*)\.")
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

    @classmethod
    def from_facts(cls, facts: Mapping[str, str]) -> Household:
        """The picture that a set of fact sentences gives."""
        house = cls()
        for key, fact in facts.items():
            if key == "you":
                where, _, hand = fact.partition("You carry ")
                house.facing = ENTITY.findall(where)
                house.held = next(iter(ENTITY.findall(hand)), None)
            elif "you see " in fact:
                told, _, beside = fact.partition("you see ")[2].partition(".")
                house.places.append(key)
                house.contents[key] = ENTITY.findall(told)
                if beside:
                    house.neighbours[key] = ENTITY.findall(beside)
                if fact.startswith(f"The {key} is "):
                    house.is_open[key] = fact.startswith(f"The {key} is open")
            elif fact.startswith(f"The {key} is "):
                house.states[key] = fact.removeprefix(f"The {key} is ").rstrip(".").split(" and ")
        return house

    def meets(self, goal: Goal) -> bool:
        """Whether the goal holds in this picture."""
        if goal.lamp:
            lit = [
                thing
                for place in self.facing
                for thing in self.contents.get(place, ())
                if kind_of(thing) == goal.target_type and "on" in self.states.get(thing, ())
            ]
            return bool(lit) and kind_of(self.held or "") == goal.object_type
        fitting = (
            sum(
                kind_of(thing) == goal.object_type
                and (not goal.state or goal.state in self.states.get(thing, ()))
                for thing in things
            )
            for place, things in self.contents.items()
            if kind_of(place) == goal.target_type
        )
        return max(fitting, default=0) >= goal.count

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
    """Carry an answer into the picture; returns the keys of the facts that it changed."""
    if next_state.startswith(NOTHING_HAPPENS):
        return []
    shown = _read_places(house, next_state)
    return list(dict.fromkeys([*shown, *_carry_out(house, action, next_state)]))


def _carry_out(house: Household, action: str, next_state: str) -> list[str]:
    """What an accepted action does beside what its answer shows."""
    verb, _, rest = action.partition(" ")
    if action == "look":
        return _look_round(house, next_state)
    if verb == "go":
        place = rest.removeprefix("to ")
        before = house.facing
        house.facing = house.neighbours.get(place, [place])
        return ["you"] if house.facing != before else []
    if verb in ("open", "close"):
        house.is_open[rest] = verb == "open"
        return [rest] if rest in house.contents else []
    things = ENTITY.findall(rest)
    if verb in ("take", "move") and len(things) == 2:
        return _lift(house, *things) if verb == "take" else _put_down(house, *things)
    if verb in _STATE_VERBS and len(things) == 2:
        _set_state(house, things[0], _STATE_VERBS[verb])
        return [things[0]]
    if verb in ("slice", "use") and things:
        _set_state(house, things[0], "sliced" if verb == "slice" else "on")
        return [things[0]]
    return []


def _look_round(house: Household, next_state: str) -> list[str]:
    """Which places share the spot one stands at; only a `look` tells."""
    found = FACING.search(next_state)
    if not found:
        return []
    before = agent_fact(house.facing, house.held)
    house.facing = ENTITY.findall(found[1])
    changed = [p for p in house.facing if house.neighbours.get(p, [p]) != house.facing]
    for place in house.facing:
        house.neighbours[place] = house.facing
    told = [place for place in changed if place in house.contents]
    return [*told, "you"] if agent_fact(house.facing, house.held) != before else told


def _lift(house: Household, thing: str, place: str) -> list[str]:
    house.held = thing
    if thing not in house.contents.get(place, ()):
        return ["you"]
    house.contents[place].remove(thing)
    return [place, "you"]


def _put_down(house: Household, thing: str, place: str) -> list[str]:
    house.held = None
    if place not in house.contents:
        return ["you"]
    # official games keep some things in two places at once: listed once in each all the same
    house.contents[place] = sorted({*house.contents[place], thing}, key=listing_order)
    return [place, "you"]


def _set_state(house: Household, thing: str, state: str) -> None:
    states = [s for s in house.states.get(thing, []) if {s, state} != {"hot", "cool"}]
    house.states[thing] = sorted({*states, state})


def _read_places(house: Household, text: str) -> list[str]:
    """Places whose contents or doors this text shows for the first time or otherwise than known."""
    subject = ""
    changed = []
    if found := CLOSED.search(text):
        house.is_open[found[1]] = False
    if found := OPEN.search(text):
        subject = found[1]
        house.is_open[subject] = True
    if found := CONTENT.search(text):
        place = found[1] or subject
        seen = ENTITY.findall(found[2])
        if place in house.places:
            house.shown.add(place)
            if house.contents.get(place) != seen:
                house.contents[place] = seen
                changed.append(place)
    return changed


def reason(house: Household, action: str, next_state: str) -> str:
    """Why the world answers as it does, from the picture before the action.

    What was found comes before what follows from it, and every clause is one comparison: a small
    model then decides one thing at a time.
    """
    things = ENTITY.findall(action)
    verb = action.split(" ", 1)[0]
    if verb in ("look", "inventory", "help"):
        return _why_looked(house, verb)
    thing, place = things[0], things[-1]
    failed = next_state.startswith(NOTHING_HAPPENS)
    here = f"You are {'' if place in house.facing else 'not '}at {place}"
    if verb == "go":
        return f"{here}." if place in house.places else f"There is no place {place}."
    door = {True: "open", False: "closed", None: "without a door"}[house.is_open.get(place)]
    if verb in ("open", "close"):
        return f"{here}; it is {door}."
    if verb == "examine":
        near = thing in house.facing or house.held == thing
        return f"You {'' if near else 'do not '}have {thing} before you."
    if verb == "use":
        holder = house.where(thing)
        useless = f" A {kind_of(thing)} cannot be used." if holder and failed else ""
        return f"{thing} is {f'at {holder}, ' if holder else 'not '}before you.{useless}"
    hand = "it" if house.held == thing else house.held or "nothing"
    clauses = [here, f"you carry {hand}"]
    if verb in ("take", "move") and house.is_open.get(place) is not None:
        clauses.append(f"it is {door}")
    if verb == "take":
        clauses += _why_not_taken(house, thing, place, failed)
    shut = verb == "move" and door == "closed"  # a closed microwave heats all the same
    if verb != "take" and place in house.facing and hand == "it" and not shut:
        what = "take" if verb == "move" else verb
        clauses.append(f"a {kind_of(place)} {'cannot' if failed else 'can'} {what} it")
    return ", ".join(clauses) + "."


def _why_looked(house: Household, verb: str) -> str:
    """What tells the three apart: of one reason for all a small model makes one action."""
    if verb == "look":
        return f"You look round at {' '.join(house.facing) or 'no place'}."
    return (
        f"Your hand holds {house.held or 'nothing'}."
        if verb == "inventory"
        else "You ask for help."
    )


def _why_not_taken(house: Household, thing: str, place: str, failed: bool) -> list[str]:
    """What of the thing speaks for or against taking it, as far as hand and door let one try."""
    known = place in house.contents
    found = [f"{kind_of(thing)} there: {_alike(house, place, kind_of(thing))}"] if known else []
    tried = place in house.facing and house.held is None and house.is_open.get(place) is not False
    if not failed or not tried:
        return found
    if not known:
        return ["nobody has seen into it"]
    fixed = thing in house.contents[place]
    return [*found, f"a {kind_of(thing)} cannot be carried"] if fixed else found


def _alike(house: Household, place: str, kind: str) -> str:
    return " ".join(x for x in house.contents.get(place, ()) if kind_of(x) == kind) or "none"


def verdict(house: Household, action: str, next_state: str) -> str:
    """Each demand of the goal and whether it holds now; empty where the action bears on none."""
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
    demands = [(goal.object_type, kind_of(thing) == goal.object_type)]
    if goal.state:
        demands.append((goal.state, goal.state in house.states.get(thing, ())))
    demands.append((goal.target_type, kind_of(place) == goal.target_type))
    told = " ".join(f"Wanted {what}: {'yes' if holds else 'no'}." for what, holds in demands)
    if goal.count > 1:
        told += f" Wanted two: {_alike(house, place, goal.object_type)}."
    return told


def _lamp_verdict(house: Household, verb: str, goal: Goal) -> str:
    if verb not in ("use", "take", "go"):
        return ""
    lit = [
        thing
        for place in house.facing
        for thing in house.contents.get(place, ())
        if kind_of(thing) == goal.target_type and "on" in house.states.get(thing, ())
    ]
    if not lit and verb != "use":
        return ""
    carries = kind_of(house.held or "") == goal.object_type
    demands = [(goal.object_type, carries), (goal.target_type, bool(lit))]
    return " ".join(f"Wanted {what}: {'yes' if holds else 'no'}." for what, holds in demands)


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
    moved: dict[str, dict[str, bool]] = {}  # place not yet shown -> thing: it was there at first
    for turn in episode.turns:
        doors, shown = dict(seen.is_open), set(seen.shown)
        _note_shared_spot(seen, turn)
        apply(seen, turn.action, turn.next_state)
        for place, is_open in seen.is_open.items():
            if place not in doors:  # a door first told of by opening it was closed before
                by_hand = turn.action in (f"open {place}", f"close {place}")
                start.is_open[place] = is_open != by_hand
        _note_blind_move(moved, seen, turn)
        for place in seen.shown - shown:
            before = moved.get(place, {})
            things = {x for x in seen.contents[place] if before.get(x, True)}
            things |= {x for x, at_first in before.items() if at_first}
            start.contents[place] = sorted(things, key=listing_order)
    start.neighbours = {place: list(names) for place, names in seen.neighbours.items()}
    return start


def _note_shared_spot(seen: Household, turn: Turn) -> None:
    """A place that one cannot go to is here already, and so is one that a hand has reached.

    Only a `look` says so; without it the same facts would be followed by either answer.
    """
    verb = turn.action.split(" ", 1)[0]
    place = next(reversed(ENTITY.findall(turn.action)), "")
    if place not in seen.places or place in seen.facing or not seen.facing:
        return
    failed = turn.next_state.startswith(NOTHING_HAPPENS)
    reached = verb in ("open", "close", "take", "move", *_STATE_VERBS)
    if (turn.action == f"go to {place}" and failed) or (reached and not failed):
        together = {*seen.facing, place, *seen.neighbours.get(place, ())}
        seen.facing = sorted(together, key=listing_order)
        for name in seen.facing:
            seen.neighbours[name] = seen.facing


def _note_blind_move(moved: dict[str, dict[str, bool]], seen: Household, turn: Turn) -> None:
    """Several places can share a spot: then a hand reaches into one that was never shown."""
    verb, _, rest = turn.action.partition(" ")
    things = ENTITY.findall(rest)
    if verb not in ("take", "move") or len(things) != 2 or things[1] in seen.shown:
        return
    if not turn.next_state.startswith(NOTHING_HAPPENS):
        moved.setdefault(things[1], {}).setdefault(things[0], verb == "take")
