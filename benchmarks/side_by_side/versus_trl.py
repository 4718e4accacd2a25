"""Ours against TRL on episodes of one shape: rollouts, updates and memory, a process per run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamgym.algos.settings import LearnerConfig
from dreamgym.types import DreamGymError
from side_by_side.ours import SIZES, save_random
from side_by_side.report import Outcome, Row, alternated, median
from side_by_side.shape import Request, Shape

BENCHMARKS = Path(__file__).parents[1]
VENV = BENCHMARKS.parent / ".venv-trl"
HOW_TO = """python -m venv .venv-trl
.venv-trl/bin/pip install torch==2.13.0
.venv-trl/bin/pip install trl==1.16.0 datasets"""
QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0", "TRL_EXPERIMENTAL_SILENCE": "1"}
PHASES = ("rollout_s", "update_s", "rollout_cpu_s", "update_cpu_s")


def run(args: argparse.Namespace) -> Outcome:
    python = args.trl_python or VENV / "bin" / "python"
    if not python.exists():
        raise DreamGymError(
            f"TRL runs in an environment of its own, and there is no {python.name} in"
            f" {'the one given' if args.trl_python else VENV.name}. Make it with\n\n{HOW_TO}\n\n"
            "or name another one's python with --trl-python."
        )
    rows: list[Row] = []
    rounds: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        save_random(SIZES[args.size], Path(folder), args.seed)
        for shape in _shapes(args):
            found = _measure(shape, folder, python, args)
            rounds += found
            rows += _rows(shape, found)
    notes = {"shapes": "groups x attempts, latency of a step", "trl": rounds[-1]["trl"]}
    kept = [{name: value for name, value in round_.items() if name != "trl"} for round_ in rounds]
    return Outcome(rows, kept, notes | {"micro_tokens": _micro(args), "trl_micro": args.trl_micro})


def _shapes(args: argparse.Namespace) -> list[Shape]:
    plain = Shape(turns=args.turns, new=args.new, words=args.words)
    sizes = [tuple(map(int, size.split("x"))) for size in args.shapes]
    return [
        replace(plain, groups=groups, attempts=attempts, latency_s=latency)
        for groups, attempts in sizes
        for latency in args.latency
    ]


def _micro(args: argparse.Namespace) -> int:
    return args.micro_tokens or LearnerConfig().micro_tokens


def _measure(
    shape: Shape, folder: str, python: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    # threads only pay where a world is slow
    modes = ["ours", "env", "rollout", *(["rollout_threads"] if shape.latency_s else [])]
    found = []
    for number, mode in alternated(modes, args.rounds):
        ours = mode == "ours"
        request = Request(
            mode,
            folder,
            shape,
            args.threads,
            args.seed + 1000 * number,
            _micro(args) if ours else args.trl_micro,
            iterations=args.iterations,
        )
        answer = _ask(Path(sys.executable) if ours else python, request)
        print(f"{shape}, round {number + 1}, {mode}: {answer['rollout_s']}", file=sys.stderr)
        told = answer.pop("versions")
        if not ours:
            answer["trl"] = told
        medians = {name: median(values) for name, values in answer.items() if _is_list(values)}
        found.append({"shape": str(shape), "round": number, "mode": mode} | answer | medians)
    last = next(row["trl"] for row in reversed(found) if "trl" in row)
    return [row | {"trl": last} for row in found]


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _ask(python: Path, request: Request) -> dict[str, Any]:
    module = "side_by_side.ours" if request.mode == "ours" else "side_by_side.trl_side"
    done = subprocess.run(
        [str(python.absolute()), "-W", "ignore", "-m", module, request.encode()],
        cwd=BENCHMARKS,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise DreamGymError(f"the side {request.mode!r} broke:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _rows(shape: Shape, found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Each mode's medians, and how many times as much of everything it takes as ours."""
    names = (*PHASES, "sampled", "read", "trained", "imports_mb", "peak_mb", "others")
    medians = {
        mode: {name: median(row[name] for row in found if row["mode"] == mode) for name in names}
        for mode in dict.fromkeys(row["mode"] for row in found)
    }
    ours = medians["ours"]
    return [
        {
            "shape": str(shape),
            "side": mode,
            "rollout s": m["rollout_s"],
            "x ours": m["rollout_s"] / ours["rollout_s"],
            "x ours, cpu": m["rollout_cpu_s"] / ours["rollout_cpu_s"],
            "action tok/s": m["sampled"] / m["rollout_s"],
            "tokens read": m["read"],
            "update s": m["update_s"],
            "update x ours": m["update_s"] / ours["update_s"],
            "update x ours, cpu": m["update_cpu_s"] / ours["update_cpu_s"],
            "tokens trained": m["trained"],
            "update tok/s": m["trained"] / m["update_s"],
            "x ours per token": m["update_s"] / m["trained"] / ours["update_s"] * ours["trained"],
            "episodes/h": 3600 * shape.episodes / (m["rollout_s"] + m["update_s"]),
            "imports MB": m["imports_mb"],
            "peak MB": m["peak_mb"],
            "peak x ours": m["peak_mb"] / ours["peak_mb"],
            "grown x ours": _grown(m) / _grown(ours),
            "others": m["others"],
        }
        for mode, m in medians.items()
    ]


def _grown(measured: Mapping[str, float]) -> float:
    """MB beyond the imports: model, cache, activations."""
    return measured["peak_mb"] - measured["imports_mb"]
