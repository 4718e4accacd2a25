"""Reads an ALFWorld problem (PDDL text) into a frozen `Problem`: one house and its goal.

PDDL is case-insensitive: everything here is lower case, as in the engine's own facts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dreamgym.types import DreamGymError

SExpr = str | list["SExpr"]

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")

_ABILITIES = ("cleanable", "heatable", "coolable", "sliceable", "toggleable", "pickupable")
_OTHER = ("openable", "opened", "istoggled", "ison", "moveable", "isreceptacleobject")
_STATES = ("isclean", "ishot", "iscool", "issliced")

PROPERTIES = frozenset((*_ABILITIES, *_STATES, *_OTHER))
"""Predicates of one entity."""

STATE_PROPERTIES = frozenset(_STATES)
"""What can be made true of an object, and what a goal can ask for."""

_PAIRS = frozenset(
    (
        "receptacletype",
        "receptacleatlocation",
        "objecttype",
        "objectatlocation",
        "inreceptacle",
        "inreceptacleobject",
        "cancontain",
        "atlocation",
    )
)
_IGNORED = frozenset(("wasinreceptacle", "checked", "examined", "full", "isreceptacleobjectfull"))


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold at the end: things put somewhere, or one thing held in the light of a lamp."""

    object_type: str
    receptacle_type: str = ""  # empty where the object is to be held
    lamp_type: str = ""  # empty where no light is asked for
    count: int = 1  # how many such objects, in one and the same receptacle
    properties: frozenset[str] = frozenset()  # what each of them must be


@dataclass(frozen=True, slots=True)
class Problem:
    """One house at its start. Ids are PDDL names; `names` has what the player reads."""

    start: str  # the agent's location
    goal: Goal
    names: Mapping[str, str]  # id -> "shelf 1", for every object and receptacle
    object_types: Mapping[str, str]
    receptacle_types: Mapping[str, str]
    receptacle_locations: Mapping[str, str]
    object_locations: Mapping[str, frozenset[str]]  # location -> objects
    contents: Mapping[str, frozenset[str]]  # receptacle -> objects; some stand in two at once
    inner_objects: Mapping[str, frozenset[str]]  # a bowl -> what lies in it (never changes)
    can_contain: frozenset[tuple[str, str]]  # (receptacle type, object type)
    properties: Mapping[str, frozenset[str]]  # one of PROPERTIES -> ids

    def has(self, prop: str, entity: str) -> bool:
        """Whether the property holds at the start."""
        return entity in self.properties[prop]


def entity_names(ids: Iterable[str]) -> dict[str, str]:
    """Number entities of one class from the last id down: the first id gets the highest number."""
    ids = sorted(set(ids))
    left = Counter(_class_name(entity) for entity in ids if "_bar_" in entity)
    names = {}
    for entity in ids:
        if "_bar_" not in entity:  # a class without a place in the room: it has no number
            names[entity] = f"{entity} "
            continue
        name = _class_name(entity)
        names[entity] = f"{name} {left[name]}"
        left[name] -= 1
    return names


def _class_name(entity: str) -> str:
    name = entity.split("_bar_", 1)[0]
    return f"{name}basin" if "basin" in entity else name


def parse_problem(text: str) -> Problem:
    """Read a PDDL problem; raises DreamGymError where it is not one of ALFWorld's."""
    sections = _sections(text)
    facts = list(_facts(sections["init"]))
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    properties: dict[str, set[str]] = defaultdict(set)
    for predicate, *arguments in facts:
        if predicate in PROPERTIES and len(arguments) == 1:
            properties[predicate].add(arguments[0])
        elif predicate in _PAIRS and len(arguments) == 2:
            pairs[predicate].append((arguments[0], arguments[1]))
        elif predicate not in _IGNORED:
            raise _error(f"fact ({predicate} {' '.join(arguments)}) is unknown")
    starts = [location for _, location in pairs["atlocation"]]
    if len(starts) != 1:
        raise _error(f"it places {len(starts)} agents, not one")
    entities = {argument for fact in facts for argument in fact[1:]}
    problem = Problem(
        start=starts[0],
        goal=parse_goal(sections["goal"]),
        names=entity_names(entities),
        object_types=_single("objecttype", pairs),
        receptacle_types=_single("receptacletype", pairs),
        receptacle_locations=_single("receptacleatlocation", pairs),
        object_locations=_grouped(pairs["objectatlocation"]),
        contents=_grouped(pairs["inreceptacle"]),
        inner_objects=_grouped(pairs["inreceptacleobject"]),
        can_contain=frozenset(pairs["cancontain"]),
        properties={prop: frozenset(properties[prop]) for prop in PROPERTIES},
    )
    _check(problem)
    return problem


