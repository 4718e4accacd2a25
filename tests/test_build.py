"""Which games a run learns from, is validated on and is measured on."""

from __future__ import annotations

import pytest

from dreamgym.build import Games, first_states, held_out_tasks, make_games
from dreamgym.config import WorldConfig
from dreamgym.curriculum.variants import task_hash
from dreamgym.envs.alfworld.games import Game, content_hash, load_games
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.types import DreamGymError

TWO = "pick_two_obj_and_place"
LAMP = "look_at_obj_in_light"


def contents(games: tuple[Game, ...]) -> set[str]:
    return {content_hash(game) for game in games}


def check_disjoint(games: Games) -> None:
    parts = [contents(part) for part in (games.train, games.validation, games.eval)]
    assert len(set.union(*parts)) == sum(map(len, parts))
    ids = [{game.id for game in part} for part in (games.train, games.validation, games.eval)]
    assert len(set.union(*ids)) == sum(map(len, ids))


def test_generated_games_to_validate_on_are_none_of_the_others() -> None:
    cfg = WorldConfig(num_train=15, num_eval=8)
    games = make_games(cfg, seed=3, num_validation=7)
    assert [len(part) for part in (games.train, games.validation, games.eval)] == [15, 7, 8]
    check_disjoint(games)
    assert {game.split for game in games.validation} == {"train"}
    assert {game.split for game in games.eval} == {"valid_unseen"}
    without = make_games(cfg, seed=3)
    assert (without.train, without.eval) == (games.train, games.eval), "validation changes neither"
    assert without.validation == ()
    assert make_games(cfg, seed=4, num_validation=7).validation != games.validation


def test_generated_games_of_some_kinds_are_as_many_as_asked_for() -> None:
    cfg = WorldConfig(num_train=6, num_eval=4, train_kinds=(TWO, LAMP), eval_kinds=(TWO,))
    games = make_games(cfg, seed=3, num_validation=5)
    assert [len(part) for part in (games.train, games.validation, games.eval)] == [6, 5, 4]
    assert {game.task_type for game in games.train + games.validation} == {TWO, LAMP}
    assert {game.task_type for game in games.eval} == {TWO}
    check_disjoint(games)


def test_no_variant_may_be_a_generated_game_that_is_measured_or_validated_on() -> None:
    cfg = WorldConfig(num_train=6, num_eval=4)
    games = make_games(cfg, seed=3, num_validation=5)
    held_out = {task.id: task for task in held_out_tasks(cfg, games)}
    assert held_out.keys() == {game.id for game in games.validation + games.eval}
    assert all("Your task is to" in task.first_state for task in held_out.values())


@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize("split", ["valid_seen", "valid_unseen"])
def test_official_games_to_validate_on_are_none_of_the_others(split: str) -> None:
    cfg = WorldConfig.model_validate(
        {"games": "official", "num_train": 300, "num_eval": 100, "eval_split": split}
    )
    games = make_games(cfg, seed=1, num_validation=60)
    assert [len(part) for part in (games.train, games.validation, games.eval)] == [300, 60, 100]
    check_disjoint(games)
    assert {game.split for game in games.train + games.validation} == {"train"}
    assert {game.split for game in games.eval} == {split}
    without = make_games(cfg, seed=1)
    assert (without.train, without.eval) == (games.train, games.eval)


@pytest.mark.usefixtures("data_dir")
def test_official_games_come_of_the_kinds_asked_for_or_not_at_all() -> None:
    few = {"games": "official", "num_train": 40, "num_eval": 10}
    cfg = WorldConfig.model_validate({**few, "train_kinds": (LAMP,), "eval_kinds": (TWO,)})
    games = make_games(cfg, seed=1, num_validation=20)
    assert {game.task_type for game in games.train + games.validation} == {LAMP}
    assert {game.task_type for game in games.eval} == {TWO}
    check_disjoint(games)
    number = sum(game.task_type == LAMP for game in load_games("official", "train"))
    just = cfg.model_copy(update={"num_train": number - 20})
    assert len(make_games(just, seed=1, num_validation=20).train) == number - 20
    with pytest.raises(DreamGymError, match="20 games are asked for and there are 19"):
        make_games(just.model_copy(update={"num_train": number - 19}), 1, num_validation=20)


@pytest.mark.usefixtures("data_dir")
def test_no_variant_may_be_any_official_held_out_game_whichever_split_is_measured() -> None:
    cfg = WorldConfig.model_validate({"games": "official", "num_train": 10, "num_eval": 5})
    games = make_games(cfg, seed=1, num_validation=3)
    text = AlfworldText()
    forbidden = {task_hash(task, text) for task in held_out_tasks(cfg, games)}
    others = [*load_games("official", "valid_seen"), *load_games("official", "valid_unseen")]
    for game in (*games.validation, *games.eval, *others):
        [task] = first_states([game])
        assert task_hash(task, text) in forbidden
