"""Which cells the paper's table has here, and what each of them begins from.

A cell is one run: recipes read one over the other, for one data regime and one seed. Most begin
from another cell's clone, so that all rows of a column start alike; ablations take the policy from
the whole system's cell and the experience model from their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import dreamgym
from dreamgym.types import DreamGymError

Part = Literal["fit", "table", "ablation", "transfer"]
SCALES = ("smoke", "cpu", "paper")
DATA = ("few", "full")
START = "start"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the table."""

    name: str
    label: str  # as the page prints it
    part: Part
    recipes: tuple[str, ...] = ()  # over those of data and scale
    init: str = ""  # the cell it begins from
    weights: Literal["policy", "cloned", "none"] = "cloned"  # of that cell
    experience: str = ""  # the cell whose experience model it dreams with, if not init's
    learns: bool = True  # by RL; else the run ends with its clone

    @property
    def needs(self) -> tuple[str, ...]:
        """Cells whose run folders this one reads."""
        return tuple(name for name in (self.init, self.experience) if name)


def _fitted(name: str, label: str, recipe: str) -> tuple[Cell, Cell]:
    """An ablation that wants an experience model of its own, and the dream with it."""
    fit = Cell(f"fit-{name}", f"experience model {label}", "fit", (recipe,), learns=False)
    row = Cell(
        name, label, "ablation", ("grpo-dream", recipe), START, "cloned", experience=fit.name
    )
    return fit, row


_TABLE = (
    Cell(START, "SFT (the clone, from the experience model)", "table", learns=False),
    Cell("sft-longer", "SFT, as many more readings as RL rehearses", "table", ("sft-longer",),
         START, "none", learns=False),
    Cell("dpo", "SFT, then DPO", "table", ("dpo",), START, "none", learns=False),
    Cell("grpo-real", "GRPO, real world", "table", ("grpo-real",), START),
    Cell("grpo-dream", "GRPO, DreamGym", "table", ("grpo-dream",), START),
    Cell("grpo-s2r", "GRPO, DreamGym S2R", "table", ("grpo-real", "s2r"), "grpo-dream", "policy"),
    Cell("ppo-real", "PPO, real world", "table", ("ppo-real",), START),
    Cell("ppo-dream", "PPO, DreamGym", "table", ("ppo-dream",), START),
    Cell("ppo-s2r", "PPO, DreamGym S2R", "table", ("ppo-real", "s2r"), "ppo-dream", "policy"),
    Cell("grpo-real-bare", "GRPO, real world, no clone", "table", ("grpo-real", "bare"),
         START, "none"),
    Cell("grpo-dream-bare", "GRPO, DreamGym, no clone", "table", ("grpo-dream", "bare"),
         START, "none"),
)  # fmt: skip
_ABLATIONS = (
    Cell("no-tasks", "without task generation", "ablation", ("grpo-dream", "no-tasks"), START),
    Cell("no-replay", "without replay", "ablation", ("grpo-dream", "no-replay"), START),
    *_fitted("no-reasoning", "without reasoning", "no-reasoning"),
    *_fitted("no-hidden", "without hidden state", "no-hidden"),
    *_fitted("with-history", "with history (the paper's)", "with-history"),
    *_fitted("with-retrieval", "with retrieval (the paper's)", "with-retrieval"),
    *_fitted("data-8", "experience model of 1/8 of the logs", "data-8"),
    *_fitted("data-4", "experience model of 1/4 of the logs", "data-4"),
    *_fitted("data-2", "experience model of 1/2 of the logs", "data-2"),
)
_TRANSFER = (
    Cell("transfer-start", "SFT on the source types", "transfer", ("transfer-source",),
         learns=False),
    Cell("transfer-target", "SFT on the target types", "transfer", ("transfer-target",),
         learns=False),
    Cell("transfer-dream", "GRPO, DreamGym, on the source types", "transfer",
         ("grpo-dream", "transfer-source"), "transfer-start"),
)  # fmt: skip
CELLS = {cell.name: cell for cell in (*_TABLE, *_ABLATIONS, *_TRANSFER)}
"""In the order in which they are worked off: what others begin from stands first."""


@dataclass(frozen=True, slots=True)
class Block:
    """All cells of one data regime and one seed: one process works them off."""

    scale: str
    data: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.data}-{self.seed}"

    def recipes(self, cell: Cell) -> list[Path]:
        """Data, scale, row; after each NAME.toml what is its own at these data or this scale,
        where there is a NAME-DATA.toml or a NAME-SCALE.toml."""
        folder = recipes_dir() / "alfworld"
        paths = []
        for name in (self.data, self.scale, *cell.recipes):
            own = [folder / f"{name}-{kind}.toml" for kind in (self.data, self.scale)]
            paths += [folder / f"{name}.toml", *(path for path in own if path.exists())]
        return paths


def recipes_dir() -> Path:
    """Beside the package where it is installed, at the top of a source checkout."""
    package = Path(dreamgym.__file__).resolve().parent
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if (folder / "alfworld").is_dir():
            return folder
    raise DreamGymError("the recipes are missing from this installation: install dreamgym again")


def choose(only: tuple[str, ...]) -> list[Cell]:
    """Cells by name or by part, in their order; all of them where nothing is named."""
    parts = {cell.part for cell in CELLS.values()}
    for name in only:
        if name not in CELLS and name not in parts:
            raise DreamGymError(
                f"there is no cell or part {name!r}: parts are {', '.join(sorted(parts))}, "
                f"cells are {', '.join(CELLS)}"
            )
    return [c for c in CELLS.values() if not only or c.name in only or c.part in only]
