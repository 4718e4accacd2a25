"""Writes a made room and its goal as PDDL text, laid out as the official games' problems are.

The text is the only thing the two back ends see of a generated game, so that neither can favour it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dreamgym.envs.alfworld import rooms

_PROPERTIES = (  # in the order of the official files; they stand after the agent's location
    ("cleanable", rooms.CLEANABLE),
    ("heatable", rooms.HEATABLE),
    ("coolable", rooms.COOLABLE),
    ("toggleable", frozenset({rooms.LAMP})),
    ("sliceable", rooms.SLICEABLE),
)
_STATES = {  # task type -> what the object must be able to become, and what it must have become
    "pick_clean_then_place_in_recep": ("cleanable", "isClean"),
    "pick_heat_then_place_in_recep": ("heatable", "isHot"),
    "pick_cool_then_place_in_recep": ("coolable", "isCool"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A receptacle of the room; several may share a location."""

    kind: str
    id: str
    location: str


@dataclass(frozen=True, slots=True)
class Thing:
    """An object, and the index of the place where it lies at the start."""

    kind: str
    id: str
    place: int


@dataclass(frozen=True, slots=True)
class Room:
    """A furnished room before anybody wishes anything in it."""

    kind: str
    places: tuple[Place, ...]
    things: tuple[Thing, ...]
    start: str  # the agent's location, where no place is


@dataclass(frozen=True, slots=True)
class Aim:
    """A task by its types: what is to be done with which object, and where."""

    task_type: str
    thing: str
    target: str  # a receptacle's type, or the lamp's

    @property
    def count(self) -> int:
        return 2 if self.task_type == "pick_two_obj_and_place" else 1

    @property
    def lamp(self) -> bool:
        return self.task_type == "look_at_obj_in_light"


def write_problem(name: str, room: Room, aim: Aim) -> str:
    """The PDDL problem of one game; `name` may hold letters, digits, `_` and `-`."""
    objects = ["agent1 - agent", *_declarations(room, aim)]
    facts = [*_type_facts(room), *_state_facts(room), *_position_facts(room)]
    return (
        f"\n(define (problem plan_{name})\n(:domain alfred)\n(:objects\n"
        + _block(objects)
        + "        )\n    \n\n(:init\n\n\n"
        + _block(f"({fact})" for fact in facts)
        + "        )\n    \n\n"
        + _goal(aim)
    )


def _block(lines: Iterable[str]) -> str:
    return "".join(f"        {line}\n" for line in lines)


def _declarations(room: Room, aim: Aim) -> list[str]:
    things = {thing.kind for thing in room.things} | {aim.thing}
    places = {place.kind for place in room.places}
    locations = list(dict.fromkeys([*(place.location for place in room.places), room.start]))
    return [
        *(f"{kind}Type - otype" for kind in sorted(things)),
        *(f"{kind}Type - rtype" for kind in sorted(places)),
        *(f"{thing.id} - object" for thing in room.things),
        *(f"{place.id} - receptacle" for place in room.places),
        *(f"{location} - location" for location in locations),
    ]


def _type_facts(room: Room) -> list[str]:
    kinds = sorted({thing.kind for thing in room.things})
    return [
        *(f"receptacleType {place.id} {place.kind}Type" for place in room.places),
        *(f"objectType {thing.id} {thing.kind}Type" for thing in room.things),
        *(
            f"canContain {place}Type {kind}Type"
            for place in sorted({place.kind for place in room.places})
            for kind in kinds
            if kind in rooms.HOLDS[place]
        ),
    ]


def _state_facts(room: Room) -> list[str]:
    movable = [thing for thing in room.things if thing.kind not in rooms.FIXED]
    facts = [f"pickupable {thing.id}" for thing in movable]
    facts += _having("isReceptacleObject", rooms.VESSELS, room.things)
    facts += [f"openable {place.id}" for place in room.places if place.kind in rooms.OPENABLE]
    facts.append(f"atLocation agent1 {room.start}")
    for predicate, kinds in _PROPERTIES:
        facts += _having(predicate, kinds, room.things)
    return facts


def _having(predicate: str, kinds: frozenset[str], things: Sequence[Thing]) -> list[str]:
    return [f"{predicate} {thing.id}" for thing in things if thing.kind in kinds]


def _position_facts(room: Room) -> list[str]:
    return [
        *(f"inReceptacle {thing.id} {room.places[thing.place].id}" for thing in room.things),
        *(f"receptacleAtLocation {place.id} {place.location}" for place in room.places),
        *(
            f"objectAtLocation {thing.id} {room.places[thing.place].location}"
            for thing in room.things
        ),
    ]


def _goal(aim: Aim) -> str:
    body = _lamp_goal(aim) if aim.lamp else _two_goal(aim) if aim.count == 2 else _put_goal(aim)
    return f"        (:goal\n            (and\n{_indent(body)}            )\n        )\n    )\n    "


def _indent(body: str) -> str:
    return "".join(f"                {line}\n" for line in body.splitlines())


def _lamp_goal(aim: Aim) -> str:
    return f"""\
(exists (?ot - object ?r - receptacle ?a - agent ?l - location)
    (and
        (objectType ?ot {aim.target}Type)
        (toggleable ?ot)
        (isToggled ?ot)
        (receptacleAtLocation ?r ?l)
        (atLocation ?a ?l)
        (inReceptacle ?ot ?r)
    )
)
(exists (?o - object ?a - agent)
    (and
        (objectType ?o {aim.thing}Type)
        (holds ?a ?o)
    )
)"""


def _put_goal(aim: Aim) -> str:
    asked = [f"(objectType ?o {aim.thing}Type)", f"(receptacleType ?r {aim.target}Type)"]
    if aim.task_type in _STATES:
        able, become = _STATES[aim.task_type]
        asked = [f"({able} ?o)", *asked, f"({become} ?o)"]
    atoms = "\n".join(f"            {atom}" for atom in [*asked, "(inReceptacle ?o ?r)"])
    return f"""\
(exists (?r - receptacle)
    (exists (?o - object)
        (and
{atoms}
        )
    )
)"""


def _two_goal(aim: Aim) -> str:
    return f"""\
(exists (?r - receptacle)
    (exists (?o1 - object)
        (and
            (objectType ?o1 {aim.thing}Type)
            (receptacleType ?r {aim.target}Type)
            (inReceptacle ?o1 ?r)
            (exists (?o2 - object)
                (and
                    (not (= ?o1 ?o2))
                    (objectType ?o2 {aim.thing}Type)
                    (receptacleType ?r {aim.target}Type)
                    (inReceptacle ?o2 ?r)
                )
            )
        )
    )
)"""
