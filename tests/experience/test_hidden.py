"""Facts are found by the words of an action."""

from __future__ import annotations

import pytest

from dreamgym.experience.hidden import HiddenState, subject

FACTS = {
    "shelf 1": "On the shelf 1, you see a pen 1.",
    "drawer 2": "The drawer 2 is closed. In it, you see nothing.",
    "apple 1": "The apple 1 is hot.",
    "you": "You are facing the shelf 1. You carry a apple 1.",
}


@pytest.mark.parametrize(("key", "fact"), FACTS.items())
def test_a_fact_is_about_the_agent_or_the_first_thing_it_names(key: str, fact: str) -> None:
    assert subject(fact) == key


@pytest.mark.parametrize("fact", ["", "It rains.", "The shelf is empty.", "You"])
def test_a_sentence_about_nothing_known_has_no_subject(fact: str) -> None:
    assert subject(fact) == ""


@pytest.mark.parametrize(
    ("action", "keys"),
    [
        ("open drawer 2", ["drawer 2", "you"]),
        ("heat apple 1 with shelf 1", ["apple 1", "shelf 1", "you"]),
        ("take pen 1 from shelf 1", ["shelf 1", "you"]),
        ("move shelf 1 to shelf 1", ["shelf 1", "you"]),
        ("look", ["you", "shelf 1", "apple 1"]),
        ("go to drawer 22", ["you", "shelf 1", "apple 1"]),
        ("", ["you", "shelf 1", "apple 1"]),
    ],
)
def test_an_action_finds_what_it_names_and_else_what_is_at_hand(
    action: str, keys: list[str]
) -> None:
    assert HiddenState(FACTS).about(action) == [FACTS[key] for key in keys]


def test_a_newer_fact_replaces_the_older_one_about_the_same_thing() -> None:
    hidden = HiddenState(FACTS)
    hidden.update(["On the shelf 1, you see nothing.", "It rains.", "The cd 3 is lost."])
    assert hidden.about("examine shelf 1")[0] == "On the shelf 1, you see nothing."
    assert hidden.facts.keys() == {*FACTS, "cd 3"}
    assert "It rains." not in hidden.facts.values()


def test_a_fork_goes_its_own_way() -> None:
    parent = HiddenState(FACTS)
    child = parent.fork()
    child.update(["The drawer 2 is open. In it, you see nothing."])
    assert parent.about("open drawer 2")[0] == FACTS["drawer 2"]
    assert child.about("open drawer 2")[0] != FACTS["drawer 2"]


def test_a_hidden_state_does_not_write_into_what_it_was_made_from() -> None:
    facts = dict(FACTS)
    HiddenState(facts).update(["On the shelf 1, you see nothing."])
    assert facts == FACTS


def test_nothing_known_gives_nothing() -> None:
    assert HiddenState().about("open drawer 2") == []
