"""What each switch of the fit does to the dream: next-state exact match on held-out games.

    python benchmarks/fit_switches.py --tokens 400000 --seed 0

Generated games, the same offline episodes and the same number of tokens for every row, true hidden
state given. One run a row: a difference of a few points says nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SWITCHES: dict[str, list[str]] = {
    "as shipped": [],
    "no head that copies": ["--model.copying", "false"],
    "AdamW for the matrices too": ["--fit.optimizer", "adamw"],
    "one retrieved transition per action": ["--experience.k", "1"],
}


def exact_match(flags: list[str], tokens: int, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dreamgym", "fit", "--json", "--run-dir", f"{folder}/run"]
        command += ["--fit.num-tokens", str(tokens), "--seed", str(seed), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        stage = Path(folder) / "run" / "stages"
        audit = json.loads((stage / "audit.json").read_text())
        fit = json.loads((stage / "fit.json").read_text())
    rates = {name: round(audit[name]["value"], 4) for name in ("exact", "copied", "reward")}
    return rates | {"transitions": audit["exact"]["total"], "fit_seconds": fit["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fit-switches.json"))
    args = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    for name, flags in SWITCHES.items():
        rows[name] = exact_match(flags, args.tokens, args.seed)
        ratio = rows[name]["exact"] / max(1e-9, rows["as shipped"]["exact"])
        print(f"{name:36} exact {rows[name]['exact']:.3f}  ({ratio:.2f} of as shipped)", flush=True)
        result = {"tokens": args.tokens, "seed": args.seed, "rows": rows}
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
