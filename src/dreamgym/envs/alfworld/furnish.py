"""Furnishes rooms by chance and weight, and finds tasks that make sense in them."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from dreamgym.envs.alfworld import rooms
from dreamgym.envs.alfworld.games import TASK_TYPES
from dreamgym.envs.alfworld.problem_text import Aim, Place, Room, Thing
from dreamgym.types import DreamGymError

_STATE_OF = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "hot",
    "pick_cool_then_place_in_recep": "cool",
}
_SINGLE = frozenset({"CoffeeMachine", "HandTowelHolder", "ToiletPaperHanger", "TowelHolder"})
_NO_TARGET = frozenset({"SinkBasin"})  # no official task ends there
_COPIES = (1, 2, 3), (6, 3, 1)  # how many of one kind lie about, and how usual that is
_MAX_COPIES = 3
_SPARE_SHARE = 0.3  # tasks whose thing lies about once more
_LAMP_SHARE = 0.35  # rooms that have a lamp without anybody asking for it
_AXES = ((-3.5, 3.5), (0.0, 2.0), (-3.5, 3.5))  # metres, y upwards


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """How large the rooms are and what is wished in them (official: 6-54 places, 17-73 things)."""

    receptacles: tuple[int, int] = (6, 10)
    things: tuple[int, int] = (10, 18)
    rooms: tuple[str, ...] = tuple(rooms.ROOMS)
    task_types: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(TASK_TYPES, 1.0))
    """Weights; a type that is absent never comes."""
    shared_locations: float = 0.0
    """The chance that a place stands where another one stands. 0.19 of the official places do."""

    def __post_init__(self) -> None:
        _check_range("receptacles", self.receptacles, least=4)
        _check_range("things", self.things, least=3)
        _check_names("rooms", self.rooms, tuple(rooms.ROOMS))
        _check_names("task_types", tuple(self.task_types), TASK_TYPES)
        if not 0.0 <= self.shared_locations <= 1.0:
            raise DreamGymError(f"shared_locations is {self.shared_locations}: give a share of 1.")
        for task_type, weight in self.task_types.items():
            if not 0 < weight < float("inf"):
                raise DreamGymError(f"the weight of {task_type} is {weight}: give one above 0.")
            if not set(rooms.TASK_ROOMS[task_type]) & set(self.rooms):
                raise DreamGymError(
                    f"no room of {', '.join(self.rooms)} can hold a {task_type} task. "
                    f"Add one of {', '.join(rooms.TASK_ROOMS[task_type])} or drop the task type."
                )


@dataclass(frozen=True, slots=True)
class Draft:
    """A room by its kinds only, and what is to be done in it; `stand` makes a `Room` of it."""

    kind: str
    places: tuple[str, ...]
    things: tuple[tuple[str, int], ...]  # (kind, index of the place where it lies)
    aims: tuple[Aim, ...]

    def digest(self) -> str:
        """A hash of what the room is: its places and what they hold, whatever the order."""
        contents: list[list[str]] = [[] for _ in self.places]
        for thing, index in self.things:
            contents[index].append(thing)
        held = sorted(
            f"{place}: {' '.join(sorted(things))}"
            for place, things in zip(self.places, contents, strict=True)
        )
        return hashlib.sha256("\n".join([self.kind, *held]).encode()).hexdigest()


def draw_room(rng: random.Random, spec: RoomSpec, num_tasks: int) -> Draft | None:
    """One room and different things to do in it; None where the dice do not fit together."""
    first = _choose(rng, spec.task_types)
    kind_name = rng.choice([room for room in spec.rooms if room in rooms.TASK_ROOMS[first]])
    kind = rooms.ROOMS[kind_name]
    possible = {t: w for t, w in spec.task_types.items() if kind_name in rooms.TASK_ROOMS[t]}
    places = _draw_place_kinds(rng, kind, spec.receptacles)
    aims: list[Aim] = []
    for number in range(num_tasks):
        task_type = first if number == 0 else _choose(rng, possible)
        aim = _draw_aim(rng, task_type, kind, places)
        if aim is None or aim in aims:
            return None
        aims.append(aim)
    things = _draw_things(rng, kind, places, aims, rng.randint(*spec.things))
    if things is None:
        return None
    return Draft(kind_name, tuple(places), tuple(things), tuple(aims))


def stand(rng: random.Random, draft: Draft, shared_locations: float) -> Room:
    """Give everything an id with coordinates, which is how ALFWorld tells things apart."""
    ids: set[str] = set()
    locations: list[str] = []
    places = []
    for name in draft.places:
        if locations and rng.random() < shared_locations:
            location = rng.choice(locations)
        else:
            location = _unused(rng, locations, _location)
        locations.append(location)
        basin = name.endswith("Basin")  # the basin of a sink is named after the sink
        prefix, suffix = (name.removesuffix("Basin"), f"_bar_{name}") if basin else (name, "")
        places.append(Place(name, _new_id(rng, ids, prefix, suffix), location))
    things = tuple(Thing(name, _new_id(rng, ids, name, ""), index) for name, index in draft.things)
    return Room(draft.kind, tuple(places), things, _unused(rng, locations, _location))


def _draw_place_kinds(rng: random.Random, kind: rooms.RoomKind, size: tuple[int, int]) -> list[str]:
    chosen = list(kind.required)
    left = {name: most for name, (_, most) in kind.optional.items()}
    for _ in range(rng.randint(*size) - len(chosen)):
        weights = {name: kind.optional[name][0] for name, most in left.items() if most > 0}
        if not weights:
            break
        name = _choose(rng, weights)
        left[name] -= 1
        chosen.append(name)
    return chosen


def _draw_aim(
    rng: random.Random, task_type: str, kind: rooms.RoomKind, place_kinds: list[str]
) -> Aim | None:
    targets: dict[str, list[str]] = {}
    for thing in kind.things:
        homes = [place for place in rooms.USUAL[thing] if place in place_kinds]
        if thing not in rooms.FIXED and homes:
            fitting = list(_targets(task_type, thing, homes, place_kinds))
            if fitting:
                targets[thing] = fitting
    if not targets:
        return None
    thing = rng.choice(list(targets))
    return Aim(task_type, thing, rng.choice(targets[thing]))


def _targets(task_type: str, thing: str, homes: list[str], place_kinds: list[str]) -> Iterator[str]:
    """Where a task of this type may want the thing: possible, and not where it is at the start."""
    if task_type == "look_at_obj_in_light":
        if any(place in place_kinds for place in rooms.USUAL[rooms.LAMP]):
            yield rooms.LAMP
        return
    tool = ""
    if task_type in _STATE_OF:
        tool, able = rooms.CHANGES[_STATE_OF[task_type]]
        if thing not in able or tool not in place_kinds:
            return
    for place in dict.fromkeys(place_kinds):
        if thing not in rooms.HOLDS[place] or place in _NO_TARGET or place == tool:
            continue
        if task_type == "pick_two_obj_and_place" and place in _SINGLE:
            continue
        if any(home != place for home in homes):
            yield place


def _draw_things(
    rng: random.Random, kind: rooms.RoomKind, place_kinds: list[str], aims: list[Aim], total: int
) -> list[tuple[str, int]] | None:
    """Things and the index of the place where each lies; None where a wanted one finds no place."""
    banned = {aim.thing: {a.target for a in aims if a.thing == aim.thing} for aim in aims}
    needed = {name for aim in aims for name in (aim.thing, rooms.LAMP if aim.lamp else aim.thing)}
    spots = {name: [i for i, k in enumerate(place_kinds) if k == name] for name in place_kinds}
    placed: list[tuple[str, int]] = []
    for thing, number in _first_things(rng, kind, aims).items():
        for _ in range(number):
            spot = _spot(rng, thing, spots, banned.get(thing, set()))
            if spot is not None:
                placed.append((thing, spot))
            elif thing in needed:
                return None
    counts = Counter(thing for thing, _ in placed)
    left = {thing: w for thing, w in kind.things.items() if counts[thing] < _most(thing)}
    while len(placed) < total and left:
        thing = _choose(rng, left)
        copies = min(rng.choices(*_COPIES)[0], _most(thing) - counts[thing], total - len(placed))
        counts[thing] += copies  # also where one finds no place: it is not asked for for ever
        if counts[thing] == _most(thing):
            del left[thing]
        found = [_spot(rng, thing, spots, banned.get(thing, set())) for _ in range(copies)]
        placed += [(thing, spot) for spot in found if spot is not None]
    return placed


def _first_things(rng: random.Random, kind: rooms.RoomKind, aims: list[Aim]) -> Counter[str]:
    """What the tasks need, a spare one now and then, and perhaps a lamp."""
    first: Counter[str] = Counter()
    for aim in aims:
        spare = rng.random() < _SPARE_SHARE
        first[aim.thing] = max(first[aim.thing], aim.count + spare)
    if any(aim.lamp for aim in aims) or (kind.lamp and rng.random() < _LAMP_SHARE):
        first[rooms.LAMP] = 1
    return first


def _most(thing: str) -> int:
    return 1 if thing in rooms.FIXED else _MAX_COPIES


def _spot(
    rng: random.Random, thing: str, spots: Mapping[str, list[int]], banned: set[str]
) -> int | None:
    """The index of a usual place for the thing; the kind is drawn first, so ten drawers are one."""
    usual = rooms.USUAL[thing].items()
    weights = {kind: w for kind, w in usual if kind in spots and kind not in banned}
    return rng.choice(spots[_choose(rng, weights)]) if weights else None


def _new_id(rng: random.Random, ids: set[str], prefix: str, suffix: str) -> str:
    name = _unused(rng, ids, lambda rng: prefix + _coordinates(rng) + suffix)
    ids.add(name)
    return name


def _unused(rng: random.Random, used: Collection[str], make: Callable[[random.Random], str]) -> str:
    while (name := make(rng)) in used:
        pass
    return name


def _coordinates(rng: random.Random) -> str:
    return "".join(f"_bar__{_decimal(rng.uniform(*axis))}" for axis in _AXES)


def _decimal(value: float) -> str:
    whole, _, cents = f"{abs(value):05.2f}".partition(".")
    return f"{'minus' if value < 0 else 'plus'}_{whole}_dot_{cents}"


def _location(rng: random.Random) -> str:
    x, z = (str(rng.randint(-9, 9)).replace("-", "_minus_") for _ in range(2))
    return f"loc_bar_{x}_bar_{z}_bar_{rng.randrange(4)}_bar_{rng.choice((30, 45, 60))}"


def _choose(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _check_range(name: str, size: tuple[int, int], least: int) -> None:
    low, high = size
    if not least <= low <= high:
        raise DreamGymError(
            f"{name} is {size}: give (fewest, most), with at least {least} and in this order."
        )


def _check_names(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    unknown = [entry for entry in given if entry not in known]
    if unknown or not given:
        raise DreamGymError(
            f"{name} holds {', '.join(unknown) or 'nothing'}: use some of {', '.join(known)}."
        )
