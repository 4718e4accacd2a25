"""The fast back end: the engine's recorded words, and each rule on a house of our own."""

from __future__ import annotations

import asyncio
import json
import lzma
import time
from pathlib import Path

import pytest
from houses import CLEAN_APPLE_SOLUTION, HOUSE, MUG_IN_LIGHT, PUT_TWO_APPLES, house

from dreamgym.envs.alfworld.fast import NOTHING_HAPPENS, FastEnv, FastGame, spoken_list
from dreamgym.envs.alfworld.games import SPLITS, load_games
from dreamgym.envs.alfworld.pddl import entity_names, parse_problem
from dreamgym.types import DreamGymError, Ending, EnvFault


def play(game: FastGame, *actions: str) -> str:
    """The state after the last action; all of them must be accepted."""
    text = ""
    for action in actions:
        text, _, _, valid = game.step(action)
        assert valid, (action, text)
    return text


def begin(*actions: str) -> FastGame:
    game = FastGame(house())
    game.reset()
    play(game, *actions)
    return game


def test_recorded_engine_episodes_are_told_word_for_word_and_all_are_won(data_dir: Path) -> None:
    path = data_dir / "alfworld" / "expert_demos_engine_0.4.2_sample160.jsonl.xz"
    games = {game.id: game for game in load_games("official", "train")}
    num_steps = num_won = 0
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    for record in records:
        game = FastGame(games[f"{record['task']}/{record['trial']}"])
        state = game.reset()
        for step in record["steps"]:
            assert (state, game.admissible()) == (step["obs"], step["admissible"])
            state, reward, done, valid = game.step(step["action"])
            assert (reward, done, valid) == (step["reward"], step["done"], True)
            num_steps += 1
        assert state == record["final_obs"]
        num_won += done
    ceiling = num_won / len(records)
    print(f"expert replay ceiling: {num_won}/{len(records)} = {ceiling:.3f}")  # shown with -s
    assert (num_steps, ceiling) == (2599, 1.0)


def test_every_official_game_can_be_read_and_none_is_won_at_its_start(data_dir: Path) -> None:
    for split in SPLITS:
        for record in load_games("official", split)[::25]:
            game = FastGame(record)
            assert game.reset().endswith(f"Your task is to: {record.goal}.")
            assert not game.state.goal_met()


def test_the_first_state_describes_the_room_and_a_later_look_from_nowhere_sees_nothing() -> None:
    game = FastGame(house())
    assert game.reset() == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see a fridge 1, a microwave 1, a shelf 1, a sinkbasin 1, and a table 1."
        "\n\nYour task is to: put a clean apple in fridge."
    )
    assert play(game, "look") == (
        "You are in the middle of a room. Looking quickly around you, you see nothing."
    )


def test_places_that_share_a_spot_are_faced_together() -> None:
    game = begin("go to shelf 1")
    assert (
        play(game, "look")
        == "You are facing the shelf 1, and table 1. Next to it, you see nothing."
    )
    assert play(game, "examine table 1") == (
        "On the table 1, you see a apple 2, a bowl 1, a knife 1, and a mug 1."
    )
    assert game.step("go to table 1")[0] == NOTHING_HAPPENS  # already there


def test_what_moved_between_two_places_of_one_spot_lies_next_to_them() -> None:
    game = begin("go to shelf 1", "take apple 2 from table 1", "move apple 2 to shelf 1")
    assert play(game, "look").endswith("Next to it, you see a apple 2.")
    play(game, "take apple 2 from shelf 1", "move apple 2 to table 1")
    # out of the shelf, back on the table: now it is the shelf that misses it
    assert play(game, "look").endswith("Next to it, you see a apple 2.")


@pytest.mark.parametrize(
    "actions, text",
    [
        ((), "There's nothing special about apple 2."),
        (("clean apple 2 with sinkbasin 1",), "This is a clean apple 2."),
        (("heat apple 2 with microwave 1",), "This is a hot apple 2."),
        (("cool apple 2 with fridge 1",), "This is a cold apple 2."),
        (
            ("clean apple 2 with sinkbasin 1", "heat apple 2 with microwave 1"),
            "This is a hot and clean apple 2.",
        ),
        (
            (
                "clean apple 2 with sinkbasin 1",
                "heat apple 2 with microwave 1",
                "cool apple 2 with fridge 1",
            ),
            "This is a cool and clean apple 2.",
        ),
    ],
)
def test_examining_a_held_thing_tells_what_was_done_to_it(
    actions: tuple[str, ...], text: str
) -> None:
    game = begin("go to table 1", "take apple 2 from table 1")
    for action in actions:
        play(game, f"go to {action.split(' with ')[1]}", action)
    assert play(game, "examine apple 2") == text


