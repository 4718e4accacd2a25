"""The table, the verdict and the figure, also of runs in which nothing went well."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dreamgym.evaluate import Evaluation, Rate
from dreamgym.job import as_data
from dreamgym.report.summary import summary_table, verdict, write_figure
from dreamgym.run_folder import write_json


def measured(hits: int, total: int) -> dict[str, Any]:
    rate = Rate(hits, total)
    kinds = {"simple": rate} if total else {}
    turns = 12.5 if total else math.nan
    return as_data(Evaluation(rate, kinds, Counter(done=hits), turns, {}))


def run_with(before: tuple[int, int], after: tuple[int, int]) -> dict[str, Any]:
    share = {"hits": 3, "total": 4, "value": 0.75}
    return {
        "collect": {"transitions": 100},
        "audit": {"exact": share, "copied": share, "reward": share},
        "before": {"real": measured(*before), "dream": measured(*before)},
        "dream": {"real_transitions_online": 0},
        "after": {"real": measured(*after), "dream": measured(*after)},
    }


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((0, 6), (0, 6), "no clear change"),
        ((6, 6), (0, 6), "worse in the real world"),
        ((10, 100), (60, 100), "better in the real world"),
        ((0, 0), (3, 6), "every episode was a fault"),
        ((3, 6), (0, 0), "every episode was a fault"),
    ],
)
def test_any_run_can_be_reported(
    before: tuple[int, int], after: tuple[int, int], said: str, tmp_path: Path
) -> None:
    results = run_with(before, after)
    write_json(tmp_path / "summary.json", results)  # which refuses NaN
    results = json.loads((tmp_path / "summary.json").read_text())
    console = Console(width=120, record=True, quiet=True)
    console.print(summary_table(results))
    assert said in verdict(results)
    (tmp_path / "metrics.jsonl").write_text("")
    assert write_figure(tmp_path, results).stat().st_size > 1000
