"""The page says what the saved cells say, and nothing that they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dreamgym.reproduce.page import Results, curve_of, write_page
from dreamgym.reproduce.plan import CELLS


def rate(letters: str) -> dict[str, Any]:
    hits = letters.count("1")
    return {"hits": hits, "episodes": len(letters), "success": hits / len(letters),
            "mean_turns": 10.0, "outcomes": letters,
            "costs": {"load_s": 1.0, "step_s": 0.1}}  # fmt: skip


def cell(name: str, solved: float, *, online: int = 0, **more: Any) -> dict[str, Any]:
    """A finished cell that solves such a share of a hundred games in each split."""
    letters = "1" * round(100 * solved) + "0" * round(100 * (1 - solved))
    final = {split: rate(letters) for split in ("valid_unseen", "valid_seen")}
    step = {"time/cpu_s": 10.0, "dream/train_success": 0.5, "real/transitions": online}
    curve = [{"step": 0, **step, "real/success": (0.5 + solved) / 2}, {"step": 1, **step},
             {"step": 2, **step, "real/success": solved}]  # fmt: skip
    return {
        "label": CELLS[name].label, "part": CELLS[name].part, "settings": {}, "stopped": "",
        "started": "2026-12-03T10:00:00+0000", "commit": "0123456789", "platform": "Linux",
        "begins_from": CELLS[name].init, "seconds": {"fit": 100.0}, "offline_transitions": 20000,
        "real_transitions_online": online, "real_transitions_gate": 0, "audit": None,
        "before": {"real": {"success": 0.5}}, "after": None,
        "dream": {"variants": 3, "refused": {"DUPLICATE": 2}, "faults": {"INCONSISTENT": 7}},
        "curve": curve if CELLS[name].learns else [], "final": {"fast": final}, **more,
    }  # fmt: skip


def saved(folder: Path, cells: dict[str, dict[str, Any]], block: str = "few-0") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{block}.json").write_text(json.dumps(cells))
    return folder


def page_of(folder: Path) -> str:
    write_page(folder, folder / "page.md", "cpu")
    assert (folder / "page-few.png").stat().st_size > 10_000
    return (folder / "page.md").read_text()


def test_the_table_has_means_and_transitions_of_all_a_row_begins_from(tmp_path: Path) -> None:
    cells = {
        "start": cell("start", 0.4),
        "grpo-dream": cell("grpo-dream", 0.6),
        "grpo-real": cell("grpo-real", 0.5, online=20_000),
        "grpo-s2r": cell("grpo-s2r", 0.7, online=1_500),
    }
    text = page_of(saved(tmp_path / "r", cells))
    row = next(line for line in text.splitlines() if line.startswith("| GRPO, DreamGym S2R"))
    assert "| 1,500 | 70.0 [" in row and "70.0 / 70.0" in row and row.endswith("| 82.4 |")
    assert "reaches real-world RL (GRPO)**: more, difference 10.0 [" in text
    assert "a tenth of its transitions (GRPO)**: reached, difference 20.0 [" in text
    assert "8% of the transitions" in text
    assert "30 % relative (GRPO)**: reached, +50%, difference 20.0 [" in text


def test_what_is_not_reached_is_said(tmp_path: Path) -> None:
    cells = {
        "start": cell("start", 0.5),
        "grpo-dream": cell("grpo-dream", 0.4),
        "grpo-real": cell("grpo-real", 0.6, online=20_000),
        "grpo-s2r": cell("grpo-s2r", 0.6, online=1_500),
        "no-tasks": cell("no-tasks", 0.55),
        "no-replay": cell("no-replay", 0.2),
    }
    text = page_of(saved(tmp_path / "r", cells))
    assert "reaches real-world RL (GRPO)**: less, difference -20.0" in text
    assert "its transitions (GRPO)**: not reached" in text
    assert "30 % relative (GRPO)**: not reached, -20%" in text
    ablated = [line for line in text.splitlines() if line.startswith("| without")]
    assert ["better" in ablated[0], "worse" in ablated[1]] == [True, True]


def test_seeds_are_averaged_and_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "r", {"start": cell("start", 0.4)})
    saved(folder, {"start": cell("start", 0.6)}, "few-1")
    row = next(line for line in page_of(folder).splitlines() if line.startswith("| SFT"))
    assert "| 50.0 [" in row and "| 2 | 71.8 |" in row


def test_a_row_counts_as_the_engines_only_when_every_seed_was_measured_there(
    tmp_path: Path,
) -> None:
    measured = cell("start", 0.4)
    measured["final"]["engine"] = {s: rate("1" * 100) for s in ("valid_unseen", "valid_seen")}
    folder = saved(tmp_path / "r", {"start": measured})
    assert "| 100.0 [100.0, 100.0] |" in page_of(folder)
    saved(folder, {"start": cell("start", 0.4)}, "few-1")
    row = next(line for line in page_of(folder).splitlines() if line.startswith("| SFT"))
    assert "| 40.0 [" in row and "\\*" in row


def test_the_clock_is_read_off_the_curves(tmp_path: Path) -> None:
    engine = cell("start", 0.4)
    told = {
        s: rate("1" * 40 + "0" * 60) | {"costs": {"load_s": 1.0, "step_s": 0.1}}
        for s in ("valid_unseen", "valid_seen")
    }
    engine["final"]["engine"] = told  # 100 s more for 1,000 turns
    cells = {"start": engine, "grpo-dream": cell("grpo-dream", 0.7),
             "grpo-real": cell("grpo-real", 0.7, online=3_000)}  # fmt: skip
    folder = saved(tmp_path / "r", cells)
    results = Results.load(folder, "cpu")
    assert results.engine_turn_s() == pytest.approx(0.1)
    assert curve_of(results, "few", "grpo-dream") == [
        (0.0, 0.5), (10.0, pytest.approx(0.6)), (30.0, pytest.approx(0.7))
    ]  # fmt: skip
    text = page_of(folder)
    assert "dream 30 s, and 100 s once for the fit; our engine 30 s" in text
    assert "ALFWorld's engine 330 s" in text and "dream / our engine 1.0" in text


def test_cells_that_the_plan_has_no_longer_are_left_out(tmp_path: Path) -> None:
    folder = saved(tmp_path / "r", {"start": cell("start", 0.4), "old-idea": {}})
    assert "old-idea" not in page_of(folder)


def test_a_model_cannot_write_on_the_page(tmp_path: Path) -> None:
    """Counts and letters only: no text of a task or a state reaches it."""
    hostile = cell("grpo-dream", 0.5)
    hostile["curve"][0]["instruction"] = "<script>"
    assert "<script>" not in page_of(saved(tmp_path / "r", {"grpo-dream": hostile}))
