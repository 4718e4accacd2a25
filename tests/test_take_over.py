"""What a run takes from the one it begins from, and what it measures or makes anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dreamgym.config import RunConfig
from dreamgym.job import Job, promoted, take_over
from dreamgym.progress import RichProgress
from dreamgym.replay.checks import Provenance
from dreamgym.replay.store import ReplayStore
from dreamgym.run_folder import RunFolder, write_atomic
from dreamgym.settings import dump_toml, leaves
from dreamgym.train import real_transitions, run_name
from dreamgym.types import DreamGymError, Ending, Episode, Task, Turn

LIVED = Episode(Task("t", "find it"), (Turn("s", "a", 1.0, "n"),), Ending.DONE, "real")
STAGES = ("collect", "fit", "audit", "clone", "before", "dream", "after")


def finished(path: Path, cfg: RunConfig, *, until: str = "after", gate: bool = False) -> RunFolder:
    """A run folder as `dreamgym train` leaves it; a model is a file that says whose it is."""
    folder = RunFolder(path)
    write_atomic(
        path / "config.toml",
        dump_toml(cfg, dict.fromkeys(dict(leaves(RunConfig)), "flag")).encode(),
    )
    with ReplayStore(path / "replay.sqlite") as store:
        store.add_episode(LIVED, provenance=Provenance(run=run_name(cfg), agent="policy"))
    models = {"fit": ["experience"], "clone": ["cloned"], "dream": ["policy", "best"][: 1 + gate]}
    for stage in STAGES[: STAGES.index(until) + 1]:
        for model in models.get(stage, []):
            for name in ("weights", "optimizer.safetensors", "learner.json", "gate.json"):
                write_atomic(path / model / name, f"{model} of {path.name}".encode())
        folder.mark_stage(stage, {"stage": stage, "run": path.name})
    return folder


def begin(path: Path, source: Path, **changes: Any) -> tuple[Job, dict[str, Any]]:
    cfg = RunConfig.model_validate({"init": str(source), "train_world": "real", **changes})
    job = Job(cfg, RunFolder(path), RichProgress())
    path.mkdir()
    return job, take_over(job)


def model(job: Job, name: str) -> str | None:
    path = job.path / name / "weights"
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize(
    ("weights", "gate", "policy", "measured"),
    [
        ("policy", False, "policy of source", "after"),
        ("policy", True, "best of source", "after"),
        ("cloned", True, "cloned of source", "before"),
        ("none", False, None, None),
    ],
)
def test_a_run_begins_with_the_policy_it_is_told_to(
    tmp_path: Path, weights: str, gate: bool, policy: str | None, measured: str | None
) -> None:
    source = finished(tmp_path / "source", RunConfig(), gate=gate)
    job, told = begin(tmp_path / "new", source.path, init_weights=weights)
    assert told == {"run": str(source.path), "weights": weights, "experience": str(source.path)}
    assert model(job, "experience") == "experience of source"
    assert model(job, "cloned") == policy
    assert job.folder.stage_done("clone") is (policy is not None)
    assert all(job.folder.stage_data(name)["stage"] == name for name in ("collect", "fit", "audit"))
    # the same policy on the same games was measured already
    assert job.folder.stage_done("before") is (measured is not None)
    if measured:
        assert job.folder.stage_data("before")["stage"] == measured
    assert not job.folder.stage_done("dream") and not job.folder.stage_done("after")


def test_what_only_training_on_needs_stays_behind(tmp_path: Path) -> None:
    source = finished(tmp_path / "source", RunConfig(), gate=True)
    job, _ = begin(tmp_path / "new", source.path)
    assert [path.name for path in (job.path / "cloned").iterdir()] == ["weights"]
    assert not (job.path / "policy").exists() and not (job.path / "best").exists()


def test_the_logs_come_along_and_the_count_of_what_was_spent_does_not(tmp_path: Path) -> None:
    old = RunConfig(train_world="real", real_budget=5000)
    source = finished(tmp_path / "source", old)
    job, _ = begin(tmp_path / "new", source.path, real_budget=5000)
    with ReplayStore(job.path / "replay.sqlite") as store:
        assert list(store.episodes()) == [LIVED]
        assert real_transitions(old, store) == 1
        assert real_transitions(job.cfg, store) == 0
        store.add_episode(LIVED, provenance=Provenance(run=run_name(job.cfg), agent="policy"))
        assert real_transitions(job.cfg, store) == 1
    with ReplayStore(source.path / "replay.sqlite") as store:
        assert real_transitions(job.cfg, store) == 0


def test_the_experience_model_may_come_from_a_third_run(tmp_path: Path) -> None:
    source = finished(tmp_path / "source", RunConfig())
    third = finished(tmp_path / "third", RunConfig(), until="fit")
    job, told = begin(tmp_path / "new", source.path, init_experience=str(third.path))
    assert model(job, "experience") == "experience of third"
    assert model(job, "cloned") == "policy of source"
    assert told["experience"] == str(third.path)
    assert job.folder.stage_data("fit")["run"] == "third"
    assert job.folder.stage_data("collect")["run"] == "source"
    assert not job.folder.stage_done("audit")  # the third was not audited
    assert not job.folder.stage_done("before")  # dreamt by another model


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 7},
        {"eval_temperature": 0.1},
        {"world": {"num_eval": 9}},
        {"rollout": {"max_turns": 9}},
    ],
)
def test_under_other_conditions_it_is_measured_again(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    source = finished(tmp_path / "source", RunConfig())
    job, _ = begin(tmp_path / "new", source.path, **changes)
    assert not job.folder.stage_done("before")


@pytest.mark.parametrize(
    ("until", "weights", "missing"),
    [
        ("collect", "none", "experience"),
        ("fit", "cloned", "cloned"),
        ("before", "policy", "policy"),
    ],
)
def test_a_run_that_has_not_come_so_far_is_nothing_to_begin_from(
    tmp_path: Path, until: str, weights: str, missing: str
) -> None:
    source = finished(tmp_path / "source", RunConfig(), until=until)
    with pytest.raises(DreamGymError, match=f"has no {missing} to begin from"):
        begin(tmp_path / "new", source.path, init_weights=weights)
    assert list((tmp_path / "new").iterdir()) == []


def test_one_that_stopped_early_left_a_policy(tmp_path: Path) -> None:
    source = finished(tmp_path / "source", RunConfig())
    for stage in ("dream", "after"):
        (source.path / "stages" / f"{stage}.json").unlink()
    job, _ = begin(tmp_path / "new", source.path)
    assert model(job, "cloned") == "policy of source"
    assert not job.folder.stage_done("before")


def test_one_that_has_come_so_far_is(tmp_path: Path) -> None:
    source = finished(tmp_path / "source", RunConfig(), until="fit")
    job, _ = begin(tmp_path / "new", source.path, init_weights="none")
    assert model(job, "experience") and not job.folder.stage_done("clone")


def test_a_take_over_that_was_killed_is_done_again(tmp_path: Path) -> None:
    source = finished(tmp_path / "source", RunConfig())
    job, _ = begin(tmp_path / "new", source.path)
    write_atomic(job.path / "cloned" / "half", b"")
    (job.path / "experience" / "weights").unlink()
    take_over(job)
    assert model(job, "experience") == "experience of source"
    assert [path.name for path in (job.path / "cloned").iterdir()] == ["weights"]


def test_the_gates_choice_comes_before_the_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert promoted(run) == run / "policy"
    (run / "best.old").mkdir(parents=True)  # killed while it was swapped
    assert promoted(run) == run / "best"
