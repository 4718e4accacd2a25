"""What a benchmark hands back, as a table and as a small JSON file."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
median = statistics.median
WIDTH = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """Medians and ratios, a row per case; every round that they are taken over; and the rest."""

    rows: Sequence[Row]
    rounds: Sequence[Row]
    notes: Mapping[str, Any] = field(default_factory=dict)


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Four significant digits: more would be noise."""
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}


def publish(name: str, outcome: Outcome, args: argparse.Namespace) -> None:
    """Print the outcome and keep it."""
    rows = [rounded(row) for row in outcome.rows]
    told = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "command": command(),
        "cpu": cpu_model(),
        "threads": args.threads,
        "seed": args.seed,
        "versions": {
            package: version(package) for package in ("dreamgym", "torch", "transformers")
        },
        "notes": outcome.notes,
        "rows": rows,
        "rounds": [rounded(round_) for round_ in outcome.rounds],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told) if args.json else table(rows))


def table(rows: Sequence[Row]) -> str:
    """Columns under their names, or beside them where they would be wider than a terminal."""
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    if sum(map(len, names)) > WIDTH:
        cells = [list(line) for line in zip(*cells, strict=True)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def command() -> str:
    """As one would type it anywhere: of a path outside the repository its name alone."""
    words = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    return " ".join(["python benchmarks/engine.py", *words])


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def alternated(sides: Sequence[str], rounds: int) -> Iterable[tuple[int, str]]:
    """Every side once a round, and another one first each time."""
    for number in range(rounds):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            yield number, side
