"""The benchmarks run, and say what they lack. What they measure is no test's business."""

import json
import math
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "benchmarks" / "engine.py"


def engine(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ENGINE, *args], capture_output=True, text=True)


def test_decoding_is_compared_with_generate(tmp_path):
    small = ("--size", "tiny", "--batch", "1", "--new", "4", "--prompt", "8", "--rounds", "1")
    done = engine("decode", *small, "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (row,) = told["rows"]
    assert all(math.isfinite(row[name]) and row[name] > 0 for name in ("ratio", "ours tok/s"))
    assert {round_["side"] for round_ in told["rounds"]} == {"ours", "generate"}
    assert json.loads((tmp_path / "decode.json").read_text()) == told
    assert str(tmp_path) not in done.stdout  # results hold no path of this machine


def test_without_trl_it_says_how_to_get_it(tmp_path):
    done = engine("trl", "--trl-python", str(tmp_path / "python"), "--out", str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    for line in ("python -m venv", "pip install torch==2.13.0", "pip install trl==1.16.0 datasets"):
        assert line in done.stderr
    assert not list(tmp_path.iterdir())
