"""The command line as a person meets it: help, exit codes, errors in one line."""

import importlib
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dreamgym import cli
from dreamgym.doctor import build_tools
from dreamgym.settings import describe
from dreamgym.types import DreamGymError

PROGRAM = [sys.executable, "-c", "from dreamgym.cli import main; main()"]


def dreamgym(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *args], capture_output=True, text=True, env={**os.environ, **env}, timeout=60
    )


def outcome(capsys, *args: str) -> tuple[int, str, str]:
    code = cli.run(args)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_command(capsys, args):
    code, out, err = outcome(capsys, *args)
    assert code == 0 and err == ""
    for name, (_, summary) in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", out, re.M)


def test_help_loads_no_library_at_all():
    code = "import sys; from dreamgym.cli import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    heavy = {"torch", "transformers", "matplotlib", "pydantic", "numpy", "cyclopts", "rich"}
    assert "dreamgym" in loaded and loaded & heavy == set()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists_and_explains_itself(capsys, name):
    module, _, function = cli.COMMANDS[name][0].partition(":")
    assert getattr(importlib.import_module(module), function).__doc__
    code, out, err = outcome(capsys, name, "--help")
    assert code == 0 and err == "" and f"dreamgym {name}" in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_can_report_in_json(capsys, name):
    assert "--json" in outcome(capsys, name, "--help")[1]


@pytest.mark.parametrize(
    "args",
    [
        ("--api-key", "sk-x"),
        ("train", "--api-key", "sk-x"),
        ("train", "--api-key=sk-x"),
        ("train", "--llm.api_key", "sk-x"),
        ("train", "--token", "sk-x"),
        ("train", "--HF-TOKEN=sk-x"),
        ("train", "--password", "sk-x"),
        ("train", "--openai.secret-key", "sk-x"),
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(capsys, args):  # P102
    code, out, err = outcome(capsys, *args)
    assert code == 2 and "environment variable" in err
    assert "sk-x" not in out + err


@pytest.mark.parametrize("flag", ["--policy.max-tokens", "--tokenizer", "--keys", "--end-token-id"])
def test_flags_that_only_sound_like_secrets_pass(flag):
    assert not cli.SECRET_FLAG.fullmatch(flag)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("evalaute",), "did you mean evaluate?"),
        (("zzz",), "commands: quickstart,"),
        (("version", "--jsno"), "--json"),
        (("version", "extra"), "see dreamgym version --help"),
        (("--nonsense",), "--nonsense"),
        (("doctor", "gpu"), "no extra 'gpu'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(args, words):
    done = dreamgym(*args)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and words in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_where_an_error_came_from():
    done = dreamgym("doctor", "gpu", "--debug")
    assert done.returncode != 0 and "Traceback" in done.stderr
    with pytest.raises(DreamGymError):
        cli.run(["doctor", "gpu", "--debug"])


def interrupted() -> None:
    """A command that a person stops."""
    raise KeyboardInterrupt


def test_an_interrupt_says_how_to_go_on(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "wait", (f"{__name__}:interrupted", "Wait."))
    code, _, err = outcome(capsys, "wait")
    assert code == 130 and "same command goes on" in err


def test_version_in_both_forms(capsys):
    assert outcome(capsys, "version")[1] == outcome(capsys, "--version")[1]
    assert json.loads(outcome(capsys, "version", "--json")[1]).keys() == {"version"}


@pytest.mark.parametrize("command", ["version", "--help"])
def test_a_reader_that_has_seen_enough_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does when it has its lines
    done = subprocess.run([*PROGRAM, command], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.returncode == 0 and done.stderr == b""


def test_the_core_works_where_the_extra_cannot_be_built(capsys, monkeypatch, tmp_path):  # P084
    monkeypatch.setenv("PATH", str(tmp_path))  # no cmake, no compiler
    assert {check.name: check.fix for check in build_tools() if not check.ok} == {
        "cmake": "apt-get install cmake",
        "make": "apt-get install make",
        "C++ compiler": "apt-get install g++",
    }
    code, out, _ = outcome(capsys, "doctor")
    assert code == 0 and "0 required" in out
    code, out, _ = outcome(capsys, "doctor", "alfworld", "--json")
    rows = [row for row in json.loads(out) if row["part"] == "alfworld"]
    assert rows and all(row["required"] for row in rows)
    assert code == (0 if all(row["ok"] for row in rows) else 1)
    assert all("pip install" in row["fix"] for row in rows[:2] if not row["ok"])


def test_doctor_counts_the_games_it_finds(capsys, monkeypatch, tmp_path):
    (tmp_path / "alfworld").mkdir()
    with lzma.open(tmp_path / "alfworld" / "games_valid_seen.jsonl.xz", "wt") as file:
        file.write("{}\n{}\n")
    monkeypatch.setenv("DREAMGYM_DATA", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)  # importing alfworld sets it
    code, out, _ = outcome(capsys, "doctor", "data")
    assert code == 0 and "2 valid_seen" in out
    (tmp_path / "alfworld" / "games_train.jsonl.xz").write_bytes(b"not xz")
    code, out, _ = outcome(capsys, "doctor", "data")
    assert code == 1 and "damaged" in out
    monkeypatch.setenv("DREAMGYM_DATA", str(tmp_path / "typo"))
    code, out, _ = outcome(capsys, "doctor", "data")
    assert code == 1 and "fix: point it at a folder" in out


def test_the_schema_is_printed_in_full_and_resolves_with_flags(capsys, tmp_path):  # P106, P105
    from dreamgym.config import RunConfig

    rows = describe(RunConfig)
    assert [row["path"] for row in json.loads(outcome(capsys, "config", "--json")[1])] == [
        row.path for row in rows
    ]
    text = outcome(capsys, "config")[1]
    assert all(f"--{row.path.replace('_', '-')}  (" in text for row in rows)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("learnign_rate = 1e-6\n")
    code, _, err = outcome(capsys, "config", str(recipe))
    assert code == 2 and "unknown key 'learnign_rate'" in err and "did you mean" in err
    recipe.write_text("")
    row = next(row for row in rows if row.type.startswith("int"))
    flag = f"--{row.path.replace('_', '-')}"
    for start in ((str(recipe),), ()):
        code, out, _ = outcome(capsys, "config", *start, flag, str(row.default), "--json")
        assert code == 0 and json.loads(out)["origins"][row.path] == "flag"
    assert outcome(capsys, "config", flag, "many")[0] == 2


def test_the_package_is_installed_as_a_program():
    program = Path(sys.executable).with_name("dreamgym")
    if not program.exists():
        pytest.skip("dreamgym runs from its source here, it is not installed")
    done = subprocess.run([program, "version"], capture_output=True, text=True)
    assert done.returncode == 0
