"""The guards on real play: silent on whatever the world says, loud once a listing is broken.

`contradiction` is asked with every fact of the house in hand, as a dream asks it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dreamgym.envs.alfworld.demonstrate import AGENTS, demonstrate
from dreamgym.envs.alfworld.facts import (
    CONTENT,
    ENTITY,
    NOTHING_HAPPENS,
    list_of,
    true_household,
)
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.furnish import RoomSpec
from dreamgym.envs.alfworld.games import Game, load_games
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.experience.hidden import HiddenState
from dreamgym.types import Episode

TEXT = AlfworldText()
SHARED = RoomSpec(shared_locations=0.4)  # several places on one spot
Exchange = tuple[str, str]  # an action and the answer to it


@dataclass(frozen=True, slots=True)
class Heard:
    """One true answer, and all that was true before it."""

    facts: Mapping[str, str]
    action: str
    answer: str
    changed: tuple[str, ...]  # the facts that the log's annotation notes

    def contradiction(self, answer: str | None = None) -> str:
        return TEXT.contradiction(
            self.facts, self.action, self.answer if answer is None else answer
        )


def listen(game: Game, episode: Episode) -> Iterator[Heard]:
    """The turns of an episode beside the true hidden state, kept by the annotation's notes."""
    note = TEXT.annotate(episode, true_household(FastGame(game)).facts())
    hidden = HiddenState(note.start)
    for turn, told in zip(episode.turns, note.notes, strict=True):
        yield Heard(dict(hidden.facts), turn.action, turn.next_state, told.facts)
        hidden.update(told.facts)


def listen_to_all(games: Iterable[Game]) -> list[Heard]:
    """Every agent plays every game."""
    return [
        heard
        for number, game in enumerate(games)
        for agent in AGENTS
        for heard in listen(game, demonstrate(game, agent, seed=number))
    ]


def wrongly_refused(heard: Iterable[Heard]) -> list[tuple[str, str, str]]:
    """A dream refuses what is outside the grammar before any guard, so that is not asked here."""
    asked = (h for h in heard if TEXT.well_formed(h.action))
    return [(h.action, h.answer, said) for h in asked if (said := h.contradiction())]


def changed_otherwise(heard: Iterable[Heard]) -> list[tuple[str, str]]:
    changes = ((h, tuple(TEXT.changes(h.facts, h.action, h.answer))) for h in heard)
    return [(h.action, h.answer) for h, changed in changes if changed != h.changed]


@pytest.fixture(scope="module")
def made() -> list[Heard]:
    return listen_to_all(generate_games(30, seed=21) + generate_games(30, seed=22, spec=SHARED))


def test_on_made_games_no_true_answer_is_a_contradiction(made: list[Heard]) -> None:
    assert wrongly_refused(made) == []
    assert len(made) > 3000
    verbs = {h.action.split(" ")[0] for h in made if h.answer != NOTHING_HAPPENS}
    assert verbs >= {"go", "take", "move", "open", "close", "clean", "heat", "cool", "use"}
    assert verbs >= {"slice", "look", "inventory", "examine", "help"}


def test_on_made_games_the_facts_change_live_as_the_annotation_notes_them(
    made: list[Heard],
) -> None:
    assert changed_otherwise(made) == []
    assert sum(len(h.changed) for h in made) > 1500


def test_on_official_games_no_true_answer_is_a_contradiction(data_dir: Path) -> None:
    heard = listen_to_all(load_games("official", "valid_unseen")[::2])
    assert wrongly_refused(heard) == []
    assert changed_otherwise(heard) == []
    assert len(heard) > 3000


def carry_back(game: Game) -> list[Exchange]:
    """Take a thing that lies in two places at once from the one and put it into the other."""
    play = FastGame(game)
    play.reset()
    names, doors = play.problem.names, play.problem.properties["openable"]
    told = []
    for place, other in ((a, b) for a in play.receptacles for b in play.receptacles if a != b):
        both = play.state.contents[place] & play.state.contents[other]
        if both and place not in doors and other not in doors:
            thing, here, there = names[min(both)], names[place], names[other]
            for action in (
                f"go to {here}",
                f"take {thing} from {here}",
                f"go to {there}",
                f"move {thing} to {there}",
                f"examine {there}",
            ):
                told.append((action, play.step(action)[0]))
            break
    return told


def test_a_thing_that_an_official_game_keeps_in_two_places_is_listed_once_in_each(
    data_dir: Path,
) -> None:
    """The game's files put a mug on the countertop and into the coffee machine upon it."""
    games = [(game, carry_back(game)) for game in load_games("official", "valid_seen")]
    games = [(game, told) for game, told in games if told and told[3][1] != NOTHING_HAPPENS]
    assert len(games) > 5
    for game, told in games:
        hidden = HiddenState(true_household(FastGame(game)).facts())
        for action, answer in told:
            assert TEXT.contradiction(hidden.facts, action, answer) == "", (game.id, told)
            hidden.update(TEXT.changes(hidden.facts, action, answer))


# ---- true answers, broken in one place ----

Break = Callable[[list[str], random.Random], list[str]]


def renumber(things: list[str], rng: random.Random) -> list[str]:
    index = rng.randrange(len(things))
    kind, _, number = things[index].rpartition(" ")
    other = rng.choice([n for n in range(1, 10) if n != int(number)])
    return [*things[:index], f"{kind} {other}", *things[index + 1 :]]


def lose(things: list[str], rng: random.Random) -> list[str]:
    index = rng.randrange(len(things))
    return things[:index] + things[index + 1 :]


def add(things: list[str], rng: random.Random) -> list[str]:
    index = rng.randrange(len(things) + 1)
    return [*things[:index], "ghost 1", *things[index:]]


def swap(things: list[str], rng: random.Random) -> list[str]:
    one, other = rng.sample(range(len(things)), 2)
    swapped = list(things)
    swapped[one], swapped[other] = things[other], things[one]
    return swapped


def listings(heard: Iterable[Heard], at_least: int) -> Iterator[tuple[Heard, list[str]]]:
    """Answers that list a place's things, of which the facts know every one."""
    for h in heard:
        found = CONTENT.search(h.answer)
        of_place = re.match(r"go to |open |examine ", h.action)
        place = h.action.rpartition("go to ")[2].removeprefix("open ").removeprefix("examine ")
        known = "you see" in h.facts.get(place, "")
        if found and of_place and known and len(ENTITY.findall(found[2])) >= at_least:
            yield h, ENTITY.findall(found[2])


@pytest.mark.parametrize(("broken", "at_least"), [(renumber, 1), (lose, 1), (add, 0), (swap, 2)])
def test_a_true_listing_broken_in_one_place_is_a_contradiction(
    made: list[Heard], broken: Break, at_least: int
) -> None:
    rng = random.Random(0)
    passed, asked = [], 0
    for heard, things in listings(made, at_least):
        lie = heard.answer.replace(list_of(things), list_of(broken(things, rng)))
        assert lie != heard.answer
        asked += 1
        if not heard.contradiction(lie):
            passed.append((heard.action, lie))
    assert passed == []
    assert asked > 300
