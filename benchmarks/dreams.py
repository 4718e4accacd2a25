"""How good dreams of official games get: without parts of what is told, and from fewer logs.

    python benchmarks/dreams.py ablations --runs RUNS
    python benchmarks/dreams.py data-size --runs RUNS

One fit a row, all of as many tokens, from one seed; then next states and rewards of held-out real
transitions, by the model alone, and CR (replayed / real success of three policies on held-out
tasks), both with the true hidden state. A row that is finished in RUNS is not fitted again. Needs
ALFWorld's data.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.audit_job import opened
from dreamgym.audit_parts import AuditConfig, awake
from dreamgym.progress import RichProgress

RECIPE = Path(__file__).parents[1] / "recipes" / "alfworld-grpo.toml"
ABLATIONS: dict[str, list[str]] = {
    "as shipped": [],
    "no reasoning": ["--no-reasoning"],
    "with history": ["--experience.history", "true"],
    "no hidden state": ["--no-hidden-state"],
    "one retrieved transition": ["--experience.k", "1"],
}


def of_episodes(number: int) -> list[str]:
    """The recipe's mix of agents (8 expert, 32 noisy, 5 random) in another number."""
    expert, random = number * 8 // 45, number * 5 // 45
    mix = {"expert": expert, "noisy": number - expert - random, "random": random}
    flags = [flag for name, n in mix.items() for flag in (f"--offline.{name}", str(n))]
    return [*flags, "--clone.demonstrations", str(expert)]


DATA_SIZES = {str(n): of_episodes(n) for n in (125, 250, 500, 1000, 2000, 3500)}
STUDIES = {"ablations": ABLATIONS, "data-size": DATA_SIZES}


def fit(run: Path, flags: Sequence[str], args: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "dreamgym", "fit", str(RECIPE), "--run-dir", str(run)]
    command += ["--fit.num-tokens", str(args.tokens), "--seed", str(args.seed), *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def judged(run: Path, tasks: int) -> dict[str, Any]:
    """What the fit's own audit found, and CR."""
    audit = json.loads((run / "stages" / "audit.json").read_text())
    with opened(run, AuditConfig(episodes=tasks), RichProgress()) as what:
        told = asyncio.run(awake(what, what.dream_with(known=what.truth)))
    rates = {name: audit[name] for name in ("exact", "reward", "false_success", "f1", "faults")}
    return {
        **rates,
        "consistency": told["consistency"],
        "consistency_faults_fail": told["consistency_faults_fail"],
        "policies": told["policies"],
        "fit_seconds": json.loads((run / "stages" / "fit.json").read_text())["seconds"],
    }


def draw(path: Path, study: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for axes, name, title in (
        (left, "exact", "Next state exact, held out"),
        # of the dreams that end alone it is near 1 for every model, however few they are
        (right, "consistency_faults_fail", "Replayed / real, broken-off dreams as failures"),
    ):
        rates = [row[name] for row in rows.values()]
        known = [(at, r) for at, r in zip(rows, rates, strict=True) if r["value"] is not None]
        values = [r["value"] for _, r in known]
        below = [max(0.0, r["value"] - r["low"]) for _, r in known]
        above = [max(0.0, r["high"] - r["value"]) for _, r in known]
        style = "o-" if study == "data-size" else "o"
        axes.errorbar(
            [at.replace(" ", "\n") for at, _ in known], values, [below, above], fmt=style, capsize=3
        )
        axes.set(title=title, ylim=(0, 1.1))
        axes.tick_params(axis="x", labelsize=7)
    if study == "data-size":
        left.set_xlabel("offline episodes")
        right.set_xlabel("offline episodes")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--runs", type=Path, default=Path("runs/dreams"))
    parser.add_argument("--only", nargs="*", help="these rows only")
    parser.add_argument("--tokens", type=int, default=1_500_000)
    parser.add_argument("--tasks", type=int, default=30, help="held-out tasks for CR")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: results/dreams/STUDY.json")
    args = parser.parse_args()
    out = args.out or Path("results/dreams") / f"{args.study}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    told = {name: getattr(args, name) for name in ("tokens", "tasks", "seed")}
    known = json.loads(out.read_text()) if out.exists() else {}
    rows = known.get("rows", {}) if told.items() <= known.items() else {}
    for name, flags in STUDIES[args.study].items():
        if name in rows or (args.only and name not in args.only):
            continue
        run = args.runs / args.study / name.replace(" ", "-")
        fit(run, flags, args)
        rows[name] = judged(run, args.tasks)
        exact, consistency = rows[name]["exact"]["value"], rows[name]["consistency"]["value"]
        shown = "-" if consistency is None else f"{consistency:.3f}"
        print(f"{name:28} exact {exact:.3f}  CR {shown}", flush=True)
        rows = {name: rows[name] for name in STUDIES[args.study] if name in rows}
        made = {"date": datetime.date.today().isoformat(), **told, "rows": rows}
        out.write_text(json.dumps(made, indent=1) + "\n")
    draw(out.with_suffix(".png"), args.study, rows)


if __name__ == "__main__":
    main()
