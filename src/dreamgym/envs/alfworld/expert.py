"""An expert that searches: it makes the demonstrations and knows only what an agent could know.

It reads the world's sentences and nothing else, so it cannot cheat, plays on either back end or in
a dream, and goes on from wherever noise has led: every action that was taken is told to `observe`.
"""

from __future__ import annotations

import random
from collections import Counter

from dreamgym.envs.alfworld import rooms
from dreamgym.envs.alfworld.facts import NOTHING_HAPPENS, Household, apply
from dreamgym.types import DreamGymError

_VERBS = {"clean": "clean", "hot": "heat", "cool": "cool"}
_TOOLS = {state: tool.lower() for state, (tool, _) in rooms.CHANGES.items()}
_USUAL = {  # as the world's sentences write the names
    thing.lower(): {place.lower(): weight for place, weight in places.items()}
    for thing, places in rooms.USUAL.items()
}
_HOLDS = {p.lower(): frozenset(t.lower() for t in things) for p, things in rooms.HOLDS.items()}
_JOINS = {"take": " from ", "move": " to "} | dict.fromkeys(_VERBS.values(), " with ")
_POSSIBLE, _UNLIKELY = 0.1, 0.01  # weights of a place that may hold a thing but seldom does
_LUCK = 0.5  # spread of the expert's own opinion of each place: demonstrations differ


def kind_of(name: str) -> str:
    """`drawer 3` is a drawer."""
    return name.rpartition(" ")[0]


