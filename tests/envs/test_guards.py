"""The guards of household text: silent on whatever the world really says, loud on what it cannot.

`contradiction` is asked with every fact of the house in hand, as a dream asks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from dreamgym.envs.alfworld.facts import (
    NOTHING_HAPPENS,
    agent_fact,
)
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.experience.hidden import HiddenState

TEXT = AlfworldText()
Exchange = tuple[str, str]  # an action and the answer to it


HOUSE = {
    "shelf 1": "On the shelf 1, you see a houseplant 1, a mug 2, and a mug 1.",
    "desk 1": "On the desk 1, you see a desklamp 1, a laptop 1, and a pen 1.",
    "fridge 1": "The fridge 1 is closed. In it, you see a apple 1.",
    "cabinet 1": "The cabinet 1 is open. In it, you see a bowl 1.",
    "sinkbasin 1": "On the sinkbasin 1, you see nothing.",
    "microwave 1": "The microwave 1 is closed. In it, you see nothing.",
    "you": "You are in the middle of a room. You carry nothing.",
}
SHELF = "On the shelf 1, you see a houseplant 1, a mug 2, and a mug 1."
SHELF_WITHOUT = "On the shelf 1, you see a houseplant 1, and a mug 2."
TO_SHELF = ("go to shelf 1", f"You arrive at shelf 1. {SHELF}")
TO_DESK = ("go to desk 1", f"You arrive at desk 1. {HOUSE['desk 1']}")
TO_FRIDGE = ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")
TO_CABINET = (
    "go to cabinet 1",
    "You arrive at cabinet 1. The cabinet 1 is open. In it, you see a bowl 1.",
)
TO_SINK = ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.")
TO_MICROWAVE = ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed.")
TAKE_MUG = ("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")
TAKE_BOWL = ("take bowl 1 from cabinet 1", "You pick up the bowl 1 from the cabinet 1.")
OPEN_FRIDGE = (
    "open fridge 1",
    "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.",
)
CLOSE_CABINET = ("close cabinet 1", "You close the cabinet 1.")
MOVE_MUG = ("move mug 1 to sinkbasin 1", "You move the mug 1 to the sinkbasin 1.")


def live(*told: Exchange) -> Mapping[str, str]:
    """The house after true answers, none of which is a contradiction."""
    hidden = HiddenState(HOUSE)
    for action, answer in told:
        assert TEXT.contradiction(hidden.facts, action, answer) == ""
        hidden.update(TEXT.changes(hidden.facts, action, answer))
    return hidden.facts


@dataclass(frozen=True, slots=True)
class Lie:
    """What happened before, an action, what is said of it and what would be true."""

    lived: Sequence[Exchange]
    action: str
    lie: str
    true: str
    said: str  # by the guard


LIES = {
    "what was taken is still there": Lie(
        (TO_SHELF, TAKE_MUG), "examine shelf 1", SHELF, SHELF_WITHOUT, "shelf 1: mug 1"
    ),
    "what was taken is still there on coming back": Lie(
        (TO_SHELF, TAKE_MUG, TO_DESK),
        *("go to shelf 1", f"You arrive at shelf 1. {SHELF}"),
        *(f"You arrive at shelf 1. {SHELF_WITHOUT}", "shelf 1: mug 1"),
    ),
    "what was put down is not there": Lie(
        (TO_SHELF, TAKE_MUG, TO_SINK, MOVE_MUG),
        *("examine sinkbasin 1", "On the sinkbasin 1, you see nothing."),
        *("On the sinkbasin 1, you see a mug 1.", "sinkbasin 1: mug 1"),
    ),
    "a thing vanished": Lie(
        (TO_SHELF,), "examine shelf 1", SHELF_WITHOUT, SHELF, "shelf 1: mug 1 not as they were"
    ),
    "everything vanished": Lie(
        (TO_SHELF,), "examine shelf 1", "On the shelf 1, you see nothing.", SHELF, "houseplant 1"
    ),
    "a thing appeared": Lie(
        (),
        *(TO_SHELF[0], f"{TO_SHELF[1][:-1]}, and a pen 9.", TO_SHELF[1]),
        "shelf 1: pen 9 not as they were",
    ),
    "a thing appeared behind a door": Lie(
        (TO_FRIDGE,),
        *(OPEN_FRIDGE[0], f"{OPEN_FRIDGE[1][:-1]}, and a egg 1.", OPEN_FRIDGE[1]),
        "fridge 1: egg 1 not as they were",
    ),
    "a thing stands twice": Lie(
        (TO_SHELF,), "examine shelf 1", f"{SHELF[:-1]}, and a mug 1.", SHELF, "its things"
    ),
    "the same things in another order": Lie(
        (TO_SHELF,),
        *("examine shelf 1", "On the shelf 1, you see a mug 1, a mug 2, and a houseplant 1."),
        *(SHELF, "shelf 1: its things not as they were"),
    ),
    "a door opened by itself": Lie(
        (),
        "go to fridge 1",
        "You arrive at fridge 1. The fridge 1 is open. In it, you see a apple 1.",
        *(TO_FRIDGE[1], "the door of fridge 1 has moved by itself"),
    ),
    "a door closed by itself": Lie(
        (),
        *("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed.", TO_CABINET[1]),
        "the door of cabinet 1 has moved by itself",
    ),
    "a door that was opened is closed": Lie(
        (TO_FRIDGE, OPEN_FRIDGE),
        *("examine fridge 1", "The fridge 1 is closed."),
        "The fridge 1 is open. In it, you see a apple 1.",
        "the door of fridge 1 has moved by itself",
    ),
    "a door that was closed is open": Lie(
        (TO_CABINET, CLOSE_CABINET),
        *("examine cabinet 1", "The cabinet 1 is open. In it, you see a bowl 1."),
        *("The cabinet 1 is closed.", "the door of cabinet 1 has moved by itself"),
    ),
    "closing leaves the door open": Lie(
        (TO_CABINET,),
        "close cabinet 1",
        "You close the cabinet 1. The cabinet 1 is open. In it, you see a bowl 1.",
        *(CLOSE_CABINET[1], "cabinet 1 is not closed after"),
    ),
    "opening leaves the door closed": Lie(
        (TO_FRIDGE,),
        *(OPEN_FRIDGE[0], "You open the fridge 1. The fridge 1 is closed.", OPEN_FRIDGE[1]),
        "fridge 1 is not open after",
    ),
    "a take that must work fails": Lie(
        (TO_SHELF,), TAKE_MUG[0], NOTHING_HAPPENS, TAKE_MUG[1], "must work here"
    ),
    "a take out of an open cabinet fails": Lie(
        (TO_CABINET,), TAKE_BOWL[0], NOTHING_HAPPENS, TAKE_BOWL[1], "must work here"
    ),
    "a walk that must work fails": Lie(
        (TO_SHELF,), TO_DESK[0], NOTHING_HAPPENS, TO_DESK[1], "must work here"
    ),
    "an opening that must work fails": Lie(
        (TO_FRIDGE,), OPEN_FRIDGE[0], NOTHING_HAPPENS, OPEN_FRIDGE[1], "must work here"
    ),
    "a closing that must work fails": Lie(
        (TO_CABINET,), CLOSE_CABINET[0], NOTHING_HAPPENS, CLOSE_CABINET[1], "must work here"
    ),
    "a lamp that must work fails": Lie(
        (TO_DESK,),
        *("use desklamp 1", NOTHING_HAPPENS, "You turn on the desklamp 1.", "must work here"),
    ),
    "a look round fails": Lie(
        (TO_DESK,),
        *("look", NOTHING_HAPPENS, "You are facing the desk 1. Next to it, you see nothing."),
        "must work here",
    ),
    "a look into the hand fails": Lie(
        (), "inventory", NOTHING_HAPPENS, "You are not carrying anything.", "must work here"
    ),
    "a take from far away": Lie(
        (TO_DESK,), TAKE_MUG[0], TAKE_MUG[1], NOTHING_HAPPENS, "cannot work here"
    ),
    "a take of what is elsewhere": Lie(
        (TO_SHELF,),
        *("take pen 1 from shelf 1", "You pick up the pen 1 from the shelf 1.", NOTHING_HAPPENS),
        "cannot work here",
    ),
    "a take with the hand full": Lie(
        (TO_SHELF, TAKE_MUG),
        *("take mug 2 from shelf 1", "You pick up the mug 2 from the shelf 1.", NOTHING_HAPPENS),
        "cannot work here",
    ),
    "a take through a closed door": Lie(
        (TO_FRIDGE,),
        *("take apple 1 from fridge 1", "You pick up the apple 1 from the fridge 1."),
        *(NOTHING_HAPPENS, "cannot work here"),
    ),
    "a move with the hand empty": Lie((TO_SINK,), *MOVE_MUG, NOTHING_HAPPENS, "cannot work here"),
    "a walk to where one stands": Lie((TO_SHELF,), *TO_SHELF, NOTHING_HAPPENS, "cannot work here"),
    "a walk to a place that is not": Lie(
        (),
        *("go to safe 1", "You arrive at safe 1. The safe 1 is closed.", NOTHING_HAPPENS),
        "cannot work here",
    ),
    "a door opened twice": Lie(
        (TO_FRIDGE, OPEN_FRIDGE), *OPEN_FRIDGE, NOTHING_HAPPENS, "cannot work here"
    ),
    "a heating in the fridge": Lie(
        (TO_SHELF, TAKE_MUG, TO_FRIDGE),
        *("heat mug 1 with fridge 1", "You heat the mug 1 using the fridge 1.", NOTHING_HAPPENS),
        "cannot work here",
    ),
    "a cooling of what is not in the hand": Lie(
        (TO_FRIDGE,),
        *("cool mug 1 with fridge 1", "You cool the mug 1 using the fridge 1.", NOTHING_HAPPENS),
        "cannot work here",
    ),
    "heating answered by cleaning": Lie(
        (TO_SHELF, TAKE_MUG, TO_MICROWAVE),
        "heat mug 1 with microwave 1",
        "You clean the mug 1 using the microwave 1.",
        *("You heat the mug 1 using the microwave 1.", "no answer to 'heat"),
    ),
    "walking answered by opening": Lie(
        (), TO_FRIDGE[0], OPEN_FRIDGE[1], TO_FRIDGE[1], "no answer to 'go to fridge 1'"
    ),
    "taking answered by another thing": Lie(
        (TO_SHELF,),
        *(TAKE_MUG[0], "You pick up the mug 2 from the shelf 1.", TAKE_MUG[1]),
        "says nothing of mug 1",
    ),
    "walking to one place and arriving at another": Lie(
        (), TO_SHELF[0], TO_DESK[1], TO_SHELF[1], "says nothing of shelf 1"
    ),
    "another thing in the hand": Lie(
        (TO_SHELF, TAKE_MUG),
        *("inventory", "You are carrying: a mug 2.", "You are carrying: a mug 1."),
        "you carry mug 1, not mug 2",
    ),
    "nothing in the hand that took something": Lie(
        (TO_SHELF, TAKE_MUG),
        *("inventory", "You are not carrying anything.", "You are carrying: a mug 1."),
        "you carry mug 1, not nothing",
    ),
    "something in the hand that put it down": Lie(
        (TO_SHELF, TAKE_MUG, TO_SINK, MOVE_MUG),
        *("inventory", "You are carrying: a mug 1.", "You are not carrying anything."),
        "you carry nothing, not mug 1",
    ),
    "a look that walks": Lie(
        (),
        *("look", "You are facing the desk 1. Next to it, you see nothing."),
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "you have walked to desk 1",
    ),
    "a look that walks away": Lie(
        (TO_SHELF,),
        "look",
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        *("You are facing the shelf 1. Next to it, you see nothing.", "you have left shelf 1"),
    ),
    "a look from another place": Lie(
        (TO_SHELF,),
        *("look", "You are facing the desk 1. Next to it, you see nothing."),
        "You are facing the shelf 1. Next to it, you see nothing.",
        "you have left shelf 1",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_an_answer_that_cannot_be_true_is_a_contradiction_and_the_true_one_is_none(
    name: str,
) -> None:
    lie = LIES[name]
    facts = live(*lie.lived)
    assert lie.said in TEXT.contradiction(facts, lie.action, lie.lie)
    assert TEXT.contradiction(facts, lie.action, lie.true) == ""


def facts_after_looking(answer: str, facts: Mapping[str, str]) -> Mapping[str, str]:
    hidden = HiddenState(facts)
    hidden.update(TEXT.changes(facts, "look", answer))
    return hidden.facts


def test_a_look_may_tell_of_a_neighbour_and_may_not_lose_it_again() -> None:
    both = "You are facing the desk 1, and shelf 1. Next to it, you see nothing."
    one = "You are facing the shelf 1. Next to it, you see nothing."
    facts = live(TO_SHELF)
    assert TEXT.contradiction(facts, "look", both) == ""
    facts = facts_after_looking(both, facts)
    assert TEXT.contradiction(facts, "look", one) == "you have left desk 1 by looking"
    assert TEXT.contradiction(facts, "look", both) == ""


@pytest.mark.parametrize(
    ("lived", "action", "works"),
    [
        ((TO_SHELF, TAKE_MUG, TO_SINK), *MOVE_MUG),  # a sinkbasin may not take it
        (
            (TO_SHELF, TAKE_MUG, TO_CABINET),
            *("move mug 1 to cabinet 1", "You move the mug 1 to the cabinet 1."),
        ),
        (
            (TO_SHELF, TAKE_MUG, TO_MICROWAVE),
            *("heat mug 1 with microwave 1", "You heat the mug 1 using the microwave 1."),
        ),
        (
            (TO_SHELF, TAKE_MUG, TO_FRIDGE),
            *("cool mug 1 with fridge 1", "You cool the mug 1 using the fridge 1."),
        ),
        (
            (TO_SHELF, TAKE_MUG, TO_SINK),
            *("clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1."),
        ),
        (
            (TO_SHELF,),
            *("take houseplant 1 from shelf 1", "You pick up the houseplant 1 from the shelf 1."),
        ),
        ((TO_DESK,), "use laptop 1", "You turn on the laptop 1."),
        ((TO_SHELF, TAKE_MUG), "examine mug 1", "There's nothing special about mug 1."),
        (
            (TO_FRIDGE, OPEN_FRIDGE),
            *("slice apple 1 with knife 1", "You sliced the apple 1 with the knife 1."),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and not value.startswith("You") else "",
)
def test_where_the_facts_leave_a_doubt_both_answers_pass(
    lived: Sequence[Exchange], action: str, works: str
) -> None:
    facts = live(*lived)
    assert TEXT.contradiction(facts, action, works) == ""
    assert TEXT.contradiction(facts, action, NOTHING_HAPPENS) == ""


@pytest.mark.parametrize(
    "action", ["go shelf 1", "open the fridge 1", "close fridge", "use the desklamp 1", "wait"]
)
def test_what_is_no_action_must_not_work(action: str) -> None:
    """The world answers it with "Nothing happens.", so that this is no contradiction."""
    place = {"open the fridge 1": TO_FRIDGE, "use the desklamp 1": TO_DESK}.get(action)
    facts = live(*([place] if place else []))
    assert not TEXT.well_formed(action)
    assert TEXT.contradiction(facts, action, NOTHING_HAPPENS) == ""


def test_what_changes_is_what_the_next_answer_is_held_against() -> None:
    facts = live(TO_SHELF, TAKE_MUG, TO_SINK, MOVE_MUG)
    assert facts["shelf 1"] == SHELF_WITHOUT
    assert facts["sinkbasin 1"] == "On the sinkbasin 1, you see a mug 1."
    assert facts["you"] == agent_fact(["sinkbasin 1"], None)


def test_an_action_that_fails_changes_no_fact() -> None:
    assert TEXT.changes(live(TO_SHELF), "take mug 1 from shelf 1", NOTHING_HAPPENS) == []
