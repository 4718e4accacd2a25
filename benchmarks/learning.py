"""Do GRPO and PPO learn? Each from the same behaviour-cloned start, in a world with a known optimum.

    python benchmarks/learning.py toy --seeds 0 1 2

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
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.agents.prompt import acting_conversation
from dreamgym.algos.batch import conversation_row
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig, SFTConfig
from dreamgym.algos.sft import fit
from dreamgym.envs.toy import THINGS, clumsy_episode, make_toy_env, toy_tasks
from dreamgym.evaluate import evaluate
from dreamgym.llm.base import LLM
from dreamgym.llm.encoding import Encoder
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.rollout import RolloutConfig, collect

ROLLOUT = RolloutConfig(group_size=8, max_turns=6, max_tokens=8)
TASKS, HELD_OUT = toy_tasks(48, seed=1), toy_tasks(200, seed=2)
PLAIN = {"optimizer": "adamw", "minibatch_tokens": 1000, "epochs": 2, "demonstrations": 0}
PUBLISHED = PLAIN | {"negative": 1.0, "credit_refused": True, "learning_rate": 3e-4}
ALGORITHMS = {
    "grpo": PUBLISHED,
    "ppo": PUBLISHED | {"algorithm": "ppo", "ppo": {"critic_learning_rate": 3e-4}},
    "ppo-token": PUBLISHED
    | {"algorithm": "ppo", "ppo": {"level": "token", "critic_learning_rate": 3e-4}},
    "ppo-shared": PUBLISHED
    | {"algorithm": "ppo", "ppo": {"critic": "shared", "critic_learning_rate": 3e-3}},
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=["toy"])
    parser.add_argument("--algorithms", nargs="+", default=["grpo", "ppo"], choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--clone-tokens", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in args.seeds:
        for name in args.algorithms:
            rows.append(learn(name, seed, args.steps, args.clone_tokens))
            print(json.dumps(rows[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"command": " ".join(parser.prog.split()), "runs": rows}))


if __name__ == "__main__":
    main()
