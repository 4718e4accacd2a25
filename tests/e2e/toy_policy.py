"""A tiny Llama that has heard a little of the toy world, and what it learns from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import cache

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.agents.prompt import policy_messages
from dreamgym.algos.batch import conversation_row
from dreamgym.algos.settings import SFTConfig
from dreamgym.algos.sft import fit
from dreamgym.envs.toy import THINGS, ToyEnv, contents_of, toy_tasks, wanted_by
from dreamgym.evaluate import evaluate
from dreamgym.llm.base import LLM, Message
from dreamgym.llm.local import Encoder
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.rollout import RolloutConfig
from dreamgym.types import Task, Turn

BOXES = ("box 1", "box 2", "box 3")


def tasks_to_learn(number: int, seed: int = 0) -> list[Task]:
    """Toy tasks whose first state tells the instruction, as household games do."""
    return [
        Task(t.id, t.instruction, f"{t.first_state} Your task: {t.instruction}.", t.kind)
        for t in toy_tasks(number, seed)
    ]


def clumsy_turns(task: Task, rng: random.Random) -> list[Turn]:
    """An episode of one who opens some boxes and then takes any of the things it saw."""
    turns: list[Turn] = []
    state, seen = task.first_state, []
    for box in rng.sample(BOXES, rng.randint(1, 3)):
        thing = contents_of(task)[box]
        told = f"You open {box}. In it, you see a {thing}."
        turns.append(Turn(state, f"open {box}", 0.0, told))
        state = told
        seen.append(thing)
    taken = rng.choice(seen)
    paid = float(taken == wanted_by(task))
    return [*turns, Turn(state, f"take {taken}", paid, f"You take the {taken}.")]


@cache
def toy_tokenizer() -> PreTrainedTokenizerFast:
    room = tasks_to_learn(1)[0].first_state.split(" Your task")[0]
    texts = [room] * 20
    for thing in THINGS:
        texts += [f" Your task: take the {thing}.", f"take {thing}", f" you see a {thing}."] * 20
        texts += [f"You open {box}. In it, you see a {thing}." for box in BOXES] * 20
    return train_tokenizer([*texts, *(f"open {box}" for box in BOXES), "look"], 400)


def clumsy_policy(seed: int, num_tokens: int = 60_000) -> PreTrainedModel:
    """Behaviour cloning of clumsy episodes: it knows the grammar, and wins by luck only."""
    torch.manual_seed(seed)
    tokenizer = toy_tokenizer()
    model = make_llama(len(tokenizer), width=48, layers=2, heads=4, context=160)
    rng = random.Random(seed)
    encoder = Encoder(tokenizer)
    rows = []
    for task in tasks_to_learn(48, seed=100 + seed):
        turns = clumsy_turns(task, rng)
        messages = policy_messages(turns[:-1], turns[-1].state)
        rows.append(conversation_row([*messages, Message("assistant", turns[-1].action)], encoder))
    config = SFTConfig(num_tokens=num_tokens, tokens_per_step=600, warmup_steps=5)
    fit(model, rows, config, seed=seed)
    return model


class TellingToy(ToyEnv):
    """The toy world, whose first state also tells the task: a policy reads nothing else."""

    async def start(self, task: Task) -> str:
        await ToyEnv.start(self, task)
        return task.first_state


def make_real(task: Task, group: int) -> TellingToy:
    """A `MakeEnv` of the real toy world."""
    return TellingToy(task)


def real_success(policy: LLM, tasks: Sequence[Task]) -> float:
    """The share of tasks solved in the real toy world, sampled as in training."""
    config = RolloutConfig(max_turns=6, max_tokens=8)
    result = asyncio.run(evaluate(policy, tasks, make_real, config, world="real", seed=9))
    assert result.success.total == len(tasks)
    return result.success.value
