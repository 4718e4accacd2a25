"""What a household's facts rule out: actions that must fail, answers that cannot be true."""

from __future__ import annotations

from dreamgym.envs.alfworld import rooms
from dreamgym.envs.alfworld.facts import (
    CLOSED,
    CONTENT,
    ENTITY,
    FACING,
    NOTHING_HAPPENS,
    OPEN,
    Household,
    kind_of,
)

_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


def refused(house: Household, action: str) -> bool:
    """Whether the picture leaves no doubt that the world answers "Nothing happens."."""
    things = ENTITY.findall(action)
    verb = action.split(" ", 1)[0]
    if not things:
        return False
    thing, place = things[0], things[-1]
    if verb == "go":
        return place in house.facing or place not in house.contents
    if verb in ("open", "close"):
        return place not in house.facing or house.is_open.get(place) is not (verb == "close")
    if verb == "use":
        return house.where(thing) is None
    if verb == "examine":
        return thing not in house.facing and thing != house.held
    if place not in house.facing:
        return verb != "slice"
    shut = house.is_open.get(place) is False
    if verb == "take":
        return house.held is not None or shut or thing not in house.contents.get(place, ())
    if verb == "move":
        return house.held != thing or shut
    return verb in _TOOLS and (house.held != thing or kind_of(place) != _TOOLS[verb])


_FIXED = {name.lower() for name in rooms.FIXED} | {"floorlamp"}


_BEGINS = {
    **{"go": "You arrive at ", "take": "You pick up the ", "move": "You move the "},
    **{verb: f"You {verb} the " for verb in ("open", "close", "clean", "heat", "cool")},
    **{"look": "You are ", "inventory": "You are ", "use": "You turn ", "slice": "You sliced "},
}
"""How the world's answers to accepted actions begin."""


def must_work(house: Household, action: str) -> bool:
    """Whether the picture leaves no doubt that the world accepts the action."""
    things = ENTITY.findall(action)
    verb = action.split(" ", 1)[0]
    if not things:
        return action in ("look", "inventory")
    thing, place = things[0], things[-1]
    if verb == "go":
        return place in house.contents and place not in house.facing
    if verb in ("open", "close"):
        return place in house.facing and house.is_open.get(place) is (verb == "close")
    if verb == "use":
        return kind_of(thing).endswith("lamp") and house.where(thing) is not None
    if verb == "take":
        shut = house.is_open.get(place) is False
        here = place in house.facing and thing in house.contents.get(place, ())
        return here and not shut and house.held is None and kind_of(thing) not in _FIXED
    return False


def contradiction(house: Household, action: str, next_state: str) -> str:
    """What in an answer cannot be true in this picture; empty where nothing is amiss."""
    if next_state.startswith(NOTHING_HAPPENS):
        return f"{action!r} must work here" if must_work(house, action) else ""
    if refused(house, action):
        return f"{action!r} cannot work here"
    verb = action.split(" ", 1)[0]
    if not next_state.startswith(_BEGINS.get(verb, "")):
        return f"no answer to {action!r} begins so"
    told = set(ENTITY.findall(next_state))
    unsaid = [name for name in ENTITY.findall(action) if name not in told]
    if unsaid and verb != "examine":
        return f"the answer to {action!r} says nothing of {unsaid[0]}"
    return _of_place(house, action, next_state) or _of_agent(house, action, next_state)


def _of_place(house: Household, action: str, next_state: str) -> str:
    """A door or a place's contents, against what is known of them."""
    opened, closed = OPEN.search(next_state), CLOSED.search(next_state)
    verb, _, rest = action.partition(" ")
    if verb in ("open", "close") and (opened is not None) != (verb == "open"):
        return f"{rest} is not {'open' if verb == 'open' else 'closed'} after {action!r}"
    for found, now in ((opened, True), (closed, False)):
        if found and verb not in ("open", "close") and house.is_open.get(found[1]) is (not now):
            return f"the door of {found[1]} has moved by itself"
    shown = CONTENT.search(next_state)
    place = (shown[1] or (opened[1] if opened else "")) if shown else ""
    if shown and place in house.contents:
        seen, known = ENTITY.findall(shown[2]), house.contents[place]
        if seen != known:
            odd = [x for x in seen if x not in known] + [x for x in known if x not in seen]
            return f"{place}: {odd[0] if odd else 'its things'} not as they were"
    return ""


def _of_agent(house: Household, action: str, next_state: str) -> str:
    """Where the agent stands and what it carries, against what is known of both."""
    facing = FACING.search(next_state)
    if action == "look" and not set(house.facing) <= set(
        ENTITY.findall(facing[1] if facing else "")
    ):
        return f"you have left {house.facing[0]} by looking"
    if action == "look" and facing and not house.facing:
        return f"you have walked to {facing[1]} by looking"
    if action == "inventory":
        carried = ENTITY.findall(next_state)
        if carried != ([house.held] if house.held else []):
            return f"you carry {house.held or 'nothing'}, not {' '.join(carried) or 'nothing'}"
    return ""
