"""A run's results as a table and a figure; reads the run folder only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from dreamgym.metrics_log import read_jsonl


def summary_table(results: Mapping[str, Any]) -> Table:
    """What a run learned: success in the real world and in the dream, and how true the dream is."""
    before, after, audit = results["before"], results["after"], results["audit"]
    table = Table(title="What the policy learned in its dreams", title_justify="left")
    table.add_column("measure")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for world in ("real", "dream"):
        name = "real success, held-out games" if world == "real" else "dream success"
        table.add_row(name, rate_text(before[world]), rate_text(after[world]))
    for kind, (hits, total) in sorted(before["real"]["by_kind"].items()):
        now_hits, now_total = after["real"]["by_kind"].get(kind, (0, 0))
        table.add_row(f"  {kind}", f"{hits}/{total}", f"{now_hits}/{now_total}")
    turns = [r["real"]["mean_turns"] for r in (before, after)]
    table.add_row("mean turns, real", *("-" if n is None else f"{n:.1f}" for n in turns))
    table.add_section()
    exact, copied = audit["exact"], audit["copied"]
    table.add_row("next-state exact match, true hidden state", "", f"{exact['value']:.1%}")
    table.add_row("  copying the last state instead", "", f"{copied['value']:.1%}")
    table.add_row("reward and end both right", "", f"{audit['reward']['value']:.1%}")
    dream = results["dream"]
    table.add_row("real transitions offline", "", f"{results['collect']['transitions']:,}")
    table.add_row("real transitions used online", "", f"{dream['real_transitions_online']:,}")
    return table


def rate_text(data: Mapping[str, Any]) -> str:
    if not data["episodes"]:
        return "nothing but faults"
    return f"{data['success']:.1%} [{data['low']:.1%}, {data['high']:.1%}] n={data['episodes']}"


def verdict(results: Mapping[str, Any]) -> str:
    """Whether dreaming helped in the real world, in one line, whichever way it went."""
    before, after = results["before"]["real"], results["after"]["real"]
    if not before["episodes"] or not after["episodes"]:
        return "nothing was measured in the real world: every episode was a fault"
    gain = after["success"] - before["success"]
    half = max(before["half_width"], after["half_width"])
    if gain > half:
        return f"better in the real world by {gain:+.1%}, more than the half-width of {half:.1%}"
    if gain < -half:
        return f"worse in the real world by {gain:+.1%}, more than the half-width of {half:.1%}"
    return f"no clear change in the real world: {gain:+.1%} within the half-width of {half:.1%}"


def write_figure(run: Path, results: Mapping[str, Any]) -> Path:
    """Success over the steps of dream training, between the real measurements before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = list(read_jsonl(run / "metrics.jsonl"))
    steps = [row["step"] + 1 for row in rows]
    world = "dream" if rows and "dream/train_success" in rows[0] else "real"
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(2, 1))
    left.plot(
        steps, [row[f"{world}/train_success"] for row in rows], label=f"{world}, training episodes"
    )
    left.plot(
        steps,
        [row["train/informative_groups"] for row in rows],
        label="groups with unequal returns",
        color="0.6",
        linewidth=1,
    )
    ends = [0, steps[-1] if steps else 0]
    for name, marker in (("real", "o"), ("dream", "s")):
        measured = [results[stage][name] for stage in ("before", "after")]
        at = [end for end, d in zip(ends, measured, strict=True) if d["episodes"]]
        data = [d for d in measured if d["episodes"]]
        rates = [d["success"] for d in data]
        errors = [[d["success"] - d["low"] for d in data], [d["high"] - d["success"] for d in data]]
        left.errorbar(at, rates, yerr=errors, fmt=marker, capsize=3, label=f"{name}, measured")
    left.set(xlabel="step", ylabel="share", ylim=(0, 1), title="Training in the dream")
    left.legend(fontsize=8)
    audit = results["audit"]
    names = ["copied", "exact", "reward"]
    labels = ["last state\nagain", "next state\nexact", "reward, end\nright"]
    right.bar(labels, [audit[name]["value"] for name in names], color=["0.7", "C0", "C2"])
    right.set(ylim=(0, 1), title="The dream on held-out games")
    figure.tight_layout()
    path = run / "figure.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def load_results(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())
