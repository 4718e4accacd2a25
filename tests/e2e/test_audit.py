"""`dreamgym fit` and `dreamgym audit` as a user runs them, on games of a few seconds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dreamgym.cli import run as cli
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.policies import ExpertPolicy, RandomPolicy
from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.evaluate import evaluate
from dreamgym.llm.base import LLM
from dreamgym.rollout import RolloutConfig

TINY = [
    *("--world.num-train", "60", "--world.num-eval", "3", "--offline.expert", "20"),
    *("--offline.noisy", "50", "--offline.random", "10", "--clone.demonstrations", "10"),
    *("--fit.num-tokens", "20000", "--model.layers", "2", "--model.width", "64"),
    # it has learnt too little to stop by itself
    *("--experience.max-tokens", "30", "--experience.retries", "0"),
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("audit") / "run"
    assert cli(["fit", *TINY, "--run-dir", str(run), "--json"]) == 0
    return run


def audit(run: Path, *flags: str) -> int:
    few = ["--episodes", "2", "--sequences", "1", "--replays", "2"]
    return cli(["audit", str(run), *few, *flags])


def test_an_audit_leaves_numbers_a_text_and_a_figure(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(fitted, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) >= {"transitions", "episodes", "probes", "luck", "groups", "judge", "bound"}
    assert told == json.loads((fitted / "audit" / "audit.json").read_text())
    text = (fitted / "audit" / "audit.md").read_text()
    for part in (
        "next state exact",
        "replayed",
        "claims to be done",
        "sd of the reward",
        "|J - Ĵ|",
    ):
        assert part in text
    assert (fitted / "audit" / "audit.png").read_bytes()[:4] == b"\x89PNG"
    dreams = (fitted / "audit" / "dreams.md").read_text()
    written = told["dreams"]["dreams"]
    assert len(written) == 2
    facts = [fact for dream in written for fact in (dream["hidden"] or {}).values()]
    assert all(fact in dreams for fact in facts)
    policies = told["episodes"]["true hidden state"]["policies"]
    assert list(policies) == ["random", "half expert", "expert"]
    assert policies["expert"]["real"]["value"] == 1.0
    assert "skipped" in told["judge"]
    assert told["probes"]["claims to be done"]["hits"] == 0


def test_a_killed_audit_goes_on_and_measures_no_part_twice(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(fitted) == 0
    parts = fitted / "audit"
    (parts / "luck.json").write_text("{ half of it")
    kept = (parts / "episodes.json").stat().st_mtime_ns
    before = json.loads((parts / "audit.json").read_text())
    assert audit(fitted) == 0
    assert (parts / "episodes.json").stat().st_mtime_ns == kept
    assert json.loads((parts / "audit.json").read_text()) == before  # and to the same numbers


def test_the_calibration_stands_beside_the_model(fitted: Path) -> None:
    assert set(json.loads((fitted / "experience" / "calibration.json").read_text())) == {
        *("slope", "offset", "num"),
    }


def test_an_audit_without_a_dream_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(tmp_path) != 0
    assert "no run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "off"),
    [
        (["--no-reasoning"], "reasoning"),
        (["--no-history"], "history"),
        (["--no-hidden-state"], "hidden"),
    ],
)
def test_an_ablation_is_a_switch_of_fit(
    flags: list[str], off: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    tiny = [*TINY, "--fit.num-tokens", "2000", "--experience.max-tokens", "10"]
    tiny += ["--experience.history", "true"]  # as the paper has it
    assert cli(["fit", *tiny, *flags, "--run-dir", str(run), "--json"]) == 0
    told = capsys.readouterr()
    assert "warning: 80 offline episodes" in told.err and json.loads(told.out)
    assert f"{off} = false" in (run / "config.toml").read_text()
    assert json.loads((run / "stages" / "audit.json").read_text())["exact"]["total"] > 0


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return generate_games(12, seed=5)


@pytest.mark.parametrize(
    ("policy", "low", "high"),
    [(ExpertPolicy(), 1.0, 1.0), (ExpertPolicy(noise=0.5), 0.4, 1.0), (RandomPolicy(), 0.0, 0.3)],
    ids=["expert", "half expert", "random"],
)
def test_the_policies_are_as_strong_as_their_names(
    games: list[Game], policy: LLM, low: float, high: float
) -> None:
    config = RolloutConfig(max_turns=50, invalid_limit=50)
    with AlfworldWorld(games) as world:
        found = asyncio.run(
            evaluate(policy, world.tasks, world.make_env, config, world="real", seed=0)
        )
    assert low <= found.success.value <= high
