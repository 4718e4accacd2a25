"""Why a run chose its tasks, and the tree of variants that grew; reads the run folder only."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from dreamgym.metrics_log import read_jsonl
from dreamgym.types import DreamGymError

HALF_SOLVED = 0.25  # the entropy of returns of which half are 1


def curriculum_data(run: Path, step: int | None = None) -> dict[str, Any]:
    """What was chosen at one step (the last by default) and why, and every variant so far."""
    path = run / "curriculum.jsonl"
    steps = list(read_jsonl(path)) if path.exists() else []
    if not steps:
        raise DreamGymError(f"{run} has chosen no task yet: train it first, or check the path")
    if step is not None and step not in {told["step"] for told in steps}:
        last = steps[-1]["step"]
        raise DreamGymError(f"there is no step {step} in {run}: steps are 0 to {last}")
    shown = steps[-1] if step is None else next(told for told in steps if told["step"] == step)
    grown = [variant for told in steps for variant in told["grown"]]
    how = {variant["task"]["id"]: variant["how"] for variant in grown}
    words = {choice["id"]: choice["instruction"] for told in steps for choice in told["chosen"]}
    chosen = [
        {**choice, "why": why(choice, how, words)}
        for choice in sorted(shown["chosen"], key=lambda c: (not c["parent"], -_entropy(c)))
    ]
    return {
        "run": str(run),
        "step": shown["step"],
        "chosen": chosen,
        "share": sum(bool(c["parent"]) for c in chosen) / max(1, len(chosen)),
        "variants": grown,
        "seeds": {v["task"]["parent"]: words.get(v["task"]["parent"], "") for v in grown},
        "refused": _refused(run),
    }


def _entropy(choice: Mapping[str, Any]) -> float:
    known = choice["entropy"]
    return HALF_SOLVED if known is None else known


def why(choice: Mapping[str, Any], how: Mapping[str, str], words: Mapping[str, str]) -> str:
    """One task's reason, in words."""
    entropy = choice["entropy"]
    if entropy is None:
        told = "not tried yet: counts as half solved"
    elif entropy >= HALF_SOLVED - 1e-9:
        told = "half solved at its last try"
    elif entropy > 0:
        told = f"partly solved (entropy {entropy:.2f} of {HALF_SOLVED})"
    else:
        told = "all attempts ended alike: drawn by the floor that keeps every task covered"
    if choice["parent"]:
        seed = words.get(choice["parent"], choice["parent"])
        told = f"variant ({how.get(choice['id'], 'unknown')}) of {seed!r}; {told}"
    return told


def _refused(run: Path) -> dict[str, int]:
    path = run / "policy" / "curriculum.json"
    return json.loads(path.read_text())["refused"] if path.exists() else {}


def show_curriculum(data: Mapping[str, Any], console: Console) -> None:
    """Tables and a tree. What a model wrote is text: it is escaped, and never markup."""
    table = Table(title=f"Step {data['step']}: {len(data['chosen'])} tasks", title_justify="left")
    table.add_column("task")
    table.add_column("entropy", justify="right")
    table.add_column("why")
    for choice in data["chosen"]:
        known = choice["entropy"]
        told = "-" if known is None else f"{known:.2f}"
        table.add_row(escape(choice["instruction"]), told, escape(choice["why"]))
    console.print(table)
    console.print(f"variants at this step: {data['share']:.0%} of its tasks")
    console.print(variant_tree(data))
    kinds = Counter(data["refused"])
    told = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common() if number)
    console.print(f"{len(data['variants'])} variants let in; refused: {told or 'none'}")


def variant_tree(data: Mapping[str, Any]) -> Tree:
    """Seeds, and under each what grew from it."""
    children = defaultdict(list)
    for variant in data["variants"]:
        children[variant["task"]["parent"]].append(variant)
    grown = {variant["task"]["id"] for variant in data["variants"]}
    tree = Tree("variants")

    def hang(branch: Tree, parent: str) -> None:
        for variant in children[parent]:
            solved = variant["solved_in"]
            told = f"{variant['task']['instruction']}  ({variant['how']}, after step "
            told += f"{variant['step']}" + (f", solver: {solved} turns)" if solved else ")")
            hang(branch.add(escape(told)), variant["task"]["id"])

    for parent in children.copy():
        if parent not in grown:
            hang(tree.add(escape(data["seeds"].get(parent) or parent)), parent)
    return tree
