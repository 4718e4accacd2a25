"""Games on disk: both layouts, damage, and that train and test share nothing."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from houses import house

from dreamgym.envs.alfworld.games import SPLITS, Game, content_hash, load_games, panel_hash
from dreamgym.types import DreamGymError, Task


def official_line(game: Game, **changes: object) -> str:
    task, trial = game.id.split("/")
    record = {"split": game.split, "task": task, "trial": trial, "task_type": game.task_type}
    record |= {"floor": "FloorPlan1", "goal": game.goal, "pddl_problem": game.pddl_problem}
    return json.dumps(record | changes)


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DREAMGYM_DATA", str(tmp_path))
    (tmp_path / "alfworld").mkdir()
    return tmp_path / "alfworld" / "games_train.jsonl.xz"


def write(path: Path, *lines: str) -> None:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def write_download(root: Path, task: str, trial: str, **changes: object) -> Path:
    """One game as `alfworld-download` lays it out, grammar in a few of its own words."""
    folder = root / "json_2.1.1" / "train" / task / trial
    folder.mkdir(parents=True)
    grammar = '{"task": [{"rhs": "Your task is to: cool some apple and put it in fridge."}]}'
    record = {"pddl_domain": "", "grammar": grammar, "pddl_problem": house().pddl_problem}
    record |= {"solvable": True} | changes
    (folder / "game.tw-pddl").write_text(json.dumps(record))
    return folder


def test_the_official_splits_have_their_known_sizes(data_dir: Path) -> None:
    assert [len(load_games("official", split)) for split in SPLITS] == [3554, 140, 134]


def test_official_train_and_test_games_share_no_content(data_dir: Path) -> None:
    hashes = {}
    for split in SPLITS:
        limit = 400 if split == "train" else None  # hashing all of train takes long
        hashes[split] = [content_hash(game) for game in load_games("official", split, limit)]
        assert len(set(hashes[split])) == len(hashes[split])
    for one, other in (("train", "valid_seen"), ("train", "valid_unseen"), SPLITS[1:]):
        assert not set(hashes[one]) & set(hashes[other])


def test_a_panel_hash_does_not_depend_on_order_but_on_every_game(data_dir: Path) -> None:
    games = load_games("official", "valid_unseen", 5)
    assert panel_hash(games) == panel_hash(games[::-1]) != panel_hash(games[:4])
    print(f"panel of the first 5 valid_unseen games: {panel_hash(games)}")


def test_a_copy_with_other_ids_case_order_or_layout_is_the_same_game() -> None:
    game = house()
    text = game.pddl_problem.replace("(problem kitchen)", "(problem another)")
    fact = "(openable Fridge_bar_1)"
    moved = text.replace(fact, "").replace("(:init", f"(:init {fact}")
    copy = replace(game, id="x/y", split="valid_seen", pddl_problem=moved.upper())
    assert content_hash(copy) == content_hash(game)


def test_the_hash_of_a_game_is_the_same_in_every_process_and_on_every_machine() -> None:
    assert content_hash(house()).startswith("35840127090e0839")


def test_a_moved_thing_or_another_goal_makes_another_game() -> None:
    game = house()
    moved = game.pddl_problem.replace("Apple_bar_1 Table_bar_1", "Apple_bar_1 Shelf_bar_1")
    assert content_hash(replace(game, pddl_problem=moved)) != content_hash(game)
    assert content_hash(replace(game, goal="put a mug in fridge")) != content_hash(game)


def test_a_game_gives_the_agent_its_instruction() -> None:
    game = house()
    assert game.task() == Task(id=game.id, instruction=game.goal, kind=game.task_type)


def test_official_games_are_read_in_file_order_up_to_a_limit(official: Path) -> None:
    write(official, *(official_line(house(), trial=f"trial_{i}") for i in range(3)))
    games = load_games("official", "train", limit=2)
    assert [game.id.split("/")[1] for game in games] == ["trial_0", "trial_1"]
    assert games[0].floor == "FloorPlan1"


def test_a_limit_reads_no_further_than_it_must(official: Path) -> None:
    write(official, official_line(house()), "this line is never reached")
    assert len(load_games("official", "train", limit=1)) == 1


@pytest.mark.parametrize(
    "line, said",
    [
        ("{broken", "JSONDecodeError"),
        ("[]", "TypeError"),
        (json.dumps({"task": "a"}), "trial"),
        (official_line(house(), goal=" "), "no goal sentence"),
        (official_line(house(), pddl_problem=None), "no PDDL text"),
        (official_line(house(), split="valid_seen"), "valid_seen"),
        (official_line(house(), task_type="juggle"), "juggle"),
    ],
)
def test_a_corrupt_line_is_named(official: Path, line: str, said: str) -> None:
    write(official, official_line(house()), line)
    with pytest.raises(DreamGymError) as caught:
        load_games("official", "train")
    assert f"{official} line 2" in str(caught.value)
    assert said in str(caught.value)


def test_a_cut_off_file_is_named_with_the_last_good_line(official: Path) -> None:
    write(official, *[official_line(house())] * 3)
    official.write_bytes(official.read_bytes()[:-20])
    with pytest.raises(DreamGymError, match=r"games_train.jsonl.xz is damaged after line \d"):
        load_games("official", "train")


def test_absent_games_say_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_DATA", str(tmp_path))
    with pytest.raises(DreamGymError, match="Set DREAMGYM_DATA"):
        load_games("official", "train")
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(DreamGymError, match="ALFWORLD_DATA is not set"):
        load_games("alfworld_data", "train")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(DreamGymError, match=r"no game\.tw-pddl"):
        load_games("alfworld_data", "train")


@pytest.mark.parametrize(
    "source, split, limit",
    [("web", "train", None), ("official", "test", None), ("official", "train", 0)],
)
def test_what_does_not_exist_is_refused(source: str, split: str, limit: int | None) -> None:
    with pytest.raises(DreamGymError, match=r"there is no|limit is 0"):
        load_games(source, split, limit)


def test_a_download_is_read_with_the_goal_from_its_grammar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    task = "pick_cool_then_place_in_recep-Apple-None-Fridge-2"
    write_download(tmp_path, task, "trial_1")
    folder = write_download(tmp_path, task, "trial_2")
    facts = {"task_type": "pick_cool_then_place_in_recep", "scene": {"floor_plan": "FloorPlan2"}}
    (folder / "traj_data.json").write_text(json.dumps(facts))
    write_download(tmp_path, task, "trial_3", solvable=False)
    write_download(tmp_path, "pick_and_place_with_movable_recep-Apple-Bowl-Fridge-2", "trial_4")
    games = load_games("alfworld_data", "train")
    assert [game.id for game in games] == [f"{task}/trial_1", f"{task}/trial_2"]
    assert {game.goal for game in games} == {"cool some apple and put it in fridge"}
    assert {game.task_type for game in games} == {"pick_cool_then_place_in_recep"}
    assert [game.floor for game in games] == ["", "FloorPlan2"]


@pytest.mark.parametrize(
    "content, said",
    [
        ("not json", "JSONDecodeError"),
        ("{}", "solvable"),
        (json.dumps({"solvable": True, "grammar": "Your task is to: UNKNOWN GOAL."}), "sentence"),
    ],
)
def test_a_broken_download_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, said: str
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    path = write_download(tmp_path, "pick_and_place_simple-Apple-None-Fridge-2", "trial_1")
    (path / "game.tw-pddl").write_text(content)
    with pytest.raises(DreamGymError) as caught:
        load_games("alfworld_data", "train")
    assert str(path / "game.tw-pddl") in str(caught.value)
    assert said in str(caught.value)
