"""The page about the table: every number from the saved cells, every claim with its verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.reproduce.figures import draw
from dreamgym.reproduce.plan import CELLS, START, Cell
from dreamgym.reproduce.stats import Estimate, Outcomes, difference, outcomes_of, reached, success

PAPER = {
    "start": 71.8,
    "dpo": 61.1,
    "grpo-real": 79.8,
    "grpo-dream": 71.0,
    "grpo-s2r": 82.4,
    "ppo-real": 81.1,
    "ppo-dream": 72.7,
    "ppo-s2r": 79.9,
}
"""The paper's Table 1, ALFWorld, Qwen2.5-7B-Instruct; one run, no intervals."""
WORKERS = 2  # of ALFWorld's engine, at once
MARGIN = 0.056
"""By which sim-to-real beats real-world RL in the paper (WebShop, PPO: 73.7 against 68.1)."""


@dataclass(frozen=True, slots=True)
class Results:
    """The saved cells of one scale: data regime -> cell name -> seed -> what was found."""

    scale: str
    cells: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]]

    @classmethod
    def load(cls, folder: Path, scale: str) -> Results:
        found: dict[str, dict[str, dict[int, Any]]] = {}
        for path in sorted(folder.glob("*-*.json")):
            data, _, seed = path.stem.partition("-")
            for name, cell in json.loads(path.read_text()).items():
                if name in CELLS:  # cells that the plan no longer has
                    found.setdefault(data, {}).setdefault(name, {})[int(seed)] = cell
        return cls(scale, found)

    def row(self, data: str, name: str) -> Mapping[int, Mapping[str, Any]]:
        return self.cells.get(data, {}).get(name, {})

    def backend(self, data: str, name: str) -> str:
        """ALFWorld's engine where all of a row's seeds were measured in it, else ours."""
        row = self.row(data, name).values()
        return "engine" if row and all("engine" in cell["final"] for cell in row) else "fast"

    def outcomes(self, data: str, name: str) -> Outcomes:
        return outcomes_of(self.row(data, name), self.backend(data, name))

    def seconds(self, data: str, name: str) -> list[float]:
        """What training took, seed by seed, without measuring: seconds of the processor, since
        cells share the cores."""
        row = [cell for cell in self.row(data, name).values() if timed(cell)]
        return [sum(step["time/cpu_s"] for step in cell["curve"]) for cell in row]

    def engine_turn_s(self) -> float | None:
        """What a turn of training takes in ALFWorld's engine, its share of loading the game
        included: as measured in the last pass, its workers at work at once."""
        told = [
            split["costs"]["load_s"] / split["mean_turns"] + split["costs"]["step_s"]
            for rows in self.cells.values()
            for row in rows.values()
            for cell in row.values()
            for split in cell["final"].get("engine", {}).values()
            if split["mean_turns"]
        ]
        return _mean(told) / WORKERS if told else None