def parse_goal(expression: list[SExpr]) -> Goal:
    """Recognise the goals of the six task types (and their sliced variants)."""
    types: dict[str, str] = {}  # variable -> type, for objects
    receptacle_types: set[str] = set()
    properties: dict[str, set[str]] = defaultdict(set)
    placed: list[str] = []
    held: list[str] = []
    for predicate, *arguments in _goal_atoms(expression):
        if predicate == "objecttype":
            types[arguments[0]] = arguments[1]
        elif predicate == "receptacletype":
            receptacle_types.add(arguments[1])
        elif predicate == "inreceptacle":
            placed.append(arguments[0])
        elif predicate == "holds":
            held.append(arguments[1])
        elif predicate in PROPERTIES:
            properties[arguments[0]].add(predicate)
        elif predicate not in ("receptacleatlocation", "atlocation", "="):
            raise _error(f"its goal asks for ({predicate} ...), which no task type does")
    lamps = [variable for variable in types if "istoggled" in properties[variable]]
    wanted = [variable for variable in types if variable not in lamps]
    if not wanted or len({types[variable] for variable in wanted}) != 1 or len(lamps) > 1:
        raise _error("its goal does not name one type of object")
    asked = {frozenset(properties[v] & STATE_PROPERTIES) for v in wanted}
    if len(asked) != 1 or (held != wanted if lamps else sorted(placed) != sorted(wanted)):
        raise _error("its goal is none of the six task types'")
    if not lamps and len(receptacle_types) != 1:
        raise _error("its goal does not name one type of receptacle")
    return Goal(
        object_type=types[wanted[0]],
        receptacle_type="" if lamps else receptacle_types.pop(),
        lamp_type=types[lamps[0]] if lamps else "",
        count=len(wanted),
        properties=asked.pop(),
    )


def _goal_atoms(expression: list[SExpr]) -> Iterator[list[str]]:
    """The atoms inside and/exists/not, in order."""
    head = expression[0] if expression else ""
    if head in ("and", "not", ":goal"):
        for part in expression[1:]:
            if isinstance(part, list):
                yield from _goal_atoms(part)
    elif head == "exists":
        body = expression[-1]
        if isinstance(body, list):
            yield from _goal_atoms(body)
    elif isinstance(head, str) and head not in ("or", "forall", "imply"):
        yield [part for part in expression if isinstance(part, str)]
    else:
        raise _error(f"its goal uses {head!r}")


def _sections(text: str) -> dict[str, list[SExpr]]:
    """`(define (problem x) (:init ...) (:goal ...))` by the names of its parts."""
    tree = _parse(_COMMENT.sub("", text).lower())
    if not tree or tree[0] != "define":
        raise _error("it does not begin with (define ...)")
    found = {
        str(part[0]).removeprefix(":"): part for part in tree[1:] if isinstance(part, list) and part
    }
    for name in ("init", "goal"):
        if name not in found:
            raise _error(f"it has no (:{name} ...)")
    return found


def _parse(text: str) -> list[SExpr]:
    stack: list[list[SExpr]] = [[]]
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise _error("it closes more brackets than it opens")
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise _error("its brackets do not close: the text is cut off or holds something else")
    return stack[0][0]


def _facts(init: list[SExpr]) -> Iterator[list[str]]:
    for fact in init[1:]:
        if not isinstance(fact, list) or not fact:
            raise _error(f"its :init holds {fact!r}, which is no fact")
        words = [word for word in fact if isinstance(word, str)]
        if words[:1] == ["="]:  # distances and costs: nothing reads them
            continue
        if len(words) != len(fact):
            raise _error(f"its :init holds the nested fact {fact!r}")
        yield words


def _single(predicate: str, pairs: Mapping[str, list[tuple[str, str]]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for entity, value in pairs[predicate]:
        if values.setdefault(entity, value) != value:
            raise _error(f"{entity} has two values of {predicate}")
    return values


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    groups: dict[str, set[str]] = defaultdict(set)
    for member, group in pairs:
        groups[group].add(member)
    return {group: frozenset(members) for group, members in groups.items()}


def _check(problem: Problem) -> None:
    for receptacle in problem.receptacle_types.keys() ^ problem.receptacle_locations.keys():
        raise _error(f"receptacle {receptacle} lacks its type or its location")
    for receptacle, objects in problem.contents.items():
        if receptacle not in problem.receptacle_types:
            raise _error(f"something lies in {receptacle}, which is no receptacle")
        for entity in objects - problem.object_types.keys():
            raise _error(f"object {entity} has no type")


def _error(reason: str) -> DreamGymError:
    return DreamGymError(
        f"not a playable ALFWorld problem: {reason}. "
        "Give the pddl_problem text of a solvable game.tw-pddl."
    )
