"""The page's figure: success against what it cost, ablations, and the curriculum's worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.reproduce.plan import CELLS
from dreamgym.reproduce.stats import success

if TYPE_CHECKING:
    from dreamgym.reproduce.page import Results

COLOURS = {"real": "C3", "dream": "C0", "s2r": "C2"}
MARKS = {"grpo": "o", "ppo": "s"}


def draw(path: Path, results: Results, data: str) -> None:
    """Four panels; those without data stay empty and say so."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(12, 8.5))
    _against_transitions(axes[0][0], results, data)
    _against_clock(axes[0][1], results, data)
    _ablations(axes[1][0], results, data)
    _curriculum(axes[1][1], results, data)
    for axis in axes.flat:
        if not axis.has_data():
            axis.text(0.5, 0.5, "not run yet", ha="center", transform=axis.transAxes, color="0.5")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bar(axis: Any, x: float, told: Any, **style: Any) -> None:
    errors = [[told.mean - told.low], [told.high - told.mean]]
    axis.errorbar([x], [told.mean], yerr=errors, capsize=3, **style)


def _against_transitions(axis: Any, results: Results, data: str) -> None:
    for name in ("grpo", "ppo"):
        for kind in ("real", "dream", "s2r"):
            row = results.row(data, f"{name}-{kind}")
            outcomes = results.outcomes(data, f"{name}-{kind}")
            if outcomes:
                used = sum(c["real_transitions_online"] for c in row.values()) / len(row)
                _bar(axis, used, success(outcomes), fmt=MARKS[name], color=COLOURS[kind],
                     label=CELLS[f"{name}-{kind}"].label)  # fmt: skip
    for name, style in (("start", "-"), ("dpo", ":")):
        if outcomes := results.outcomes(data, name):
            axis.axhline(success(outcomes).mean, ls=style, color="0.5", label=CELLS[name].label)
    axis.set(xlabel="real transitions online", ylabel="success, both splits",
             title="Success against real transitions")  # fmt: skip
    if axis.has_data():
        axis.set_xscale("symlog", linthresh=1000)
        axis.legend(fontsize=7)


def _against_clock(axis: Any, results: Results, data: str) -> None:
    from dreamgym.reproduce.page import points

    turn_s = results.engine_turn_s()
    for name in ("grpo", "ppo"):
        for kind in ("dream", "real"):
            curve = points(results, data, f"{name}-{kind}")
            if not curve:
                continue
            rates = [rate for _, rate, _ in curve]
            style = {"color": COLOURS[kind], "marker": MARKS[name], "ms": 4}
            label = f"{name.upper()}, {'dream' if kind == 'dream' else 'our engine'}"
            axis.plot([s for s, _, _ in curve], rates, label=label, **style)
            if kind == "real" and turn_s is not None:
                clock = [s + used * turn_s for s, _, used in curve]
                label = f"{name.upper()}, ALFWorld's engine (computed)"
                axis.plot(clock, rates, ls="--", label=label, **style)
    axis.set(xlabel="training, s (without the fit)", ylabel="success, valid_unseen",
             title="Success against wall-clock")  # fmt: skip
    if axis.has_data():
        axis.legend(fontsize=7)


def _ablations(axis: Any, results: Results, data: str) -> None:
    rows = ["grpo-dream", *(c.name for c in CELLS.values() if c.part == "ablation")]
    found = {name: results.outcomes(data, name) for name in rows}
    known = {name: success(outcomes) for name, outcomes in found.items() if outcomes}
    if len(known) < 2:
        return
    for place, told in enumerate(known.values()):
        axis.barh(place, told.mean, color="C0" if place == 0 else "0.7",
                  xerr=[[told.mean - told.low], [told.high - told.mean]], capsize=3)  # fmt: skip
    axis.set_yticks(range(len(known)), [CELLS[name].label for name in known], fontsize=7)
    axis.invert_yaxis()
    axis.set(xlabel="success, both splits", title="Ablations")


def _curriculum(axis: Any, results: Results, data: str) -> None:
    from dreamgym.reproduce.page import points

    for name, label in (("grpo-dream", "with task generation"), ("no-tasks", "without")):
        curve = points(results, data, name)
        if curve:
            row = next(iter(results.row(data, name).values()))
            steps = [0, *(s["step"] + 1 for s in row["curve"] if "real/success" in s)]
            axis.plot(steps[: len(curve)], [rate for _, rate, _ in curve], marker="o", label=label)
    axis.set(
        xlabel="update", ylabel="success, valid_unseen", title="Curriculum against none (GRPO)"
    )
    if axis.has_data():
        axis.legend(fontsize=8)
