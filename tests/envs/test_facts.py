"""The facts a log is annotated with, held against the engine's own state turn by turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dreamgym.envs.alfworld.demonstrate import demonstrate
from dreamgym.envs.alfworld.facts import (
    Household,
    agent_fact,
    apply,
    hindsight,
    list_of,
    place_fact,
    true_household,
)
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.furnish import RoomSpec
from dreamgym.envs.alfworld.games import Game, load_games
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.mistakes import mistake
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.experience.hidden import HiddenState
from dreamgym.types import Episode, Turn

TEXT = AlfworldText()
AGENTS = ("random", "noisy", "expert", "random")
SHARED = RoomSpec(shared_locations=0.4)  # several places on one spot


def played(games: list[Game], max_turns: int = 50) -> Iterator[tuple[Game, Episode]]:
    for index, game in enumerate(games):
        agent = AGENTS[index % len(AGENTS)]
        yield game, demonstrate(game, agent, seed=index, max_turns=max_turns)


@pytest.fixture(scope="module")
def made() -> list[tuple[Game, Episode]]:
    games = generate_games(40, seed=8) + generate_games(40, seed=9, spec=SHARED)
    return list(played(games))


@dataclass(frozen=True, slots=True)
class Truth:
    """What the engine's state says of the places and the agent, in the facts' own sentences."""

    places: dict[str, str]
    agent: str


def truth(play: FastGame, house: Household) -> Truth:
    state, names = play.state, play.problem.names
    places = {}
    for place in play.receptacles:
        door = place in state.opened if play.problem.has("openable", place) else None
        inside = [names[x] for x in sorted(state.contents[place])]
        # who stands beside whom does not change: only a `look` tells it, and it is not audited
        beside = house.neighbours.get(names[place])
        places[names[place]] = place_fact(names[place], inside, door, beside)
    facing = [names[place] for place in play.here()]
    return Truth(places, agent_fact(facing, names[state.held] if state.held else None))


def differences(game: Game, episode: Episode) -> tuple[int, list[str]]:
    """Replay an episode beside its annotation: how many turns, and where the two disagree."""
    play = FastGame(game)
    play.reset()
    house = true_household(play)
    note = TEXT.annotate(episode, true_household(play).facts())
    hidden = HiddenState(note.start)
    wrong = []
    for index, turn in enumerate(episode.turns):
        told, reward, _, _ = play.step(turn.action)
        assert told == turn.next_state
        apply(house, turn.action, turn.next_state)
        hidden.update(note.notes[index].facts)
        if TEXT.met(game.goal, hidden.facts) is not (reward == 1.0):
            wrong.append(f"{game.goal!r} after {turn.action!r}: the engine pays {reward}")
        true = truth(play, house)
        tracked = {key: house.fact(key) for key in true.places}
        noted = hidden.facts
        for where, facts in (("tracked", tracked), ("noted", noted)):
            wrong += [
                f"{where} after {turn.action!r}: {facts.get(key)!r} is {fact!r}"
                for key, fact in true.places.items()
                if facts.get(key) != fact
            ]
        for fact in (house.fact("you"), noted.get("you")):
            if fact != true.agent:
                wrong.append(f"after {turn.action!r}: {fact!r} is {true.agent!r}")
        wrong += untrue_states(play, house)
    return len(episode.turns), wrong


def untrue_states(play: FastGame, house: Household) -> list[str]:
    state = play.state
    kept = {"clean": state.clean, "hot": state.hot, "cool": state.cool}
    kept |= {"sliced": state.sliced, "on": state.toggled}
    return [
        f"{thing} is not {word}"
        for thing, words in house.states.items()
        for word in words
        if play.ids[thing] not in kept[word]
    ]


def test_on_made_games_the_facts_are_the_engines_at_every_turn(
    made: list[tuple[Game, Episode]],
) -> None:
    turns, wrong = 0, []
    for game, episode in made:
        number, found = differences(game, episode)
        turns += number
        wrong += found
    assert wrong == []
    assert turns > 2000


def test_on_official_games_the_facts_are_the_engines_at_every_turn(data_dir: Path) -> None:
    games = list(load_games("official", "valid_seen"))[::4]
    turns, wrong = 0, []
    for game, episode in played(games):
        number, found = differences(game, episode)
        turns += number
        wrong += found
    assert wrong == []
    assert turns > 1000


def test_what_hindsight_finds_was_true_at_the_start(made: list[tuple[Game, Episode]]) -> None:
    found = 0
    for game, episode in made:
        house = hindsight(episode)
        start = true_household(FastGame(game))
        for place, things in house.contents.items():
            assert things == start.contents[place], (game.id, place)
            found += 1
        for place, is_open in house.is_open.items():
            assert is_open == start.is_open[place], (game.id, place)
        for place, beside in house.neighbours.items():
            true = start.neighbours[place]  # of which only a look tells every one
            assert place in beside, (game.id, place)
            assert beside == [other for other in true if other in beside], (game.id, place)
        assert house.held is None and house.facing == []
    assert found > 200


def test_the_sentences_of_hindsight_are_those_of_the_truth(
    made: list[tuple[Game, Episode]],
) -> None:
    for game, episode in made:
        true = true_household(FastGame(game))
        log = hindsight(episode)
        log.neighbours = true.neighbours  # a log need not have looked round
        same = true.facts()
        assert {k: f for k, f in log.facts().items() if same[k] != f} == {}


def test_hindsight_says_nothing_of_places_an_episode_has_not_opened() -> None:
    game = generate_games(1, seed=8)[0]
    play = FastGame(game)
    state = play.reset()
    place = next(p for p in play.receptacles if play.problem.has("openable", p))
    name = play.problem.names[place]
    told = play.step(f"go to {name}")[0]
    episode = demonstrate(game, "expert", seed=0)
    arrived = Turn(state, f"go to {name}", 0.0, told)
    house = hindsight(Episode(episode.task, (arrived,), episode.ending, "real"))
    assert house.is_open == {name: False}
    assert house.contents == {}


def test_every_place_of_the_room_needs_a_fact(made: list[tuple[Game, Episode]]) -> None:
    for game, episode in made[:20]:
        play = FastGame(game)
        names = [play.problem.names[place] for place in play.receptacles]
        assert sorted(TEXT.places(episode.task.first_state)) == sorted(names)


def test_with_the_true_facts_every_made_game_can_be_solved(
    made: list[tuple[Game, Episode]],
) -> None:
    for game, episode in made:
        facts = true_household(FastGame(game)).facts()
        assert TEXT.solvable(game.goal, episode.task.first_state, facts), game.id


def test_a_room_without_what_the_task_asks_for_cannot_be_solved(
    made: list[tuple[Game, Episode]],
) -> None:
    for game, episode in made[:20]:
        house = true_household(FastGame(game))
        assert house.goal is not None
        wanted = house.goal.object_type
        facts = {
            key: fact.replace(f"a {wanted} ", "a thing ") for key, fact in house.facts().items()
        }
        assert not TEXT.solvable(game.goal, episode.task.first_state, facts)
        assert not TEXT.solvable("dance", episode.task.first_state, house.facts())


def test_the_facts_rule_out_no_action_that_the_engine_accepts(
    made: list[tuple[Game, Episode]],
) -> None:
    """And of the commands it refuses they rule out most."""
    rng = random.Random(0)
    accepted = asked = ruled_out = 0
    for game, episode in made[::2]:
        play = FastGame(game)
        play.reset()
        note = TEXT.annotate(episode, true_household(play).facts())
        hidden = HiddenState(note.start)
        for turn, told in zip(episode.turns, note.notes, strict=True):
            commands = play.admissible()
            assert [c for c in commands if TEXT.refuses(c, hidden.facts)] == []
            accepted += len(commands)
            command = mistake(play, rng)
            if TEXT.well_formed(command):
                asked += 1
                ruled_out += TEXT.refuses(command, hidden.facts)
            ruled = TEXT.refuses(turn.action, hidden.facts)
            valid = play.step(turn.action)[3]
            assert not (ruled and valid), (game.id, turn.action)
            hidden.update(told.facts)
    assert accepted > 5000 and asked > 300 and ruled_out > 0.8 * asked


def test_what_no_rule_can_tell_is_left_open() -> None:
    assert TEXT.met("dance", {}) is None
    assert TEXT.met("put a mug in desk", {}) is False
    assert TEXT.met("put a mug in desk", {"desk 1": "On the desk 1, you see a mug 1."}) is True


ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a fridge 1, a shelf 1,"
    " and a desk 1.\n\nYour task is to: put a cool mug in desk."
)


@pytest.mark.parametrize(
    ("instruction", "room", "holds"),
    [
        ("put a mug in desk", ROOM, True),
        ("put a cool mug in desk", ROOM, True),
        ("put two mug in desk", ROOM, True),
        ("put a hot mug in desk", ROOM, False),  # no microwave
        ("put a clean mug in desk", ROOM, False),  # no sinkbasin
        ("put a cool mug in desk", ROOM.replace("a fridge 1, ", ""), False),
        ("put a mug in safe", ROOM, False),
        ("put a pen in desk", ROOM, False),
        ("look at mug under the desklamp", ROOM, True),
        ("look at mug under the floorlamp", ROOM, False),
        ("look at pen under the desklamp", ROOM, False),
    ],
)
def test_a_task_is_solvable_where_thing_place_and_tool_are(
    instruction: str, room: str, holds: bool
) -> None:
    facts = {
        "fridge 1": "The fridge 1 is closed. In it, you see a mug 2.",
        "shelf 1": "On the shelf 1, you see a mug 1.",
        "desk 1": "On the desk 1, you see a desklamp 1.",
    }
    assert TEXT.solvable(instruction, room, facts) == holds


def test_two_things_are_not_one() -> None:
    facts = {"desk 1": "On the desk 1, you see a mug 1."}
    assert not TEXT.solvable("put two mug in shelf", ROOM, facts)
    assert TEXT.solvable("put a mug in shelf", ROOM, facts)


def test_a_start_is_mended_so_that_every_thing_stands_in_one_place() -> None:
    facts = TEXT.start_facts(
        "put a mug in desk",
        ROOM,
        {
            "fridge 1": "The fridge 1 is open. In it, you see a mug 1, a mug 1, and a shelf 1.",
            "shelf 1": "On the shelf 1, you see a mug 1, and a pen 2.",
            "lamp 9": "On the lamp 9, you see a mug 5.",
            "you": "You are facing the desk 1. You carry a mug 7.",
        },
    )
    assert facts == {
        "fridge 1": "The fridge 1 is open. In it, you see a mug 1.",
        "shelf 1": "On the shelf 1, you see a pen 2.",
        "desk 1": "On the desk 1, you see nothing.",
        "you": "You are in the middle of a room. You carry nothing.",
    }


@pytest.mark.parametrize(
    "sentence", ["", "you see", "The fridge 1 is", "In it, you see", "a mug 1"]
)
def test_a_sentence_cut_off_is_an_empty_place(sentence: str) -> None:
    facts = TEXT.start_facts("put a mug in desk", ROOM, {"fridge 1": sentence})
    assert facts["fridge 1"].endswith("you see nothing.")


def test_true_facts_need_no_mending(made: list[tuple[Game, Episode]]) -> None:
    """Up to who stands beside whom, which is asked for with the rest and may be lost."""
    for game, episode in made[:40]:
        house = true_household(FastGame(game))
        house.neighbours = {}
        facts = house.facts()
        assert TEXT.start_facts(game.goal, episode.task.first_state, facts) == facts


def test_mending_is_finished_in_one_go(made: list[tuple[Game, Episode]]) -> None:
    rng = random.Random(0)
    for game, episode in made[:20]:
        facts = true_household(FastGame(game)).facts()
        keys = [key for key in facts if key != "you"]
        mixed = {key: facts[rng.choice(keys)] for key in keys}  # sentences about other places
        state = episode.task.first_state
        once = TEXT.start_facts(game.goal, state, mixed)
        assert set(once) == {*keys, "you"}
        assert TEXT.start_facts(game.goal, state, once) == once


def test_a_variant_is_told_in_the_first_states_own_way() -> None:
    told = TEXT.retell(ROOM, "put a \\1 pen in shelf")
    assert told == ROOM.replace("put a cool mug in desk", "put a \\1 pen in shelf")


def test_things_are_listed_as_the_world_lists_them() -> None:
    assert list_of([]) == "nothing"
    assert list_of(["pen 1"]) == "a pen 1"
    assert list_of(["pen 1", "cd 2"]) == "a pen 1, and a cd 2"
    assert list_of(["a", "b", "c"], "") == "a, b, and c"


@pytest.mark.parametrize(
    ("action", "holds"),
    [
        ("go to shelf 1", True),
        ("take pen 1 from shelf 1", True),
        ("move pen 1 to shelf 1", True),
        ("heat pen 1 with microwave 1", True),
        ("slice bread 1 with knife 1", True),
        ("look", True),
        ("go to the shelf 1", False),
        ("put pen 1 in shelf 1", False),
        ("take pen 1", False),
        ("look ", False),
        ("Look", False),
        ("go to shelf 1\n", False),
        ("go to shelf 1, then look", False),
        ("", False),
    ],
)
def test_the_grammar_knows_the_worlds_actions_and_no_others(action: str, holds: bool) -> None:
    assert TEXT.well_formed(action) == holds


def test_every_admissible_command_is_in_the_grammar(made: list[tuple[Game, Episode]]) -> None:
    for game, episode in made[::4]:
        play = FastGame(game)
        play.reset()
        for turn in episode.turns:
            assert [c for c in play.admissible() if not TEXT.well_formed(c)] == []
            play.step(turn.action)
