"""Do GRPO and PPO learn? Each from the same behaviour-cloned start.

    python benchmarks/learning.py toy --seeds 0 1 2
    python benchmarks/learning.py alfworld --seeds 0 1 2 --runs runs/learning

The toy world's best policy opens boxes until it sees what is asked for: it always succeeds. The
start has been cloned from a clumsy player that takes anything it saw. Measured on tasks that
training never saw, sampled at temperature 1, as in training.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import shutil
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.agents.prompt import acting_conversation
from dreamgym.algos.batch import conversation_row
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig, SFTConfig
from dreamgym.algos.sft import fit
from dreamgym.config import RunConfig
from dreamgym.envs.toy import THINGS, clumsy_episode, make_toy_env, toy_tasks
from dreamgym.evaluate import evaluate
from dreamgym.job import Job, finish, run_job
from dreamgym.llm.base import LLM
from dreamgym.llm.encoding import Encoder
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.progress import RichProgress
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.run_folder import open_run, write_json
from dreamgym.settings import load_config

ROLLOUT = RolloutConfig(group_size=8, max_turns=6, max_tokens=8)
TASKS, HELD_OUT = toy_tasks(48, seed=1), toy_tasks(200, seed=2)
PLAIN = {"optimizer": "adamw", "minibatch_tokens": 1000, "epochs": 2, "demonstrations": 0}
PUBLISHED = PLAIN | {"negative": 1.0, "credit_refused": True, "learning_rate": 3e-4}
USUAL = {
    "discount": 1.0,
    "trace": 0.95,
    "whiten": True,
    "stop_kl": 0.0,
    "critic_learning_rate": 3e-4,
}
PPO = PUBLISHED | {"algorithm": "ppo"}
ALGORITHMS = {
    "grpo": PUBLISHED,
    "ppo": PPO | {"ppo": USUAL},
    "ppo-token": PPO | {"ppo": USUAL | {"level": "token"}},
    "ppo-shared": PPO | {"ppo": USUAL | {"critic": "shared", "critic_learning_rate": 3e-3}},
    "gigpo": PUBLISHED | {"grpo": {"step_weight": 1.0}},
    "dr-grpo": PUBLISHED
    | {"grpo": {"scale": "none"}, "objective": {"normalise": "constant", "constant_tokens": 16}},
}


def clone(seed: int, num_tokens: int) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A tiny Llama that has read clumsy episodes: it knows the grammar, and wins by luck only."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    episodes = [clumsy_episode(task, rng) for task in toy_tasks(200, seed=100 + seed)]
    texts = [m.text for episode in episodes for m in acting_conversation(episode)]
    tokenizer = train_tokenizer([*texts, *(f"take {thing}" for thing in THINGS)], 400)
    model = make_llama(len(tokenizer), width=48, layers=2, heads=4, context=160)
    encoder = Encoder(tokenizer)
    rows = [conversation_row(acting_conversation(episode), encoder) for episode in episodes[:48]]
    fit(
        model,
        rows,
        SFTConfig(num_tokens=num_tokens, tokens_per_step=600, warmup_steps=5),
        seed=seed,
    )
    return model, tokenizer


def success(policy: LLM) -> float:
    """The share of held-out tasks solved in the real toy world."""
    result = asyncio.run(evaluate(policy, HELD_OUT, make_toy_env, ROLLOUT, world="real", seed=9))
    return result.success.value


def learn(name: str, seed: int, steps: int, clone_tokens: int) -> dict[str, object]:
    """Success of the start and after every 20 updates."""
    model, tokenizer = clone(seed, clone_tokens)
    config = LearnerConfig.model_validate(ALGORITHMS[name])
    learner = Learner(copy.deepcopy(model), tokenizer, config)
    curve = [success(learner.policy(slots=128))]
    for step in range(steps):
        tasks = [TASKS[(step * 8 + i) % len(TASKS)] for i in range(8)]
        seen = collect(
            learner.policy(), tasks, make_toy_env, ROLLOUT, world="real", seed=seed * 10_007 + step
        )
        metrics = learner.update(asyncio.run(seen))
        if (step + 1) % 20 == 0:
            curve.append(success(learner.policy(slots=128)))
    explained = metrics.get("critic/explained_variance")
    last = {"explained_variance": explained} if explained is not None else {}
    return {"algorithm": name, "seed": seed, "success": curve, **last}


CELLS = [(name, world) for world in ("dream", "real") for name in ("grpo", "ppo")]
BARE = ["--steps", "12", "--learner.demonstrations", "0"]
FLAGS = {"grpo": [], "ppo": ["--learner.algorithm", "ppo", "--learner.minibatch-tokens", "4000"]}


def household(
    folder: Path, seed: int, flags: list[str], until: str, start: Path | None = None
) -> dict[str, Any]:
    """One run of the whole job, from another's start where given; goes on where it stopped."""
    cfg, origins = load_config(RunConfig, None, ["--seed", str(seed), *flags])
    with open_run(folder, cfg, origins, seed=seed, fresh=False) as run:
        if start is not None and not run.stage_done("before"):
            shutil.copy(start / "replay.sqlite", folder)
            for part in ("experience", "cloned", "stages"):  # the marks last
                shutil.copytree(start / part, folder / part, dirs_exist_ok=True)
        job = Job(cfg, run, RichProgress())
        results = run_job(job, until=until)
        if until == "after":
            finish(job, results)
    return results


def learn_household(name: str, world: str, seed: int, runs: Path) -> dict[str, object]:
    """Success in the real world before and after, from the seed's one start."""
    start, folder = runs / f"start-{seed}", runs / f"{name}-{world}-{seed}"
    household(start, seed, BARE, "before")
    flags = [*BARE, *FLAGS[name], "--train-world", world]
    results = household(folder, seed, flags, "after", start)
    before, after = results["before"], results["after"]
    return {
        "algorithm": name,
        "trained_in": world,
        "seed": seed,
        "real_before": before["real"]["success"],
        "real_after": after["real"]["success"],
        "half_width": after["real"]["half_width"],
        "real_episodes": after["real"]["episodes"],
        "dream_before": before["dream"]["success"],
        "dream_after": after["dream"]["success"],
        "dream_episodes": after["dream"]["episodes"],
        "real_transitions_online": results["dream"]["real_transitions_online"],
        "seconds": results["dream"]["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=["toy", "alfworld"])
    parser.add_argument("--algorithms", nargs="+", default=["grpo", "ppo"], choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=200, help="updates in the toy world")
    parser.add_argument(
        "--clone-tokens", type=int, default=200_000, help="of the toy world's start"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--out", type=Path, help="where all rows are kept as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in args.seeds:
        if args.world == "toy":
            todo = [partial(learn, n, seed, args.steps, args.clone_tokens) for n in args.algorithms]
        else:
            cells = [cell for cell in CELLS if cell[0] in args.algorithms]
            todo = [partial(learn_household, *cell, seed, args.runs) for cell in cells]
        for work in todo:
            rows.append(work())
            print(json.dumps(rows[-1]), flush=True)
            if args.out:
                write_json(args.out, {"date": date.today().isoformat(), "runs": rows})


if __name__ == "__main__":
    main()
