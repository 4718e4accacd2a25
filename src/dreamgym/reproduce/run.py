"""Works off the cells of a block, one run each; what is found is saved after every cell.

The numbers are kept apart from the runs, as small JSON: on another machine a cell that has them is
not run again, unless another one begins from its weights.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.config import RunConfig
from dreamgym.envs.alfworld.games import Game, load_games
from dreamgym.envs.alfworld.world import Backend
from dreamgym.evaluate import Evaluation
from dreamgym.job import (
    Job,
    Progress,
    as_data,
    finish,
    measure_real,
    promoted,
    read_config,
    run_job,
)
from dreamgym.llm.local import LocalLLM
from dreamgym.llm.weights import load_model
from dreamgym.metrics_log import JsonlLog, read_jsonl
from dreamgym.reproduce.final import costs, evaluation, play_games
from dreamgym.reproduce.plan import CELLS, Block, Cell
from dreamgym.run_folder import RunFolder, open_run, write_json
from dreamgym.settings import Origin, load_config
from dreamgym.train import eval_rollout
from dreamgym.types import NothingToLearn

SPLITS = ("valid_unseen", "valid_seen")


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where a block's runs and numbers lie."""

    block: Block
    runs: Path
    results: Path
    progress: Progress
    smoke_games: int = 0  # of each split, for the last measurement; 0 is all

    def folder(self, cell: Cell) -> Path:
        return self.runs / self.block.name / cell.name

    @property
    def path(self) -> Path:
        return self.results / f"{self.block.name}.json"

    def policy(self, cell: Cell) -> LocalLLM:
        """What a finished cell has come to."""
        folder = self.folder(cell)
        weights = promoted(folder) if cell.learns else folder / "cloned"
        return LocalLLM(*load_model(weights), slots=4)

    def saved(self) -> dict[str, Any]:
        """What is known of every finished cell."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def save(self, cell: Cell, data: Mapping[str, Any]) -> None:
        write_json(self.path, {**self.saved(), cell.name: data})

    def config(self, cell: Cell) -> tuple[RunConfig, dict[str, Origin]]:
        """A cell's settings; those who begin from another run name its folder."""
        flags = [f"--seed={self.block.seed}"]
        if cell.init:
            flags += [f"--init={self.folder(CELLS[cell.init])}", f"--init-weights={cell.weights}"]
        if cell.experience:
            flags += [f"--init-experience={self.folder(CELLS[cell.experience])}"]
        return load_config(RunConfig, self.block.recipes(cell), flags)


def work_off(shop: Workshop, cells: Sequence[Cell], backend: Backend) -> None:
    """Every cell that has no numbers yet, and of each policy what `backend` says of it."""
    for cell in cells:
        data = shop.saved().get(cell.name)
        stale = data is not None and data["settings"] != settings_of(shop, cell)
        if stale:
            print(f"{cell.name}: its recipe has changed, it is run again", file=sys.stderr)
        if data is None or stale:
            data = run_cell(shop, cell, fresh=stale)
            shop.save(cell, data)
        if cell.part != "fit" and "fast" not in data["final"]:
            run_folder(shop, cell)
            data["final"]["fast"] = final(shop, cell)
            shop.save(cell, data)
    if backend == "engine":
        measure_in_engine(shop, [cell for cell in cells if cell.part != "fit"])


def measure_in_engine(shop: Workshop, cells: Sequence[Cell]) -> None:
    """Every policy that ALFWorld's own engine has not measured, all of them game by game.

    Cells of other games than the rest (transfer) make a pass of their own.
    """
    saved = shop.saved()
    waiting = [cell for cell in cells if "engine" not in saved[cell.name]["final"]]
    for kinds in dict.fromkeys(shop.config(cell)[0].world.eval_kinds for cell in waiting):
        chosen = [c for c in waiting if shop.config(c)[0].world.eval_kinds == kinds]
        for cell in chosen:
            run_folder(shop, cell)
        cfg = shop.config(chosen[0])[0]
        policies = {cell.name: shop.policy(cell) for cell in chosen}
        found: dict[str, dict[str, Any]] = {cell.name: {} for cell in chosen}
        for split in SPLITS:
            games = held_out(cfg, split, shop.smoke_games)
            path = shop.runs / shop.block.name / f"engine-{split}-{len(kinds)}.jsonl"
            with JsonlLog(path) as log:
                playing = play_games(
                    policies, games, eval_rollout(cfg), cfg.seed, log, shop.progress
                )
                asyncio.run(playing)
                for name in policies:
                    result = evaluation(name, games, log)
                    told = as_data(result) | {"outcomes": outcomes(result, games)}
                    found[name][split] = told | {"costs": costs(log)}
        for cell in chosen:
            data = saved[cell.name]
            data["final"]["engine"] = found[cell.name]
            shop.save(cell, data)


