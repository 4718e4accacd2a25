"""Imports point down the house, and what must stay light stays light."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPO = Path(__file__).resolve().parents[1]
ROOT = REPO / "src" / "dreamgym"
LAYERS = (
    *(
        "types",
        "settings",
        "run_folder",
        "instructions",
        "llm",
        "agents",
        "envs",
        "replay",
        "metrics_log",
        "ledger",
    ),
    *("experience", "curriculum", "algos", "rollout", "evaluate", "audit"),
    *(
        "gate",
        "config",
        "llms",
        "build",
        "train_metrics",
        "train",
        "progress",
        "job",
        "audit_parts",
        "audit_job",
        "report",
        "reproduce",
        "serve",
    ),
    *("doctor", "commands", "cli", "__main__"),
)
HEAVY = ("torch", "transformers", "tokenizers", "safetensors")


def imported_layers(text: str) -> set[str]:
    """The layers a module names, in `import dreamgym.x`, `from dreamgym.x` or `from dreamgym`."""
    direct = re.findall(r"^\s*(?:from|import) dreamgym\.(\w+)", text, re.M)
    lists = re.findall(r"^\s*from dreamgym import \(?([\w\s,]+)", text, re.M)
    named = {name.split(" as ")[0].strip() for names in lists for name in names.split(",")}
    return set(direct) | (named & set(LAYERS))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if layer == "__init__":
        assert not imported_layers(path.read_text()), "importing dreamgym must load nothing"
        return
    for name in imported_layers(path.read_text()):
        assert LAYERS.index(name) <= LAYERS.index(layer), f"{layer} must not import {name}"


def test_an_import_that_points_up_is_seen_in_every_spelling():
    text = "from dreamgym.cli import run\nimport dreamgym.train\nfrom dreamgym import llm, serve\n"
    assert imported_layers(text) == {"cli", "train", "llm", "serve"}


@pytest.mark.parametrize("module", ["dreamgym", "dreamgym.cli", "dreamgym.commands"])
def test_what_answers_help_loads_no_heavy_library(module):
    unwanted = (*HEAVY, "matplotlib", "pydantic", "numpy")
    assert loaded_by(f"import {module}") & set(unwanted) == set()


def test_settings_and_the_run_folder_load_no_training_library():
    assert loaded_by("import dreamgym.run_folder") & set(HEAVY) == set()


def loaded_by(code: str) -> set[str]:
    """The top-level names of all modules that a fresh interpreter holds after some code."""
    code += "\nimport sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_core_needs_no_training_library_not_even_through_others():  # P114
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    waiting, seen = list(project["dependencies"]), set()
    while waiting:
        need = Requirement(waiting.pop())
        if need.name in seen or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        seen.add(need.name)
        waiting += metadata.requires(need.name) or []
    assert "numpy" in seen
    assert seen & {*HEAVY, "alfworld", "textworld", "spacy"} == set()
