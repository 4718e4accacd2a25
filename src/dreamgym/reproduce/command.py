"""`dreamgym reproduce`: what was asked for, as blocks and cells; the page at the end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dreamgym.envs.alfworld.world import Backend
from dreamgym.job import Progress
from dreamgym.reproduce.blocks import run_blocks
from dreamgym.reproduce.estimate import estimate
from dreamgym.reproduce.page import write_page
from dreamgym.reproduce.plan import DATA, SCALES, Block, Cell, choose
from dreamgym.reproduce.run import Workshop, work_off
from dreamgym.types import DreamGymError

_SEEDS = (0, 1, 2)
_SMOKE_GAMES = 3


@dataclass(frozen=True, slots=True)
class Request:
    """The command's arguments."""

    scale: str
    data: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    jobs: int = 1
    backend: str = "auto"
    runs: Path = Path("runs/reproduce")
    results: Path | None = None
    page: Path | None = None
    dry_run: bool = False

    @property
    def smoke(self) -> bool:
        return self.scale == "smoke"

    def blocks(self) -> list[Block]:
        """Data before seeds: a seed's whole column is there before the next begins."""
        if wrong := [name for name in self.data if name not in DATA]:
            raise DreamGymError(f"--data {wrong[0]}: use {' or '.join(DATA)}")
        data = self.data or (DATA[:1] if self.smoke else DATA)
        seeds = self.seeds or (_SEEDS[:1] if self.smoke else _SEEDS)
        return [Block(self.scale, name, seed) for name in data for seed in seeds]

    def cells(self) -> list[Cell]:
        return choose(self.only)

    @property
    def runs_dir(self) -> Path:
        return self.runs.resolve() / f"alfworld-{self.scale}"

    @property
    def results_dir(self) -> Path:
        """Numbers that are kept stand in `results/`; those of a smoke run say nothing."""
        return self.results or (
            self.runs_dir / "results" if self.smoke else Path(f"results/alfworld/{self.scale}")
        )

    @property
    def page_path(self) -> Path:
        return self.page or (
            self.runs_dir / "alfworld.md" if self.smoke else Path("docs/results/alfworld.md")
        )

    def final_backend(self) -> Backend:
        if self.backend == "auto":
            return "engine" if find_spec("textworld") and find_spec("alfworld") else "fast"
        return "engine" if self.backend == "engine" else "fast"


def reproduce_table(request: Request, progress: Progress) -> dict[str, Any]:
    """Run what is missing and write the page; or, as a dry run, only say what that would take."""
    assert request.scale in SCALES
    blocks, cells, backend = request.blocks(), request.cells(), request.final_backend()
    if request.dry_run:
        return estimate(blocks, cells)
    if request.scale == "paper":
        raise DreamGymError(
            "--scale paper needs GPUs and models that this version cannot load yet: see it with "
            "--dry-run, or run --scale cpu"
        )
    shops = [
        Workshop(b, request.runs_dir, request.results_dir, progress, _SMOKE_GAMES * request.smoke)
        for b in blocks
    ]
    if request.jobs > 1 and len(blocks) > 1:
        flags = ["alfworld", *request.only, f"--scale={request.scale}", f"--backend={backend}"]
        flags += [f"--runs={request.runs}", f"--results={request.results_dir}"]
        flags += [f"--page={request.page_path}"]
        run_blocks(
            blocks, cells, flags, jobs=request.jobs, runs=request.runs_dir,
            results=request.results_dir, backend=backend, progress=progress,
        )  # fmt: skip
    else:
        for shop in shops:
            work_off(shop, cells, backend)
    return write_page(request.results_dir, request.page_path, request.scale)