_OF_RL = ("steps", "eval_every", "train_world", "real_budget", "gate.", "curriculum.", "learner.",
          "rollout.group_size")  # fmt: skip


def settings_of(shop: Workshop, cell: Cell) -> dict[str, Any]:
    """What the recipes say: apart from defaults, which may get new members, from folders, and where
    no RL follows from what is said of it, so that another length of training fits nothing again."""
    cfg, origins = shop.config(cell)
    tree = cfg.model_dump(mode="json")
    apart = ("init",) if cell.learns else ("init", *_OF_RL)
    chosen = {}
    for key, origin in origins.items():
        if origin != "default" and not key.startswith(apart):
            value = tree
            for name in key.split("."):
                value = value[name]
            chosen[key] = value
    return chosen


def run_folder(shop: Workshop, cell: Cell, *, fresh: bool = False) -> str:
    """The cell's finished run, and those of all it begins from; returns why it stopped early, if
    it did."""
    for name in cell.needs:
        run_folder(shop, CELLS[name])
    cfg, origins = shop.config(cell)
    until = "after" if cell.learns else "audit" if cell.part == "fit" else "before"
    folder = shop.folder(cell)
    if RunFolder(folder).stage_done(until) and not fresh:
        return ""
    print(f"{shop.block.name}/{cell.name}", file=sys.stderr, flush=True)
    with open_run(folder, cfg, origins, seed=cfg.seed, fresh=fresh) as run:
        job = Job(cfg, run, shop.progress)
        try:
            results = run_job(job, until=until)
        except NothingToLearn as stopped:
            return str(stopped)
        if until == "after":
            finish(job, results)
    return ""


def run_cell(shop: Workshop, cell: Cell, *, fresh: bool = False) -> dict[str, Any]:
    """Run it and read off what the page needs."""
    stopped = run_folder(shop, cell, fresh=fresh)
    run = RunFolder(shop.folder(cell))
    stages = ("collect", "fit", "audit", "clone", "before", "dream", "after")
    told = {name: run.stage_data(name) for name in stages if run.stage_done(name)}
    manifest = run.manifest()
    dream = told.get("dream", {})
    return {
        "label": cell.label,
        "part": cell.part,
        "settings": settings_of(shop, cell),
        "started": manifest["started"],
        "commit": manifest["commit"],
        "platform": manifest["platform"],
        "stopped": stopped,
        "begins_from": cell.init,
        "seconds": {name: data["seconds"] for name, data in told.items() if "seconds" in data},
        "offline_transitions": told["collect"]["transitions"],
        "real_transitions_online": dream.get("real_transitions_online", 0),
        "real_transitions_gate": dream.get("real_transitions_gate", 0),
        "audit": told.get("audit"),
        "before": told.get("before"),
        "after": told.get("after"),
        "dream": dream,
        "curve": curve(shop.folder(cell) / "metrics.jsonl"),
        "final": {},
    }


KEPT = (
    "real/success",
    "real/episodes",
    "real/transitions",
    "real/train_success",
    "dream/train_success",
    "gate/success",
    "gate/promoted",
    "gate/p",
    "time/step_s",
    "time/cpu_s",
    "time/rollout_s",
    "train/informative_groups",
    "curriculum/variants",
    "curriculum/share",
    "alarm",
)


def curve(path: Path) -> list[dict[str, float]]:
    """Of every update what the figures need."""
    if not path.exists():
        return []
    return [
        {"step": row["step"], **{key: row[key] for key in KEPT if key in row}}
        for row in read_jsonl(path)
    ]


def final(shop: Workshop, cell: Cell) -> dict[str, Any]:
    """Success on both held-out splits in our engine, game by game."""
    found = {}
    cfg = read_config(shop.folder(cell))
    for split in SPLITS:
        games = held_out(cfg, split, shop.smoke_games)
        weights = "policy" if cell.learns else "cloned"
        began = time.monotonic()
        result = measure_real(shop.folder(cell), games, "fast", weights, shop.progress)
        found[split] = as_data(result) | {
            "outcomes": outcomes(result, games),
            "seconds": round(time.monotonic() - began, 1),
        }
    return found


def held_out(cfg: RunConfig, split: str, number: int) -> list[Game]:
    kinds = cfg.world.eval_kinds
    games = sorted(load_games("official", split), key=lambda game: game.id)
    return [g for g in games if not kinds or g.task_type in kinds][: number or None]


def outcomes(result: Evaluation, games: Sequence[Game]) -> str:
    """A letter a game, in the order of their ids: 1 solved, 0 not, - a fault."""
    letters = {True: "1", False: "0", None: "-"}
    return "".join(letters[result.outcomes.get(game.id)] for game in games)
