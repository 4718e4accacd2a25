"""What rehearsing demonstrations does without a dream: the control of a finished run.

Goes on from the run's clone on its demonstrations alone, with as many readings of them, at the same
learning rate, as the run's updates took beside their dreams; then measures as the run measured.

    python benchmarks/rehearsal.py runs/quickstart
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import torch

from dreamgym import build
from dreamgym.algos.settings import SFTConfig
from dreamgym.algos.sft import fit
from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.evaluate import evaluate
from dreamgym.job import as_data, read_config
from dreamgym.llm.local import LocalLLM
from dreamgym.llm.weights import load_model
from dreamgym.replay.store import ReplayStore
from dreamgym.train import eval_rollout


def rehearse(run: Path) -> dict[str, object]:
    """Success in the real world of the run's clone, of the control, and of the run's policy."""
    cfg = read_config(run)
    torch.manual_seed(cfg.seed)
    model, tokenizer = load_model(run / "cloned")
    with ReplayStore(run / "replay.sqlite") as store:
        rows = build.demonstration_rows(cfg, store, tokenizer)
    readings = cfg.steps * cfg.learner.epochs * min(cfg.learner.demonstrations, len(rows))
    num_tokens = readings * sum(len(row.ids) for row in rows) // len(rows)
    config = SFTConfig(
        num_tokens=num_tokens,
        tokens_per_step=cfg.learner.minibatch_tokens,
        learning_rate=cfg.learner.learning_rate,
        warmup_steps=cfg.learner.warmup_steps,
    )
    fit(model, rows, config, seed=cfg.seed)
    games = build.make_games(cfg.world, cfg.seed).eval
    with AlfworldWorld(games, cfg.world.backend) as world:
        policy = LocalLLM(model, tokenizer, slots=cfg.rollout.in_flight)
        rollout = eval_rollout(cfg)
        result = asyncio.run(
            evaluate(policy, world.tasks, world.make_env, rollout, world="real", seed=cfg.seed)
        )
    before, after = (
        json.loads((run / f"stages/{name}.json").read_text()) for name in ("before", "after")
    )
    return {
        "seed": cfg.seed,
        "tokens": num_tokens,
        "cloned": before["real"]["success"],
        "rehearsed": as_data(result)["success"],
        "dreamt": after["real"]["success"],
        "half_width": result.success.half_width,
    }


if __name__ == "__main__":
    for path in sys.argv[1:] or ["runs/quickstart"]:
        print(json.dumps(rehearse(Path(path))), flush=True)
