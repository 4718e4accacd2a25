"""Games on disk: the official ones as one file per split, or a user's own `$ALFWORLD_DATA`."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from dreamgym.types import DreamGymError, Task

SPLITS = ("train", "valid_seen", "valid_unseen")
SOURCES = ("official", "alfworld_data")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

_ATOM = re.compile(r"\(([^()]+)\)")
_NAMES_ONLY = ("problem ", ":domain", ":objects", "= ")  # say nothing that a player could find out
_GOAL_IN_GRAMMAR = re.compile(r"Your task is to: (?P<goal>[^\"\n]*?)\.?\s*\"")


@dataclass(frozen=True, slots=True)
class Game:
    """One household task: its house and goal as PDDL, and the goal as a sentence."""

    id: str  # "<task>/<trial>"
    split: str
    task_type: str
    goal: str
    pddl_problem: str
    floor: str = ""  # the room it was made from, where that is known

    def task(self) -> Task:
        """The task an agent is given; its first state is the world's to tell."""
        return Task(id=self.id, instruction=self.goal, kind=self.task_type)


def content_hash(game: Game) -> str:
    """Name the game by what it is: equal for copies that differ in id, order, case or layout."""
    atoms = (" ".join(atom.split()) for atom in _ATOM.findall(game.pddl_problem.lower()))
    same = sorted({atom for atom in atoms if not atom.startswith(_NAMES_ONLY)})
    text = "\n".join([*same, " ".join(game.goal.lower().split())])
    return hashlib.sha256(text.encode()).hexdigest()


def panel_hash(games: Iterable[Game]) -> str:
    """One hash for a set of games, whatever their order: two machines compare it."""
    return hashlib.sha256("\n".join(sorted(map(content_hash, games))).encode()).hexdigest()


def load_games(source: str, split: str, limit: int | None = None) -> tuple[Game, ...]:
    """Read the games of one split, the first `limit` of them in file order."""
    if split not in SPLITS:
        raise DreamGymError(f"there is no split {split!r}. Use one of {', '.join(SPLITS)}.")
    if limit is not None and limit < 1:
        raise DreamGymError(f"limit is {limit}: ask for at least one game, or leave it out.")
    if source == "official":
        path = _official_path(split)
        games = _official(path, split) if limit else iter(_all_official(path, split, _stamp(path)))
    elif source == "alfworld_data":
        games = _alfworld_data(split)
    else:
        raise DreamGymError(f"there is no source {source!r}. Use one of {', '.join(SOURCES)}.")
    return tuple(islice(games, limit))


def data_dir() -> Path:
    """Where third-party data are read from: `$DREAMGYM_DATA`, else a folder in the user's cache."""
    return Path(os.environ.get("DREAMGYM_DATA") or "~/.cache/dreamgym").expanduser()


def _official_path(split: str) -> Path:
    path = data_dir() / "alfworld" / f"games_{split}.jsonl.xz"
    if not path.is_file():
        raise DreamGymError(
            f"the official {split} games are not at {path}. Set DREAMGYM_DATA to the folder that "
            "holds alfworld/games_*.jsonl.xz, or use generated games."
        )
    return path


def _stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_mtime_ns, path.stat().st_size


@lru_cache(maxsize=len(SPLITS))
def _all_official(path: Path, split: str, stamp: tuple[int, int]) -> tuple[Game, ...]:
    """A run asks for its splits again and again, and unpacking one takes a second."""
    return tuple(_official(path, split))


def _official(path: Path, split: str) -> Iterator[Game]:
    num_read = 0
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                num_read += 1
                yield _official_game(line, split, f"{path} line {num_read}")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise DreamGymError(
            f"{path} is damaged after line {num_read}: {error}. Copy the file again."
        ) from error


def _official_game(line: str, split: str, where: str) -> Game:
    try:
        record = json.loads(line)
        game = Game(
            id=f"{record['task']}/{record['trial']}",
            split=record["split"],
            task_type=record["task_type"],
            goal=record["goal"],
            pddl_problem=record["pddl_problem"],
            floor=record["floor"],
        )
        _check_fields(game, split)
    except (KeyError, TypeError, ValueError) as error:
        raise DreamGymError(f"{where} is no game: {error!r}. Copy the file again.") from error
    return game


def _check_fields(game: Game, split: str) -> None:
    if game.split != split:
        raise ValueError(f"its split is {game.split!r}, not {split!r}")
    if game.task_type not in TASK_TYPES:
        raise ValueError(f"its task type {game.task_type!r} is none of {', '.join(TASK_TYPES)}")
    if not isinstance(game.goal, str) or not game.goal.strip():
        raise ValueError("it has no goal sentence")
    if not isinstance(game.pddl_problem, str) or "(:init" not in game.pddl_problem.lower():
        raise ValueError("its pddl_problem is no PDDL text")


def _alfworld_data(split: str) -> Iterator[Game]:
    root = os.environ.get("ALFWORLD_DATA")
    if not root:
        raise DreamGymError(
            "ALFWORLD_DATA is not set. Run `alfworld-download` and set it to the folder that "
            "holds json_2.1.1."
        )
    folder = Path(root).expanduser() / "json_2.1.1" / split
    paths = sorted(folder.rglob("game.tw-pddl"))
    if not paths:
        raise DreamGymError(
            f"no game.tw-pddl stands under {folder}. Run `alfworld-download`, or set "
            "ALFWORLD_DATA to the folder that holds json_2.1.1."
        )
    for path in paths:
        try:
            game = _downloaded_game(path, split)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise DreamGymError(
                f"{path} is no game: {error!r}. Run `alfworld-download -f` to fetch it again."
            ) from error
        if game is not None:
            yield game


def _downloaded_game(path: Path, split: str) -> Game | None:
    """None for the games that ALFWorld itself leaves out."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["solvable"] is not True:
        return None
    match = _GOAL_IN_GRAMMAR.search(record["grammar"])
    if match is None or match["goal"] == "UNKNOWN GOAL":
        raise ValueError("its grammar has no 'Your task is to: ...' sentence")
    task, trial = path.parent.parent.name, path.parent.name
    facts = path.with_name("traj_data.json")
    floor, task_type = "", task.split("-", 1)[0]
    if facts.is_file():
        trajectory = json.loads(facts.read_text(encoding="utf-8"))
        task_type = trajectory["task_type"]
        floor = trajectory["scene"]["floor_plan"]
    if task_type not in TASK_TYPES:
        return None
    game = Game(f"{task}/{trial}", split, task_type, match["goal"], record["pddl_problem"], floor)
    _check_fields(game, split)
    return game
