import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from dreamgym.envs.alfworld import rooms
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.furnish import RoomSpec
from dreamgym.envs.alfworld.games import TASK_TYPES, Game
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.goal import read_goal
from dreamgym.envs.alfworld.pddl import parse_problem
from dreamgym.envs.alfworld.planner import plan
from dreamgym.types import DreamGymError

CHANGES = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}


def contents(game: Game) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What the room is, worked out from the problem text alone: its places and what they hold."""
    problem = parse_problem(game.pddl_problem)
    return tuple(
        sorted(
            (kind, tuple(sorted(problem.object_types[o] for o in problem.contents.get(r, ()))))
            for r, kind in problem.receptacle_types.items()
        )
    )


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return generate_games(150, seed=11)


def test_every_game_can_be_won_and_is_not_won_before_the_plan_ends(games: list[Game]) -> None:
    for game in games:
        play = FastGame(game)
        play.reset()
        answers = [play.step(command) for command in plan(game)]
        assert all(valid for *_, valid in answers), game.id
        assert [done for _, _, done, _ in answers] == [False] * (len(answers) - 1) + [True], game.id


def test_all_task_types_and_rooms_come(games: list[Game]) -> None:
    kinds = Counter(game.task_type for game in games)
    assert set(kinds) == set(TASK_TYPES)
    assert min(kinds.values()) > 10  # of 25 expected
    assert {game.floor.split("-")[0] for game in games} == set(rooms.ROOMS)


def test_the_sentence_says_what_the_problem_asks(games: list[Game]) -> None:
    for game in games:
        asked, said = parse_problem(game.pddl_problem).goal, read_goal(game.goal)
        assert said is not None, game.goal
        assert f"{said.object_type}type" == asked.object_type
        assert f"{said.target_type}type" == (asked.lamp_type or asked.receptacle_type)
        assert said.lamp == bool(asked.lamp_type)
        assert said.count == asked.count
        assert said.state == next((CHANGES[prop] for prop in asked.properties), "")


def test_rooms_have_the_size_that_was_asked_for() -> None:
    spec = RoomSpec(receptacles=(12, 14), things=(20, 22))
    for game in generate_games(20, seed=1, spec=spec):
        problem = parse_problem(game.pddl_problem)
        assert 12 <= len(problem.receptacle_types) <= 14
        assert 20 <= len(problem.object_types) <= 22


def test_same_arguments_make_the_same_bytes_in_another_process() -> None:
    code = (
        "from dreamgym.envs.alfworld.generate import generate_games\n"
        "import sys; sys.stdout.write(repr(generate_games(4, seed=5, tasks_per_room=2)))"
    )
    here = repr(generate_games(4, seed=5, tasks_per_room=2))
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout == here


def test_a_longer_list_begins_with_the_shorter_one() -> None:
    assert generate_games(9, seed=2, tasks_per_room=3)[:4] == generate_games(
        4, seed=2, tasks_per_room=3
    )


def test_another_seed_makes_other_rooms(games: list[Game]) -> None:
    assert not {contents(g) for g in games} & {contents(g) for g in generate_games(30, seed=12)}


def test_no_room_is_in_two_splits_even_where_rooms_are_tiny_and_seeds_differ() -> None:
    # so small that thousands of draws must meet: only the rule by content keeps splits apart
    tiny = RoomSpec(
        receptacles=(4, 4), things=(3, 3), rooms=("bathroom",),
        task_types={"pick_and_place_simple": 1.0},
    )  # fmt: skip
    seen = {
        split: {contents(game) for game in generate_games(150, seed=seed, split=split, spec=tiny)}
        for seed, split in enumerate(("train", "valid_seen", "valid_unseen"))
    }
    again = {contents(game) for game in generate_games(150, seed=9, spec=tiny)}
    assert seen["train"] & again  # the rooms do meet within a split
    assert not seen["train"] & seen["valid_seen"]
    assert not seen["train"] & seen["valid_unseen"]
    assert not seen["valid_seen"] & seen["valid_unseen"]


def test_several_tasks_are_set_in_one_room() -> None:
    games = generate_games(12, seed=3, tasks_per_room=4)
    for start in (0, 4, 8):
        room = games[start : start + 4]
        assert len({contents(game) for game in room}) == 1
        assert len({game.floor for game in room}) == 1
        assert len({parse_problem(game.pddl_problem).goal for game in room}) == 4
    assert len({game.floor for game in games}) == 3
    assert len({game.id for game in games}) == 12


def test_places_stand_apart_unless_they_are_told_to_share() -> None:
    def shared(games: list[Game]) -> float:
        shares = []
        for game in games:
            spots = Counter(parse_problem(game.pddl_problem).receptacle_locations.values())
            shares.append(sum(n for n in spots.values() if n > 1) / sum(spots.values()))
        return sum(shares) / len(shares)

    assert shared(generate_games(20, seed=4)) == 0.0
    assert shared(generate_games(20, seed=4, spec=RoomSpec(shared_locations=0.5))) > 0.4


def test_nothing_lies_where_a_task_wants_it(games: list[Game]) -> None:
    wanting = ("pick_and_place_simple", "pick_two_obj_and_place")
    for game in (game for game in games if game.task_type in wanting):
        problem = parse_problem(game.pddl_problem)
        kinds = {
            problem.receptacle_types[receptacle]
            for receptacle, things in problem.contents.items()
            if any(problem.object_types[thing] == problem.goal.object_type for thing in things)
        }
        assert problem.goal.receptacle_type not in kinds, game.id


def test_things_lie_only_where_they_could_be_put(games: list[Game]) -> None:
    for game in games:
        problem = parse_problem(game.pddl_problem)
        for receptacle, things in problem.contents.items():
            for thing in things:
                if problem.has("pickupable", thing):
                    pair = (problem.receptacle_types[receptacle], problem.object_types[thing])
                    assert pair in problem.can_contain, (game.id, pair)


def test_tables_agree_with_each_other() -> None:
    for thing, usual in rooms.USUAL.items():
        for place in usual:
            assert thing in rooms.FIXED or thing in rooms.HOLDS[place], (thing, place)
    for name, kind in rooms.ROOMS.items():
        assert set(kind.things) <= set(rooms.USUAL), name
        places = {*kind.required, *kind.optional}
        assert places <= set(rooms.HOLDS), name
        for thing in kind.things:
            assert set(rooms.USUAL[thing]) & places, f"{thing} has no place in the {name}"


def test_names_follow_alfworlds_form() -> None:
    game = generate_games(1, seed=0, spec=RoomSpec(rooms=("bathroom",), task_types={
        "pick_clean_then_place_in_recep": 1.0}))[0]  # fmt: skip
    state = FastGame(game).reset()
    assert re.search(r"you see (a [a-z]+ \d+, )+and a [a-z]+ \d+\.\n", state)
    assert "a sinkbasin 1" in state  # its id is a Sink_..._SinkBasin, as in the official games
    assert state.endswith(f"Your task is to: {game.goal}.")


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: generate_games(1, seed=0, split="test"), "no split 'test'"),
        (lambda: generate_games(1, seed=0, tasks_per_room=0), "at least 1 task"),
        (lambda: RoomSpec(receptacles=(3, 10)), "at least 4"),
        (lambda: RoomSpec(things=(9, 5)), "in this order"),
        (lambda: RoomSpec(rooms=("cellar",)), "cellar"),
        (lambda: RoomSpec(task_types={}), "nothing"),
        (lambda: RoomSpec(rooms=("bedroom",)), "drop the task type"),
        (lambda: RoomSpec(shared_locations=2.0), "share of 1"),
        (lambda: generate_games(1, seed=0, tasks_per_room=500), "fewer tasks a room"),
    ],
)
def test_what_cannot_be_made_is_refused_with_advice(make: Callable[[], object], says: str) -> None:
    with pytest.raises(DreamGymError, match=says):
        make()
