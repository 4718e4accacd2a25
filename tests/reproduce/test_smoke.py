"""The table at a size that learns nothing: every kind of cell runs, and none is run twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dreamgym.progress import NoProgress
from dreamgym.reproduce.command import Request, reproduce_table
from dreamgym.run_folder import RunFolder

CELLS = ("start", "grpo-dream", "grpo-s2r", "fit-no-hidden", "no-hidden")


@pytest.fixture(scope="module")
def table(third_party: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Request]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DREAMGYM_DATA", str(third_party))
        runs = tmp_path_factory.mktemp("runs")
        request = Request("smoke", only=CELLS, backend="fast", runs=runs)
        reproduce_table(request, NoProgress())
        yield request


def test_every_cell_has_its_numbers(table: Request) -> None:
    told = json.loads((table.results_dir / "few-0.json").read_text())
    assert list(told) == list(CELLS)
    for name, cell in told.items():
        assert (cell["part"] == "fit") == (not cell["final"]), name
    dreamt, real = told["grpo-dream"], told["grpo-s2r"]
    assert dreamt["real_transitions_online"] == 0
    assert 0 < real["real_transitions_gate"] < real["real_transitions_online"] <= 40
    assert told["no-hidden"]["audit"] == told["fit-no-hidden"]["audit"] != told["start"]["audit"]
    assert len(told["grpo-dream"]["final"]["fast"]["valid_seen"]["outcomes"]) == 3


def test_a_cell_that_has_its_numbers_needs_no_run_folder(table: Request) -> None:
    """So that a table goes on on another machine."""
    starts = {
        name: RunFolder(table.runs_dir / "few-0" / name).manifest()["resumed"] for name in CELLS
    }
    (table.runs_dir / "few-0").rename(table.runs_dir / "elsewhere")
    reproduce_table(table, NoProgress())
    assert not (table.runs_dir / "few-0").exists()
    (table.runs_dir / "elsewhere").rename(table.runs_dir / "few-0")
    assert set(map(len, starts.values())) == {0}


def test_a_row_without_numbers_is_run_again_and_nothing_else(table: Request) -> None:
    path = table.results_dir / "few-0.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in whole.items() if k != "grpo-s2r"}))
    reproduce_table(table, NoProgress())
    again = json.loads(path.read_text())
    assert again.keys() == whole.keys()
    for split, measured in again["grpo-s2r"]["final"]["fast"].items():
        assert measured["outcomes"] == whole["grpo-s2r"]["final"]["fast"][split]["outcomes"]
    assert {k: again[k] for k in whole if k != "grpo-s2r"} == {
        k: whole[k] for k in whole if k != "grpo-s2r"
    }


def test_the_page_is_there_and_has_no_paths_of_this_machine(table: Request) -> None:
    text = table.page_path.read_text()
    assert "| GRPO, DreamGym S2R |" in text and "without hidden state" in text
    told = (table.results_dir / "few-0.json").read_text()
    for private in (str(Path.home()) + os.sep, str(table.runs_dir)):
        assert private not in told
