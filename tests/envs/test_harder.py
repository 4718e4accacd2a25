"""Which household task is harder than another, which is the same, and who can play it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import Game, load_games
from dreamgym.envs.alfworld.generate import GOALS, generate_games
from dreamgym.envs.alfworld.goal import Goal, harder, read_goal
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.envs.toy import contents_of, make_toy_env, toy_tasks, wanted_by
from dreamgym.experience.dry_run import dry_run
from dreamgym.types import Task

TEXT = AlfworldText()


@pytest.mark.parametrize(
    ("seed", "instruction", "how"),
    [
        ("put a mug in desk", "put two mug in desk", "more objects"),
        ("put a mug in desk", "put two pen in shelf", "more objects"),
        ("put a hot mug in desk", "put two hot mug in desk", "more objects"),
        ("put a mug in desk", "put a hot mug in desk", "extra condition"),
        ("put a mug in desk", "put a clean pen in shelf", "extra condition"),
        ("put two mug in desk", "put two cool mug in desk", "extra condition"),
        ("put a cool mug in desk", "cool two mug and put them in desk", "more objects"),
        ("put a mug in desk", "look at mug under the desklamp", "extra condition"),
        ("put a mug in desk", "put a mug in shelf", "other receptacle"),
        ("put two mug in desk", "find two mug and put them in shelf", "other receptacle"),
        ("put a hot mug in desk", "put a hot mug in shelf", "other receptacle"),
        ("put a hot mug in desk", "cool some mug and put it in desk", "other condition"),
        ("put a hot mug in desk", "put a clean mug in shelf", "other condition"),
        ("put a hot mug in desk", "examine the mug with the desklamp", "other condition"),
        ("look at mug under the desklamp", "put two mug in desk", "more objects"),
        # no harder
        ("put a mug in desk", "put some mug on desk", ""),
        ("put a hot mug in desk", "heat some mug and put it in desk", ""),
        ("look at cd under the desklamp", "examine the cd with the desklamp", ""),
        ("put a mug in desk", "put a pen in desk", ""),
        ("put a hot mug in desk", "put a mug in desk", ""),
        ("put two mug in desk", "put a mug in desk", ""),
        ("put two mug in desk", "put a hot mug in desk", ""),
        ("look at mug under the desklamp", "put a mug in desk", ""),
        # what cannot be read is no harder task
        ("put a mug in desk", "tidy up the room", ""),
        ("tidy up the room", "put two mug in desk", ""),
    ],
)
def test_what_counts_as_harder(seed: str, instruction: str, how: str) -> None:
    assert TEXT.harder(seed, instruction) == how


def every_goal() -> list[Goal]:
    states = ("", "hot", "cool", "clean")
    put = [
        Goal(thing, place, state, count)
        for thing in ("mug", "pen")
        for place in ("desk", "shelf")
        for state in states
        for count in (1, 2)
    ]
    return [*put, Goal("mug", "desklamp", lamp=True), Goal("pen", "desklamp", lamp=True)]


def test_nothing_is_harder_than_itself_and_more_steps_never_go_back() -> None:
    for one, other in itertools.product(every_goal(), repeat=2):
        if one == other:
            assert harder(one, other) == ""
        elif harder(one, other) in ("more objects", "extra condition"):
            assert harder(other, one) == "", f"{one} / {other}"


def wordings(game: Game) -> list[str]:
    goal = read_goal(game.goal)
    assert goal is not None
    phrases = GOALS[game.task_type]
    return [phrase.format(thing=goal.object_type, target=goal.target_type) for phrase in phrases]


def shown(game: Game) -> Task:
    return replace(game.task(), first_state=FastGame(game).reset())


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return generate_games(24, seed=5, tasks_per_room=2)


def test_a_task_means_the_same_in_all_its_wordings_and_under_any_id(games: list[Game]) -> None:
    for game in games:
        task = shown(game)
        meanings = set()
        for number, words in enumerate(wordings(game)):
            first_state = TEXT.retell(task.first_state, words)
            assert first_state.endswith(f"Your task is to: {words}.")
            same = Task(str(number), words.capitalize() + ".", first_state)
            meanings.add(TEXT.meaning(same))
        assert meanings == {TEXT.meaning(task)}


def test_other_goals_and_other_rooms_are_other_tasks(games: list[Game]) -> None:
    tasks = [shown(game) for game in games]
    assert len({TEXT.meaning(task) for task in tasks}) == len(tasks)
    here, neighbour = tasks[:2]  # of one room
    assert TEXT.places(here.first_state) == TEXT.places(neighbour.first_state)
    elsewhere = replace(tasks[2], instruction=here.instruction)
    assert TEXT.meaning(elsewhere) != TEXT.meaning(here)


def test_what_cannot_be_read_means_its_words() -> None:
    one, other = Task("a", "Dance", "A room."), Task("b", "sing", "A room.")
    assert TEXT.meaning(one) == TEXT.meaning(replace(other, instruction="dance"))
    assert TEXT.meaning(one) != TEXT.meaning(other)


def test_the_solver_reaches_every_generated_task_within_a_dry_run(games: list[Game]) -> None:
    with AlfworldWorld(games) as world:
        for game, task in zip(games, world.tasks, strict=True):
            solver = TEXT.solver(shown(game))
            assert solver is not None
            turns = asyncio.run(dry_run(world.make_env(task, 0), task, solver, 50))
            assert 0 < turns <= 50, task.instruction


def test_a_dry_run_that_is_cut_has_not_got_there(games: list[Game]) -> None:
    with AlfworldWorld(games[:1]) as world:
        task = world.tasks[0]
        solver = TEXT.solver(shown(games[0]))
        assert solver is not None
        assert asyncio.run(dry_run(world.make_env(task, 0), task, solver, 1)) == 0


def test_an_end_that_pays_nothing_is_not_got_to() -> None:
    class TakesTheFirst:
        """Opens a box and takes what is in it, wanted or not."""

        def __init__(self) -> None:
            self.left = ["open box 1", f"take {contents_of(task)['box 1']}"]

        def act(self) -> str:
            return self.left.pop(0)

        def observe(self, action: str, next_state: str) -> None:
            return None

    turns = set()
    for task in toy_tasks(12):
        wanted = wanted_by(task) == contents_of(task)["box 1"]
        turns.add((wanted, asyncio.run(dry_run(make_toy_env(task, 0), task, TakesTheFirst(), 9))))
    assert turns == {(True, 2), (False, 0)}


def test_nobody_solves_what_cannot_be_read(games: list[Game]) -> None:
    assert TEXT.solver(replace(shown(games[0]), instruction="dance")) is None


@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_official_tasks_that_mean_the_same_are_set_in_one_room_with_one_goal(
    data_dir: Path, split: str
) -> None:
    by_meaning: dict[str, list[Game]] = {}
    for game in load_games("official", split):
        by_meaning.setdefault(TEXT.meaning(shown(game)), []).append(game)
    assert len(by_meaning) > 40  # of 140 and 134
    for same in by_meaning.values():
        assert len({read_goal(game.goal) for game in same}) == 1
        assert len({FastGame(game).reset().partition("Your task")[0] for game in same}) == 1