def test_slicing_needs_the_knife_in_hand_and_the_thing_nearby() -> None:
    game = begin("go to table 1")
    assert game.step("slice apple 2 with knife 1")[0] == NOTHING_HAPPENS
    play(game, "take knife 1 from table 1")
    assert game.step("slice apple 1 with knife 1")[0] == NOTHING_HAPPENS  # it is in the fridge
    assert play(game, "slice apple 2 with knife 1") == "You sliced the apple 2 with the knife 1."
    play(game, "move knife 1 to table 1", "take apple 2 from table 1")
    assert play(game, "examine apple 2") == "This is a sliced apple 2."
    play(game, "go to fridge 1", "cool apple 2 with fridge 1")
    assert play(game, "examine apple 2") == "This is a cool sliced apple 2."


def test_a_closed_door_hides_and_bars_but_does_not_stop_cooling() -> None:
    game = begin("go to table 1", "take apple 2 from table 1")
    assert play(game, "go to fridge 1") == "You arrive at fridge 1. The fridge 1 is closed."
    assert game.step("move apple 2 to fridge 1")[0] == NOTHING_HAPPENS
    assert play(game, "cool apple 2 with fridge 1") == "You cool the apple 2 using the fridge 1."
    assert play(game, "open fridge 1") == (
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."
    )
    assert game.step("open fridge 1")[0] == NOTHING_HAPPENS
    assert game.step("take apple 1 from fridge 1")[0] == NOTHING_HAPPENS  # the hand is full
    assert play(game, "close fridge 1") == "You close the fridge 1."


def test_a_bowl_tells_what_lies_in_it_and_the_hand_what_it_holds() -> None:
    game = begin("go to table 1")
    assert play(game, "inventory") == "You are not carrying anything."
    play(game, "take bowl 1 from table 1")
    assert play(game, "inventory") == "You are carrying: a bowl 1."
    assert play(game, "examine bowl 1") == "This is a normal bowl 1. In it, you see a mug 1."


@pytest.mark.parametrize(
    "action",
    [
        "",
        "look around",
        "LOOK",
        "go to  table 1",
        "take apple 2",
        "put apple 2 in/on table 1",
        "examine apple 2",
        "take lamp 1 from shelf 1",
        "move knife 1 to shelf 1",
        "go to",
        "open",
        "go to table 1\ngo to shelf 1",
        "use mug 1",
        "take apple 1 from fridge 1",
        "help me",
    ],
)
def test_what_is_not_exactly_an_admissible_command_does_nothing(action: str) -> None:
    game = begin("go to table 1")
    before = game.admissible()
    assert game.step(action) == (NOTHING_HAPPENS, 0.0, False, False)
    assert game.admissible() == before
    assert action not in before


def test_spaces_around_an_action_are_trimmed_as_the_engine_does() -> None:
    game = begin("  go to table 1\n")
    assert game.state.location == "loc_bar_1"


def test_exactly_the_admissible_commands_are_accepted() -> None:
    actions = ("go to table 1", "take knife 1 from table 1")
    words = [f"{verb} {name}" for verb in ("go to", "open", "close", "examine", "use")
             for name in begin().ids]  # fmt: skip
    words += [f"{verb} {one} {join} {two}" for verb, join in
              (("take", "from"), ("move", "to"), ("heat", "with"), ("slice", "with"))
              for one in begin().ids for two in begin().ids]  # fmt: skip
    accepted = {word for word in words if begin(*actions).step(word)[3]}
    assert accepted == set(begin(*actions).admissible()) - {"look", "inventory", "help"}


def test_help_lists_a_line_per_command() -> None:
    lines = play(begin(), "help").split("\n")
    assert lines[0] == "Available commands:" and lines[-1] == ""
    assert len(lines[1:-1]) == 13
    assert lines[1] == "  look:                             look around your current location"
    assert lines[7] == "  move (object) to (receptacle):  place an object in or on a receptacle"


