"""The run folder: resumed only by its own run, written by one process, never lost."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager

import pytest

from dreamgym.run_folder import RunFolder, open_run, write_atomic, write_json
from dreamgym.settings import Settings, config_digest, leaves
from dreamgym.types import DreamGymError


class PolicyConfig(Settings):
    size: int = 3
    """Of it."""


class Sample(Settings):
    steps: int = 10
    """Updates."""
    policy: PolicyConfig = PolicyConfig()


ORIGINS = dict.fromkeys([path for path, _ in leaves(Sample)], "default")


def start(path, settings=None, **options):
    return open_run(path, settings or Sample(), ORIGINS, **options)


def refusal(path, settings=None, **options):
    with pytest.raises(DreamGymError) as error, start(path, settings, **options):
        pass
    return str(error.value)


def test_a_new_run_says_what_it_is(tmp_path):
    with start(tmp_path / "a" / "run", seed=7) as folder:
        manifest = folder.manifest()
    assert manifest["seed"] == 7
    assert manifest["config_digest"] == config_digest(Sample())
    assert manifest["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"dreamgym", "commit", "platform", "torch", "started"} <= manifest.keys()
    text = (folder.path / "config.toml").read_text()
    assert "steps = 10  # default\n" in text
    assert tomllib.loads(text) == {"steps": 10, "policy": {"size": 3}}


def test_a_resumed_run_knows_its_finished_stages(tmp_path):
    with start(tmp_path) as folder:
        assert not folder.stage_done("fit")
        folder.mark_stage("fit", {"exact": 0.9, "games": ["é"]})
    with start(tmp_path) as folder:
        assert folder.stage_done("fit") and not folder.stage_done("train")
        assert folder.stage_data("fit") == {"exact": 0.9, "games": ["é"]}
        assert len(folder.manifest()["resumed"]) == 1


def test_another_config_does_not_resume_and_is_told_the_difference(tmp_path):
    with start(tmp_path):
        pass
    message = refusal(tmp_path, Sample(steps=11, policy=PolicyConfig(size=4)))
    assert "steps was 10, is 11; policy.size was 3, is 4" in message
    assert "--fresh" in message and "another folder" in message
    assert "seed was 0, is 1" in refusal(tmp_path, seed=1)
    with start(tmp_path):  # the refused ones changed nothing
        pass


def test_another_config_is_refused_even_if_the_old_one_cannot_be_read(tmp_path):
    with start(tmp_path):
        pass
    (tmp_path / "config.toml").write_text("steps = ")
    assert "gone or damaged" in refusal(tmp_path, Sample(steps=11))


def test_fresh_moves_the_old_run_aside_and_keeps_every_file(tmp_path):
    path = tmp_path / "run"
    for number in range(3):
        with start(path, Sample(steps=number), fresh=True) as folder:
            assert not folder.stage_done("fit")
            folder.mark_stage("fit", {"number": number})
    kept = sorted(tmp_path.glob("run.old-*"))
    assert len(kept) == 2
    assert {RunFolder(old).stage_data("fit")["number"] for old in kept} == {0, 1}
    assert RunFolder(path).stage_data("fit") == {"number": 2}


def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for fresh in (False, True):
        assert "no run folder" in refusal(tmp_path, fresh=fresh)
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    assert "no run folder" in refusal(tmp_path, fresh=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json", "thesis.txt"]
    assert "is a file" in refusal(tmp_path / "thesis.txt")


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "disk" / "run").mkdir(parents=True)
    link = tmp_path / "run"
    link.symlink_to(tmp_path / "disk" / "run")
    for _ in range(2):
        with start(link, fresh=True):
            pass
    assert link.is_symlink() and len(list((tmp_path / "disk").iterdir())) == 2


HOLDER = """
import sys, time, os
from pathlib import Path
from dreamgym.run_folder import open_run
from dreamgym.settings import Settings
class Sample(Settings):
    steps: int = 10
with open_run(Path(sys.argv[1]), Sample(), {"steps": "default"}):
    worker = os.fork()
    if worker == 0:
        time.sleep(60)  # a worker process that outlives a killed run
        os._exit(0)
    print(worker, flush=True)
    time.sleep(60)
"""


@contextmanager
def other_process(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        worker = int(process.stdout.readline())
        try:
            yield process
        finally:
            process.kill()
            os.kill(worker, signal.SIGKILL)


def test_two_processes_do_not_run_in_one_folder(tmp_path):
    with other_process(tmp_path / "run") as process:
        for fresh in (False, True):
            message = refusal(tmp_path / "run", fresh=fresh)
            assert f"in use by process {process.pid}" in message
        assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_run_frees_its_folder_though_its_workers_live(tmp_path):
    with other_process(tmp_path / "run") as process:
        process.kill()
        process.wait()
        with pytest.raises(DreamGymError, match="another config"), start(tmp_path / "run"):
            pass  # the lock was free: what is refused is the other process's other config


def test_one_process_does_not_open_a_run_twice(tmp_path):
    with start(tmp_path):
        for fresh in (False, True):
            assert "this very process" in refusal(tmp_path, fresh=fresh)
    with start(tmp_path):
        pass


def test_a_run_killed_before_its_config_was_written_starts_again(tmp_path):
    with start(tmp_path):
        pass
    (tmp_path / "config.toml").unlink()
    (tmp_path / ".manifest.json.123.tmp").write_text('{"half')
    with start(tmp_path):
        assert (tmp_path / "config.toml").exists()
    assert not list(tmp_path.glob(".*.tmp"))
    draft_only = tmp_path / "new"
    draft_only.mkdir()
    (draft_only / ".manifest.json.123.tmp").write_text('{"half')
    with start(draft_only):
        pass


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_atomic(path, "fails after the draft was opened, as a kill would")
    assert json.loads(path.read_text()) == {"a": 1}
    path.unlink()
    for draft in path.parent.iterdir():
        draft.unlink()
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new" and len(list(path.parent.iterdir())) == 1


def test_listed_files_are_known_by_their_hash(tmp_path):
    with start(tmp_path) as folder:
        for name in ("a.bin", "b.bin", "c.bin"):
            (tmp_path / name).write_bytes(name.encode())
        folder.list_files("a.bin", "b.bin", "c.bin")
        assert folder.manifest()["files"]["a.bin"] == hashlib.sha256(b"a.bin").hexdigest()
        assert folder.damaged_files() == []
        (tmp_path / "b.bin").write_bytes(b"b.bjn")
        (tmp_path / "c.bin").unlink()
        assert folder.damaged_files() == ["b.bin", "c.bin"]


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "Fit", ".hidden"])
def test_a_stage_name_is_a_plain_word(tmp_path, name):
    with pytest.raises(ValueError, match="lower-case word"):
        RunFolder(tmp_path).mark_stage(name, {})


def test_reading_what_is_no_run_is_an_error_with_a_reason(tmp_path):
    with pytest.raises(DreamGymError, match="is this a run folder"):
        RunFolder(tmp_path).manifest()
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DreamGymError, match="damaged"):
        RunFolder(tmp_path).manifest()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_reason(tmp_path):
    (tmp_path / "file").touch()  # root may write anywhere, but not below a file
    assert "cannot write in" in refusal(tmp_path / "file" / "run")
