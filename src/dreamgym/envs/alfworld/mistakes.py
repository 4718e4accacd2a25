"""Commands the world refuses, of the kinds that agents write: a world is learnt by its noes too."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.goal import Goal

_MALFORMED_SHARE = 0.08
_TRIES = 20
_MALFORMED = (
    "go {place}",
    "take {thing}",
    "put {thing} in {place}",
    "pick up the {thing}",
    "open the {place}",
    "look around",
    "think: the {thing} may be in {place}",
    "move {thing} {place}",
    "wait",
)


def mistake(play: FastGame, rng: random.Random) -> str:
    """A command that is refused now: mostly well-formed and impossible, rarely not a command."""
    if rng.random() < _MALFORMED_SHARE:
        place, thing = rng.choice(play.receptacles), _any_thing(play, rng)
        names = play.problem.names
        return rng.choice(_MALFORMED).format(place=names[place], thing=names[thing])
    accepted = set(play.admissible())
    for _ in range(_TRIES):
        command = rng.choice(_KINDS)(play, rng)
        if command and command not in accepted:
            return command
    return "wait"


def _far_away(play: FastGame, rng: random.Random) -> str:
    """What would be right at another place."""
    far = [place for place in play.receptacles if place not in play.here()]
    if not far:
        return ""
    place = rng.choice(far)
    options = [f"open {_name(play, place)}", f"examine {_name(play, place)}", _change(play, place)]
    return rng.choice([*options, _take(play, rng, place), _move(play, place)])


def _not_there(play: FastGame, rng: random.Random) -> str:
    """A thing that lies elsewhere, or in the hand."""
    place = _here(play, rng)
    return place and f"take {_name(play, _any_thing(play, rng))} from {_name(play, place)}"


def _hands_full(play: FastGame, rng: random.Random) -> str:
    place = _here(play, rng)
    return _take(play, rng, place) if place and play.state.held else ""


def _hands_empty(play: FastGame, rng: random.Random) -> str:
    """Something is done with a thing that is not in the hand."""
    place, thing = _here(play, rng), _name(play, _any_thing(play, rng))
    if not place:
        return ""
    there = _name(play, place)
    verb = rng.choice(("clean", "heat", "cool"))
    return rng.choice((f"move {thing} to {there}", f"{verb} {thing} with {there}"))


def _closed_door(play: FastGame, rng: random.Random) -> str:
    closed = [place for place in play.here() if not play.state.accessible(place)]
    if not closed:
        return ""
    place = rng.choice(closed)
    return rng.choice((_take(play, rng, place), _move(play, place)))


def _already(play: FastGame, rng: random.Random) -> str:
    """Go where one stands, open what is open, close what is closed."""
    place = _here(play, rng)
    return place and f"{rng.choice(('go to', 'open', 'close'))} {_name(play, place)}"


def _unfit(play: FastGame, rng: random.Random) -> str:
    """The thing in hand, with a place that does not take it or does nothing to it."""
    place = _here(play, rng)
    return place and rng.choice((_move(play, place), _change(play, place)))


def _no_use(play: FastGame, rng: random.Random) -> str:
    return f"use {_name(play, _any_thing(play, rng))}"


_KINDS: Sequence[Callable[[FastGame, random.Random], str]] = (
    _far_away,
    _not_there,
    _hands_full,
    _hands_empty,
    _closed_door,
    _already,
    _unfit,
    _no_use,
)


def _name(play: FastGame, entity: str) -> str:
    return play.problem.names[entity]


def _here(play: FastGame, rng: random.Random) -> str:
    here = play.here()
    return rng.choice(here) if here else ""


def _any_thing(play: FastGame, rng: random.Random) -> str:
    return rng.choice(tuple(play.problem.object_types))


def _take(play: FastGame, rng: random.Random, place: str) -> str:
    """Take what is really there, or what might be."""
    there = sorted(play.state.contents[place])
    thing = rng.choice(there) if there else _any_thing(play, rng)
    return f"take {_name(play, thing)} from {_name(play, place)}"


def _move(play: FastGame, place: str) -> str:
    held = play.state.held
    return f"move {_name(play, held)} to {_name(play, place)}" if held else ""


def _change(play: FastGame, place: str) -> str:
    held = play.state.held
    verbs = {"microwavetype": "heat", "fridgetype": "cool"}
    verb = verbs.get(play.problem.receptacle_types[place], "clean")
    return f"{verb} {_name(play, held)} with {_name(play, place)}" if held else ""


def slip(play: FastGame, goal: Goal, intended: str, rng: random.Random) -> str:
    """A near miss of an intended command: what a half-trained agent writes in its place.

    Many slips are accepted and lead astray; a dream must know what they do, and that they are not
    what the task wants.
    """
    here = _here(play, rng)
    place = _name(play, here or rng.choice(play.receptacles))
    held = _name(play, play.state.held) if play.state.held else ""
    wanted = f"{goal.object_type} {rng.randint(1, 3)}"
    verb = rng.choice(("clean", "heat", "cool"))
    options = [
        _swapped(play, intended, rng),
        f"take {wanted} from {place}",
        f"{verb} {held or wanted} with {place}",
        f"move {held or wanted} to {place}",
    ]
    if goal.lamp:
        options.append(f"use {goal.target_type} 1")
    return rng.choice(options)


def _swapped(play: FastGame, command: str, rng: random.Random) -> str:
    """One of the command's names exchanged for another of its sort: a place, or a thing."""
    names = [name for name in play.ids if re.search(rf"\b{name}\b", command)]
    if not names:
        return command
    name = rng.choice(names)
    problem = play.problem
    sort = problem.receptacle_types if play.ids[name] in problem.receptacle_types else None
    others = list(sort or problem.object_types)
    return re.sub(rf"\b{name}\b", _name(play, rng.choice(others)), command)


def misreading(goal: Goal, play: FastGame, rng: random.Random) -> str:
    """The instruction as somebody might misread it: another state, thing or place, or no state."""
    kinds = {name.rpartition(" ")[0] for name in play.ids}
    places = sorted({kind_of_id(play, place) for place in play.receptacles})
    things = sorted(kinds - set(places))
    state, thing, target = goal.state, goal.object_type, goal.target_type
    what = rng.choice(("state", "state", "thing", "place") if not goal.lamp else ("thing", "place"))
    if what == "state":
        state = rng.choice([s for s in ("", "hot", "cool", "clean") if s != state])
    elif what == "thing":
        thing = rng.choice(things)
    if what == "place" or goal.lamp:
        target = rng.choice(places)
    return " ".join(f"put a {state} {thing} in {target}".split())


def kind_of_id(play: FastGame, place: str) -> str:
    return _name(play, place).rpartition(" ")[0]
