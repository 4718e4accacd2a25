"""Both back ends side by side. `DREAMGYM_DIFF_STEPS` sets the length; the full bar is 20000."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from houses import MUG_IN_LIGHT, PUT_TWO_APPLES, house

from dreamgym.envs.alfworld.differential import (
    compare_game,
    new_wording,
    pick_games,
    recorded_actions,
    run,
)
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import SPLITS
from dreamgym.envs.alfworld.reference import ReferenceGame

STEPS = int(os.environ.get("DREAMGYM_DIFF_STEPS", "300"))

EVERYTHING = """
look
help
inventory
go to shelf 1
look
use lamp 1
use lamp 1
take knife 1 from table 1
slice apple 2 with knife 1
examine knife 1
move knife 1 to table 1
take apple 2 from table 1
examine apple 2
move apple 2 to shelf 1
look
take apple 2 from shelf 1
move apple 2 to table 1
look
take bowl 1 from table 1
examine bowl 1
move bowl 1 to table 1
take apple 2 from table 1
go to microwave 1
heat apple 2 with microwave 1
examine apple 2
go to sinkbasin 1
clean apple 2 with sinkbasin 1
examine apple 2
go to fridge 1
cool apple 2 with fridge 1
examine apple 2
open fridge 1
look
close fridge 1
open fridge 1
examine fridge 1
move apple 2 to shelf 1
""".strip().split("\n")


def test_the_script_of_every_command_is_accepted_but_for_its_last() -> None:
    game = FastGame(house(MUG_IN_LIGHT))
    game.reset()
    told = [game.step(action)[3] for action in EVERYTHING]
    assert all(told[:-1]) and not told[-1]


@pytest.mark.engine
@pytest.mark.parametrize("goal", [MUG_IN_LIGHT, PUT_TWO_APPLES])
def test_every_command_is_told_as_the_engine_tells_it(goal: str) -> None:
    game = house(goal)
    steps = len(EVERYTHING) + 40
    found = compare_game(game, ReferenceGame(game), steps, seed=1, script=EVERYTHING)
    assert found.differences == []
    assert {"slice", "heat", "cool", "clean", "use", "examine", "help"} <= found.verbs.keys()


@pytest.mark.engine
def test_both_back_ends_agree_on_official_games(data_dir: Path) -> None:
    games = pick_games(max(3, min(200, STEPS // 100)), seed=7)
    assert {game.split for game in games} == set(SPLITS)
    found = run(games, STEPS, seed=7, scripts=recorded_actions(games[::2]))
    assert found.steps >= STEPS
    assert found.invalid > 0
    assert found.differences == []


def test_old_recordings_are_read_in_todays_words(data_dir: Path) -> None:
    assert new_wording("put cd 3 in/on desk 1") == "move cd 3 to desk 1"
    assert new_wording("go to desk 1") == "go to desk 1"
    games = [game for game in pick_games(60, seed=0) if game.split == "train"]
    scripts = recorded_actions(games)
    assert len(scripts) == len(games) > 0
    for game in games:
        play = FastGame(game)
        play.reset()
        outcomes = [play.step(action) for action in scripts[game.id]]
        assert all(valid for *_, valid in outcomes)
        assert outcomes[-1][1:3] == (1.0, True)
