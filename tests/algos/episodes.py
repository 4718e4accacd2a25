"""What the tests of the algorithms share: a small model, and episodes as a sampler leaves them."""

from __future__ import annotations

import random
from functools import cache

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from dreamgym.agents.prompt import policy_messages, read_action
from dreamgym.llm.encoding import Encoder
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.types import Completion, Ending, Episode, Group, Task, Turn

TEXTS = (
    "You are in a room. You see a box 1, a box 2, and a box 3. All of them are closed.",
    "open box 1",
    "You open box 1. In it, you see a key.",
    "take key",
    "<think>the key must be in box 2</think>open box 2",
    "hello hello he llo",
)
TASK = Task("toy/1", "take the key", TEXTS[0], "toy")


@cache
def small_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS * 4, 400)


@cache
def encoder() -> Encoder:
    return Encoder(small_tokenizer())


def small_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return make_llama(len(small_tokenizer()), width=32, layers=2, heads=2, kv_heads=1).eval()


def play_at_random(rng: random.Random, *, num_turns: int, reward: float = 0.0) -> Episode:
    """An episode whose tokens are drawn from the whole vocabulary, text or not."""
    turns: list[Turn] = []
    vocabulary = range(5, len(small_tokenizer()))  # control tokens apart
    for number in range(num_turns):
        state = rng.choice(TEXTS)
        prompt = tuple(encoder().prompt(policy_messages(TASK.instruction, turns, state)))
        ids = (*rng.choices(vocabulary, k=rng.randint(1, 6)), encoder().end)
        logprobs = tuple(-3 * rng.random() for _ in ids)
        completion = Completion(encoder().decode(ids), ids, logprobs, prompt)
        paid = reward if number == num_turns - 1 else 0.0
        action = read_action(completion) or ""
        turns.append(Turn(state, action, paid, rng.choice(TEXTS), True, completion))
    return Episode(TASK, tuple(turns), Ending.DONE, "dream")


def group_of(rewards: list[float], *, seed: int = 0, task: Task = TASK) -> Group:
    """Attempts of one to four turns that earned these returns."""
    rng = random.Random(seed)
    played = [play_at_random(rng, num_turns=rng.randint(1, 4), reward=r) for r in rewards]
    return Group(task, tuple(played))


def weights(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """A copy of every parameter."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
