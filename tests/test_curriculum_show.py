"""`dreamgym curriculum show`: why tasks were chosen, and the tree of what grew."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dreamgym.cli import run
from dreamgym.curriculum.curriculum import Choice
from dreamgym.curriculum.variants import Variant
from dreamgym.report.curriculum import curriculum_data, show_curriculum
from dreamgym.types import DreamGymError, Task

SEED = Task("real/1", "put a mug in shelf")
CHILD = Task("variant/1", "put a hot mug in shelf", parent="real/1", generation=1)
GRANDCHILD = Task("variant/2", "put two hot mug in shelf", parent="variant/1", generation=2)


def grown(task: Task, how: str, step: int, solved_in: int | None = 9) -> dict[str, Any]:
    return Variant(task, how, step, 0.25, solved_in).data()


def run_of(tmp_path: Path, child: Task = CHILD) -> Path:
    """Two steps: a seed and what grew from it, then the variant itself and its own."""
    others = [Task("real/2", "look at pen with the desklamp"), Task("real/3", "put a pan in sink")]
    steps = [
        {"step": 0, "chosen": [Choice(task, None).data() for task in (SEED, *others)],
         "grown": [grown(child, "extra condition", 0)]},
        {"step": 1,
         "chosen": [Choice(SEED, 0.25).data(), Choice(others[0], 0.0).data(),
                    Choice(others[1], 0.1875).data(), Choice(child, None).data()],
         "grown": [grown(GRANDCHILD, "more objects", 1, None)]},
    ]  # fmt: skip
    tmp_path.mkdir(exist_ok=True)
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (tmp_path / "curriculum.jsonl").write_text(lines)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "curriculum.json").write_text(
        '{"refused": {"DUPLICATE": 3, "EMPTY": 0}}'
    )
    return tmp_path


def shown(data: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show_curriculum(data, console)
    return console.export_text()


def test_every_choice_has_its_reason(tmp_path: Path) -> None:
    data = curriculum_data(run_of(tmp_path))
    reasons = {choice["id"]: choice["why"] for choice in data["chosen"]}
    assert reasons["real/1"] == "half solved at its last try"
    assert "floor" in reasons["real/2"] and "partly solved (entropy 0.19" in reasons["real/3"]
    assert reasons["variant/1"] == (
        "variant (extra condition) of 'put a mug in shelf'; not tried yet: counts as half solved"
    )
    assert data["step"] == 1 and data["share"] == 0.25


def test_the_tree_hangs_every_variant_under_its_parent(tmp_path: Path) -> None:
    text = shown(curriculum_data(run_of(tmp_path)))
    tree = text[text.index("\nvariants\n") :].splitlines()[1:]
    depth = {name: next(line.index(name) for line in tree if name in line)
             for name in ("put a mug", "put a hot", "put two hot")}  # fmt: skip
    assert depth["put a mug"] < depth["put a hot"] < depth["put two hot"]
    assert "extra condition, after step 0, solver: 9 turns" in text
    assert "more objects, after step 1)" in text
    assert "2 variants let in; refused: DUPLICATE 3" in text


def test_an_earlier_step_can_be_asked_for(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    first = curriculum_data(folder, 0)
    assert len(first["chosen"]) == 3 and {c["entropy"] for c in first["chosen"]} == {None}
    with pytest.raises(DreamGymError, match="steps are 0 to 1"):
        curriculum_data(folder, 7)


def test_what_a_model_wrote_is_text_and_no_markup(tmp_path: Path) -> None:
    hostile = Task("variant/1", "put [red]a[/] mug [link=file:///x]here", parent="real/1")
    assert "put [red]a[/] mug [link=file:///x]here" in shown(
        curriculum_data(run_of(tmp_path, hostile))
    )


def test_the_command_answers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curriculum", "show", str(run_of(tmp_path)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variants"][1]["task"]["parent"] == "variant/1"


def test_a_run_that_has_chosen_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["curriculum", "show", str(tmp_path)]) == 2
    assert "has chosen no task yet" in capsys.readouterr().err