def test_a_game_begins_again_from_its_start() -> None:
    game = FastGame(house())
    first = game.reset()
    play(game, *CLEAN_APPLE_SOLUTION)
    assert game.state.goal_met()
    assert game.reset() == first
    assert not game.state.goal_met()
    play(game, *CLEAN_APPLE_SOLUTION)


def test_a_dirty_apple_in_the_fridge_is_not_enough() -> None:
    game = FastGame(house())
    game.reset()
    for action in CLEAN_APPLE_SOLUTION:
        if not action.startswith("clean"):
            _, reward, done, _ = game.step(action)
            assert not done and reward == 0.0


def test_two_things_must_lie_in_the_same_place() -> None:
    game = FastGame(house(PUT_TWO_APPLES, "put two apple in table"))
    game.reset()
    play(game, "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to shelf 1")
    play(game, "move apple 1 to shelf 1")
    assert not game.state.goal_met()
    play(game, "take apple 1 from shelf 1")
    assert game.step("move apple 1 to table 1")[1:] == (1.0, True, True)


def test_light_counts_where_the_agent_stands_with_the_thing_in_hand() -> None:
    game = FastGame(house(MUG_IN_LIGHT, "examine the mug with the desklamp"))
    game.reset()
    play(game, "go to shelf 1", "use lamp 1")
    assert play(game, "use lamp 1") == "You turn on the lamp 1."  # as often as one likes
    assert not game.state.goal_met()
    assert game.step("take mug 1 from table 1")[1:] == (1.0, True, True)
    play(game, "go to sinkbasin 1")
    assert not game.state.goal_met()


def test_names_are_numbered_from_the_last_id_down() -> None:
    ids = ["mug_bar_2", "mug_bar_1", "sink_bar_9_bar_sinkbasin", "sink_bar_9", "mug"]
    assert entity_names(ids) == {
        "mug": "mug ",
        "mug_bar_1": "mug 2",
        "mug_bar_2": "mug 1",
        "sink_bar_9": "sink 1",
        "sink_bar_9_bar_sinkbasin": "sinkbasin 1",
    }


def test_case_layout_and_comments_of_a_problem_do_not_matter() -> None:
    text = house().pddl_problem
    squeezed = " ".join(text.upper().split())
    commented = text.replace("(:init", "; a note (with brackets\n(:init")
    assert parse_problem(text) == parse_problem(squeezed) == parse_problem(commented)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "brackets do not close"),
        (HOUSE[:900], "brackets do not close"),
        (HOUSE.replace("GOAL", "(exists (?o - object) (and (levitates ?o)))"), "levitates"),
        (HOUSE.replace("(atLocation agent1 loc_bar_0)", ""), "0 agents"),
        (HOUSE.replace("(openable Fridge_bar_1)", "(haunted Fridge_bar_1)"), "haunted"),
        (HOUSE.replace("(receptacleType Table_bar_1 TableType)", ""), "table_bar_1 lacks"),
        (HOUSE.replace("GOAL", "(or (a ?b))"), "'or'"),
    ],
)
def test_a_text_that_is_no_playable_problem_says_why(text: str, said: str) -> None:
    text = text.replace("GOAL", MUG_IN_LIGHT)
    with pytest.raises(DreamGymError, match="not a playable ALFWorld problem") as caught:
        parse_problem(text)
    assert said in str(caught.value)


def test_the_env_ends_once_and_refuses_what_comes_after() -> None:
    async def scenario() -> None:
        game = house()
        env = FastEnv(game)
        await env.start(game.task())
        for action in CLEAN_APPLE_SOLUTION:
            result = await env.step(action)
        assert (result.reward, result.ending) == (1.0, Ending.DONE)
        with pytest.raises(EnvFault, match="after the ending"):
            await env.step("look")

    asyncio.run(scenario())


def test_lists_are_spoken_as_the_engine_does() -> None:
    assert spoken_list([]) == "nothing"
    assert spoken_list(["a"]) == "a"
    assert spoken_list(["a", "b"]) == "a, and b"
    assert spoken_list("abc") == "a, b, and c"


def test_thousands_of_steps_are_played_in_a_second() -> None:
    game = begin()
    started = time.perf_counter()
    for _ in range(1000):
        play(game, "go to table 1", "look", "go to fridge 1")
    assert 3000 / (time.perf_counter() - started) > 3000
