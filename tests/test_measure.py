"""The real measurement: the same in any number of processes, and loud where one of them fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from dreamgym import build
from dreamgym.config import RunConfig
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import Game
from dreamgym.evaluate import Outcome
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.measure import load_policy, measure_real
from dreamgym.settings import load_config
from dreamgym.settings.write import dump_toml
from dreamgym.types import DreamGymError

NUM_GAMES = 7


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, list[Game]]:
    """A run folder with a policy that has learnt nothing, and its held-out games."""
    overrides = ["--world.num-train", "2", "--world.num-eval", str(NUM_GAMES)]
    cfg, origins = load_config(RunConfig, None, overrides)
    (tmp_path / "config.toml").write_text(dump_toml(cfg, origins))
    games = list(build.make_games(cfg.world, cfg.seed).eval)
    tokenizer = train_tokenizer([FastGame(game).reset() for game in games] * 4, 400)
    torch.manual_seed(0)
    model = make_llama(len(tokenizer), width=32, layers=2, heads=2, kv_heads=1, context=400)
    with torch.no_grad():  # it ends some of its words, so that episodes have different lengths
        model.get_output_embeddings().weight[tokenizer.eos_token_id] *= 30
    build.save_model(model, tokenizer, tmp_path / "policy")
    return tmp_path, games


def test_samples_do_not_depend_on_the_number_of_processes(run: tuple[Path, list[Game]]) -> None:
    folder, games = run
    threads = torch.get_num_threads()
    results, seen = [], []
    for number in (1, 2, 3):
        outcomes: list[Outcome] = []
        policy = load_policy(folder / "policy", 8)
        results.append(
            asyncio.run(
                measure_real(
                    policy,
                    folder / "policy",
                    games,
                    backend="fast",
                    num_processes=number,
                    on_outcome=outcomes.append,
                )
            )
        )
        seen.append(sorted(outcomes, key=str))
    assert results[0] == results[1] == results[2]
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) == NUM_GAMES
    assert len({outcome.num_turns for outcome in seen[0]}) > 1, "all alike would show nothing"
    assert torch.get_num_threads() == threads


def test_a_process_that_fails_is_an_error_and_no_smaller_sample(
    run: tuple[Path, list[Game]], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, games = run
    policy = load_policy(folder / "policy", 8)
    (folder / "policy" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DreamGymError, match=r"status 1, 3 of its 3 episodes missing"):
        asyncio.run(measure_real(policy, folder / "policy", games, backend="fast", num_processes=2))
    assert "SafetensorError" in capfd.readouterr().err
