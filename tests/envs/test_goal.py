"""The goal read from a sentence is the one the game's PDDL states, for every game there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.envs.alfworld.games import Game, load_games
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.goal import Goal, read_goal
from dreamgym.envs.alfworld.pddl import _parse, parse_goal, parse_problem

STATE_OF = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}


def goal_of(game: Game) -> Goal:
    """The goal as the PDDL states it; only its last section is parsed, which is what costs."""
    text = game.pddl_problem.lower()
    section = text[text.rindex("(:goal") :]
    section = section[: section.rindex(")")]  # the problem's own bracket
    true = parse_goal(_parse(section))
    state = "".join(STATE_OF[p] for p in true.properties if p in STATE_OF)
    target = true.lamp_type or true.receptacle_type
    return Goal(
        true.object_type.removesuffix("type"),
        target.removesuffix("type"),
        state,
        true.count,
        lamp=bool(true.lamp_type),
    )


def test_the_short_way_to_a_games_goal_is_the_parsers() -> None:
    for game in generate_games(6, seed=5):
        true = parse_problem(game.pddl_problem).goal
        short = goal_of(game)
        assert f"{short.object_type}type" == true.object_type
        assert f"{short.target_type}type" == (true.lamp_type or true.receptacle_type)


@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_every_official_goal_is_read_as_its_game_means_it(data_dir: Path, split: str) -> None:
    games = load_games("official", split)
    assert len(games) == {"train": 3554, "valid_seen": 140, "valid_unseen": 134}[split]
    wrong = [
        (game.goal, read, true)
        for game in games
        if (read := read_goal(game.goal)) != (true := goal_of(game))
    ]
    assert wrong == []


def test_every_generated_goal_is_read_as_its_game_means_it() -> None:
    games = generate_games(60, seed=5, tasks_per_room=2)
    assert {game.task_type for game in games} == {
        "pick_and_place_simple",
        "look_at_obj_in_light",
        "pick_clean_then_place_in_recep",
        "pick_heat_then_place_in_recep",
        "pick_cool_then_place_in_recep",
        "pick_two_obj_and_place",
    }
    assert [read_goal(game.goal) for game in games] == [goal_of(game) for game in games]


@pytest.mark.parametrize(
    ("instruction", "goal"),
    [
        ("put a mug in desk", Goal("mug", "desk")),
        ("Put some  Mug on Desk.", Goal("mug", "desk")),
        ("put a cool mug in coffeemachine", Goal("mug", "coffeemachine", "cool")),
        ("heat some egg and put it in diningtable", Goal("egg", "diningtable", "hot")),
        ("clean some plate and put it in cabinet", Goal("plate", "cabinet", "clean")),
        ("put two cd in safe", Goal("cd", "safe", count=2)),
        ("put two hot egg in sinkbasin", Goal("egg", "sinkbasin", "hot", 2)),  # only a variant
        ("find two cd and put them in safe", Goal("cd", "safe", count=2)),
        ("look at cd under the desklamp", Goal("cd", "desklamp", lamp=True)),
        ("examine the cd with the desklamp", Goal("cd", "desklamp", lamp=True)),
    ],
)
def test_the_worlds_phrases_are_read(instruction: str, goal: Goal) -> None:
    assert read_goal(instruction) == goal


@pytest.mark.parametrize(
    "instruction", ["", ".", "dance", "look around", "take the mug", "put the mug", "find two cd"]
)
def test_other_phrases_have_no_goal(instruction: str) -> None:
    assert read_goal(instruction) is None


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal("mug", "desk", "hot"), "a hot mug in desk"),
        (Goal("cd", "safe", count=2), "two cd in safe"),
        (Goal("cd", "desklamp", lamp=True), "a cd in hand by a lit desklamp"),
    ],
)
def test_a_goal_says_what_it_wants(goal: Goal, words: str) -> None:
    assert str(goal) == words