class Expert:
    """Plays one episode: `act`, and `observe` what became of whichever action was taken."""

    def __init__(self, instruction: str, first_state: str, *, seed: int = 0) -> None:
        self.house = Household.from_first_state(first_state, instruction)
        if self.house.goal is None:
            raise DreamGymError(
                f"the expert cannot read the instruction {instruction!r}: it is not one of "
                "ALFWorld's phrases. Leave the task out of the demonstrations."
            )
        self.goal = self.house.goal
        rng = random.Random(seed)
        self._luck = {place: rng.lognormvariate(0.0, _LUCK) for place in self.house.places}
        self._num_places = Counter(map(kind_of, self.house.places))
        self._refused: set[tuple[str, str]] = set()  # (what, place): tried in vain
        self._target = ""  # where two things are to meet
        self._failures: Counter[str] = Counter()
        self._intended = ""
        self._pending = ""  # what to do next, whatever else

    def observe(self, action: str, next_state: str) -> None:
        """Take in an action, the expert's own or another's, and the world's answer."""
        apply(self.house, action, next_state)
        if action == self._intended and next_state.startswith(NOTHING_HAPPENS):
            self._learn_from_failure(action)
        self._intended = ""

    def act(self) -> str:
        """The next action, from what has been seen so far."""
        self._intended = self._pending or self._next()
        self._pending = ""
        return self._intended

    def _next(self) -> str:
        held = self.house.held
        if held is None:
            return self._fetch()
        if kind_of(held) != self.goal.object_type:
            return self._put_down(held)
        if self.goal.lamp:
            return self._light()
        if self.goal.state and self.goal.state not in self.house.states.get(held, []):
            return self._change(held)
        return self._deliver(held)

    def _fetch(self) -> str:
        """Take a thing of the kind that the goal asks for, or look for one."""
        wanted = self.goal.object_type
        settled = self._meeting_place(begun=True) if self.goal.count > 1 else ""
        known = [
            (place, thing)
            for place, things in self.house.contents.items()
            for thing in things
            if kind_of(thing) == wanted and place != settled and (thing, place) not in self._refused
        ]
        if not known:
            return self._search(wanted)
        place, thing = max(known, key=lambda spot: self._nearness(spot[0]))
        return self._at(place) or f"take {thing} from {place}"

    def _light(self) -> str:
        """Bring the thing in hand to a lamp and turn it on."""
        for place, things in self.house.contents.items():
            for thing in things:
                if kind_of(thing) == self.goal.target_type and (thing, place) not in self._refused:
                    return self._at(place, inside=False) or f"use {thing}"
        return self._search(self.goal.target_type)

    def _change(self, held: str) -> str:
        tool = self._nearest(_TOOLS[self.goal.state], held)
        if not tool:
            return self._search(self.goal.object_type)
        return self._at(tool, inside=False) or f"{_VERBS[self.goal.state]} {held} with {tool}"

    def _deliver(self, held: str) -> str:
        if self.goal.count > 1:
            place = self._meeting_place(begun=False)
        else:
            place = self._nearest(self.goal.target_type, held)
        if not place or (held, place) in self._refused:
            return self._put_down(held)
        return self._at(place) or f"move {held} to {place}"

    def _put_down(self, held: str) -> str:
        """Get rid of a thing that is of no use, at the nearest place that takes it."""
        places = [place for place in self.house.places if (held, place) not in self._refused]
        if not places:
            self._refused = {pair for pair in self._refused if pair[0] != held}
            return "look"
        willing = [p for p in places if kind_of(held) in _HOLDS.get(kind_of(p), ())]
        place = max(willing or places, key=self._nearness)
        return self._at(place) or f"move {held} to {place}"

    def _search(self, wanted: str) -> str:
        """Look where nobody has looked: here first, then where the wanted is usual."""
        house = self.house
        unseen = [place for place in house.places if place not in house.contents]
        if not unseen:  # it must have been overlooked, or moved: forget, and begin again
            house.contents.clear()
            self._refused.clear()
            return "look"
        here = [place for place in unseen if place in house.facing]
        place = here[0] if here else max(unseen, key=lambda p: self._promise(wanted, p))
        return self._at(place) or f"examine {place}"

    def _at(self, place: str, inside: bool = True) -> str:
        """The next action on the way to a place, and into it; empty once there."""
        if place not in self.house.facing:
            return f"go to {place}"
        if inside and self.house.is_open.get(place) is False:
            return f"open {place}"
        return ""

    def _promise(self, wanted: str, place: str) -> float:
        """How much the place promises: ten drawers share what is usual for drawers."""
        kind = kind_of(place)
        weight = _USUAL.get(wanted, {}).get(kind)
        if weight is None:
            weight = _POSSIBLE if wanted in _HOLDS.get(kind, ()) else _UNLIKELY
        return weight / self._num_places[kind] * self._luck[place]

    def _nearness(self, place: str) -> tuple[bool, bool, float]:
        """Here before elsewhere, open before closed, then as luck has it."""
        house = self.house
        return place in house.facing, house.is_open.get(place) is not False, self._luck[place]

    def _nearest(self, kind: str, held: str) -> str:
        places = [p for p in self.house.places if kind_of(p) == kind]
        willing = [p for p in places if (held, p) not in self._refused]
        return max(willing, key=self._nearness, default="")

    def _meeting_place(self, begun: bool) -> str:
        """One place for two things. `begun`: only if one lies there already, else none."""
        usable = [
            place
            for place in self.house.places
            if kind_of(place) == self.goal.target_type
            and (self.house.held or "", place) not in self._refused
        ]
        if self._target not in usable:
            best = max(usable, key=lambda p: (self._num_there(p), self._nearness(p)), default="")
            if begun and not (best and self._num_there(best)):
                return ""
            self._target = best
        return self._target

    def _num_there(self, place: str) -> int:
        things = self.house.contents.get(place, [])
        return sum(kind_of(thing) == self.goal.object_type for thing in things)

    def _learn_from_failure(self, action: str) -> None:
        """Nothing happened: the picture was wrong, or this cannot be done here."""
        verb, _, rest = action.partition(" ")
        self._failures[action] += 1
        again = self._failures[action] > 1
        place = " ".join(rest.split()[-2:])
        if verb in ("go", "examine", "open"):
            if again:
                self._forget(place)
            self._pending = "look"  # several places can share a spot: then `go to` is refused
            self.house.is_open.pop(place, None)
        elif verb == "use":
            self._refused.add((rest, self.house.where(rest) or ""))
        elif verb == "take" and not again:
            self.house.contents.pop(place, None)  # look again what is there
        elif verb == "move" and not again and place not in self.house.contents:
            self._pending = f"examine {place}"  # perhaps it has a door
        else:
            self._refused.add((rest.split(_JOINS[verb])[0], place))

    def _forget(self, place: str) -> None:
        self.house.places = [name for name in self.house.places if name != place]
        self.house.contents.pop(place, None)