def write_page(folder: Path, path: Path, scale: str) -> dict[str, Any]:
    """The page and its figure from the saved cells; returns what was written."""
    results = Results.load(folder, scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = {data: path.with_name(f"{path.stem}-{data}.png") for data in results.cells}
    for data, figure in figures.items():
        draw(figure, results, data)
    parts = [_head(results, folder), *(_regime(results, d, figures[d].name) for d in figures)]
    path.write_text("\n\n".join(part for part in parts if part) + "\n")
    return {"page": str(path), "text": f"written: {path}", "cells": _count(results)}


def _count(results: Results) -> dict[str, int]:
    return {d: sum(map(len, rows.values())) for d, rows in results.cells.items()}


def _head(results: Results, folder: Path) -> str:
    every = [c for rows in results.cells.values() for row in rows.values() for c in row.values()]
    commits = sorted({(cell["commit"] or "unknown")[:7] for cell in every})
    days = sorted({cell["started"][:10] for cell in every})
    platforms = sorted({cell["platform"] for cell in every})
    when = f"{days[0]} to {days[-1]}" if days else "never"
    return f"""\
# The paper's table on official ALFWorld, scale `{results.scale}`

Written by `dreamgym reproduce alfworld --scale {results.scale}` from `{folder}`; the same command
runs what is missing. Cells ran {when}, commits {", ".join(commits)}, on {"; ".join(platforms)}, one
thread each. Success is on the 134 games of `valid_unseen` and the 140 of `valid_seen` together
(temperature 0.4), the mean of the seeds with a 95 % interval over seeds and games (two-level
bootstrap); with fewer than three seeds the interval is narrower than it should be. `*` marks rows
that were measured in our engine only, and not yet in ALFWorld's own.""".strip()


REGIMES = {
    "few": "Few demonstrations: 200 expert episodes, 2,000 noisy and random ones",
    "full": "The paper's mix: 3,200 expert episodes, 2,000 noisy and random ones",
}


def _regime(results: Results, data: str, figure: str) -> str:
    parts = [
        f"## {REGIMES.get(data, data)}",
        _table(results, data),
        f"![success against real transitions, wall-clock, ablations, curriculum]({figure})",
        "\n".join(["### What the paper claims, here", "", *_claims(results, data)]),
        _ablations(results, data),
        _transfer(results, data),
        _dreams(results, data),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(results: Results, data: str) -> str:
    lines = [
        "| row | real transitions offline | online | success, % | unseen / seen | training, s |"
        " seeds | paper, 7B |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for cell in CELLS.values():
        if cell.part == "table" and results.row(data, cell.name):
            lines.append(_line(results, data, cell))
    return "\n".join(lines)


def _line(results: Results, data: str, cell: Cell) -> str:
    row = results.row(data, cell.name)
    outcomes = results.outcomes(data, cell.name)
    star = "" if results.backend(data, cell.name) == "engine" else "\\*"
    total = str(success(outcomes)) if outcomes else "-"
    splits = " / ".join(
        f"{100 * success({seed: [told[i]] for seed, told in outcomes.items()}).mean:.1f}"
        for i in range(2)
    )
    offline = _mean(c["offline_transitions"] for c in row.values())
    online = _mean(_online(results, data, cell, seed) for seed in row)
    seconds = _mean(results.seconds(data, cell.name)) if cell.learns else 0.0
    paper = PAPER.get(cell.name)
    return (
        f"| {cell.label} | {offline:,.0f} | {online:,.0f} | {total}{star} | {splits} "
        f"| {seconds:,.0f} | {len(row)} | {'' if paper is None else paper} |"
    )


def _online(results: Results, data: str, cell: Cell, seed: int) -> float:
    """Of the cell and of all it begins from."""
    told = results.row(data, cell.name).get(seed)
    if told is None:
        return 0
    before = _online(results, data, CELLS[cell.init], seed) if cell.init else 0
    return before + told["real_transitions_online"]


def _mean(values: Any) -> float:
    told = list(values)
    return sum(told) / len(told) if told else 0.0


def _claims(results: Results, data: str) -> Iterator[str]:
    for name in ("grpo", "ppo"):
        upper = name.upper()
        dream, real, s2r = (results.outcomes(data, f"{name}-{k}") for k in ("dream", "real", "s2r"))
        if told := difference(dream, real):
            verdict = ("within the interval of it", "more", "less")[told.clear]
            yield (
                f"- **DreamGym with 0 online transitions reaches real-world RL ({upper})**: "
                f"{verdict}, difference {told} points."
            )
        if told := difference(s2r, real):
            yield (
                f"- **Sim-to-real beats real-world RL by {100 * MARGIN:.1f} points with a tenth of "
                f"its transitions ({upper})**: {_margin(told)}, difference {told}, "
                f"{_share(results, data, name):.0%} of the transitions."
            )
        start = results.outcomes(data, START)
        if told := difference(dream, start):
            base = success(start).mean
            verdict = "reached" if told.mean > 0 and told.mean >= 0.3 * base else "not reached"
            relative = f"{told.mean / base:+.0%}, " if base else ""
            yield (
                f"- **DreamGym beats SFT by 30 % relative ({upper})**: {verdict}, {relative}"
                f"difference {told} points."
            )
        yield from _clock(results, data, name)


def _margin(told: Estimate) -> str:
    if told.mean >= MARGIN:
        return "reached" if told.clear > 0 else "reached on average, within noise of nothing"
    return "not reached"


def _share(results: Results, data: str, name: str) -> float:
    s2r, real = (CELLS[f"{name}-{kind}"] for kind in ("s2r", "real"))
    return _mean(_online(results, data, s2r, s) for s in results.row(data, s2r.name)) / max(
        1.0, _mean(_online(results, data, real, s) for s in results.row(data, real.name))
    )


def _clock(results: Results, data: str, name: str) -> Iterator[str]:
    """Wall-clock until the dream's curve reaches what real-world RL ended with, or the other way
    round, whichever is lower."""
    dream, real = (curve_of(results, data, f"{name}-{kind}") for kind in ("dream", "real"))
    if not dream or not real:
        return
    level = min(dream[-1][1], real[-1][1])
    times = reached(dream, level), reached(real, level)
    turn_s = results.engine_turn_s()
    if times[0] is None or times[1] is None:
        return
    fit = _mean(cell["seconds"].get("fit", 0.0) for cell in results.row(data, START).values())
    told = (
        f"- **Wall-clock to equal success ({name.upper()}, {level:.1%})**: dream "
        f"{times[0]:,.0f} s, and {fit:,.0f} s once for the fit; our engine {times[1]:,.0f} s"
    )
    if turn_s is not None:
        used = reached([(x, y) for _, y, x in points(results, data, f"{name}-real")], level)
        engine = times[1] + (used or 0.0) * turn_s
        told += (
            f"; ALFWorld's engine {engine:,.0f} s (computed: {turn_s:.3f} s a turn with two "
            f"workers, loading included). Dream / ALFWorld's engine {times[0] / engine:.2f}, "
            f"with the fit {(times[0] + fit) / engine:.2f}; dream / our engine "
            f"{times[0] / max(times[1], 1e-9):.1f}"
        )
    yield told + "."


def timed(cell: Mapping[str, Any]) -> bool:
    """Whether its updates told their processor time, which older cells did not."""
    return all("time/cpu_s" in step for step in cell["curve"])


def points(results: Results, data: str, name: str) -> list[tuple[float, float, float]]:
    """(seconds, success on held-out games, real transitions) over training, means of the seeds."""
    curves = []
    for seed, cell in sorted(results.row(data, name).items()):
        if not timed(cell):
            continue
        before = cell.get("before") or results.row(data, START)[seed]["before"]
        told = [(0.0, before["real"]["success"], 0.0)]
        clock = 0.0
        for step in cell["curve"]:
            clock += step["time/cpu_s"]
            if "real/success" in step:
                told.append((clock, step["real/success"], step.get("real/transitions", 0.0)))
        curves.append(told)
    length = min(map(len, curves), default=0)
    return [
        (
            _mean(curve[i][0] for curve in curves),
            _mean(curve[i][1] for curve in curves),
            _mean(curve[i][2] for curve in curves),
        )
        for i in range(length)
    ]


def curve_of(results: Results, data: str, name: str) -> list[tuple[float, float]]:
    """(seconds, success)"""
    return [(seconds, rate) for seconds, rate, _ in points(results, data, name)]


def _ablations(results: Results, data: str) -> str:
    whole = results.outcomes(data, "grpo-dream")
    lines = []
    for cell in CELLS.values():
        outcomes = results.outcomes(data, cell.name) if cell.part == "ablation" else {}
        told = difference(outcomes, whole) if outcomes and whole else None
        if told is not None:
            verdict = ("no difference beyond noise", "better", "worse")[told.clear]
            lines.append(
                f"| {cell.label} | {success(outcomes)} | {told} | {verdict} | {told.seeds} |"
            )
    if not lines:
        return ""
    head = ["### Ablations of the dream (GRPO)", "",
            "| | success, % | minus the whole system's | | seeds |",
            "| --- | ---: | ---: | --- | ---: |"]  # fmt: skip
    return "\n".join([*head, *lines])


def _transfer(results: Results, data: str) -> str:
    lines = [
        f"| {cell.label} | {success(outcomes)} | {len(outcomes)} |"
        for cell in CELLS.values()
        if cell.part == "transfer" and (outcomes := results.outcomes(data, cell.name))
    ]
    if not lines:
        return ""
    head = ["### Transfer: learnt on put, look, clean and heat; measured on cool and two", "",
            "| | success on cool and two, % | seeds |", "| --- | ---: | ---: |"]  # fmt: skip
    return "\n".join([*head, *lines])


def _dreams(results: Results, data: str) -> str:
    """How true the experience models are, and what the curriculum let in."""
    lines = []
    for name, row in results.cells[data].items():
        fitted = CELLS[name].part == "fit" or not CELLS[name].init
        if fitted and all(cell["audit"] for cell in row.values()):
            exact = _mean(cell["audit"]["exact"]["value"] for cell in row.values())
            lines.append(
                f"- {CELLS[name].label}: next state exact {exact:.1%} (seeds: {len(row)})."
            )
    for name in ("grpo-dream", "ppo-dream"):
        for seed, cell in results.row(data, name).items():
            dream = cell["dream"]
            refused = ", ".join(f"{kind} {n}" for kind, n in dream["refused"].items() if n)
            lines.append(
                f"- {CELLS[name].label}, seed {seed}: {dream['variants']} variants let in; "
                f"refused: {refused or 'none'}. Faults: "
                + ", ".join(f"{kind} {n:,}" for kind, n in dream["faults"].items())
                + (f". Alarm: {told}" if (told := _alarm(cell)) else ".")
            )
    return "\n".join(["### The dreams", "", *lines]) if lines else ""


def _alarm(cell: Mapping[str, Any]) -> str:
    steps = [str(step["step"] + 1) for step in cell["curve"] if step.get("alarm")]
    return f"dream and real success diverged at update {', '.join(steps)}" if steps else ""
