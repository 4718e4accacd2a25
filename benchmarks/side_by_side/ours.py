"""Our side: the model and tokenizer that every benchmark takes, rollouts, updates.

    python -m side_by_side.ours REQUEST

As a program it is measured beside trl_side.py, in a process of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dreamgym
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import LearnerConfig
from dreamgym.envs.base import Env
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.local import LocalLLM
from dreamgym.llm.tiny import train_tokenizer
from dreamgym.llm.weights import load_model, save_model
from dreamgym.rollout import RolloutConfig, collect
from dreamgym.types import Completion, Ending, Group, StepResult, Task
from side_by_side.shape import (
    INSTRUCTION,
    Load,
    Measured,
    Request,
    Shape,
    observation,
    payment,
    peak_mb,
    versions,
)

IMPORTS_MB = peak_mb()
# Qwen's control tokens, one token each as in Qwen: TRL's tool loop writes its bundled template
QWEN = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
QWEN += ("<tool_response>", "</tool_response>")


@dataclass(frozen=True, slots=True)
class Size:
    """A Llama with tied embeddings."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int


SIZES = {"5m": Size(256, 6, 8, 4, 704, 4096), "tiny": Size(32, 2, 2, 1, 64, 512)}
MAX_CONTEXT = 1024
"""Room for the longest episodes measured here; our cache is as long as the model allows."""


def save_random(size: Size, folder: Path, seed: int) -> None:
    """Random weights, and a tokenizer of our own sources that both sides can prompt with."""
    sources = sorted(Path(dreamgym.__file__).parent.rglob("*.py"))
    sources = sources if size.vocabulary > 1024 else sources[:8]
    tokenizer = train_tokenizer(_texts(sources), size.vocabulary - len(QWEN))
    tokenizer.add_special_tokens({"additional_special_tokens": list(QWEN)})
    spare = range(size.vocabulary - len(tokenizer))  # where the sources had no more to merge
    tokenizer.add_tokens([f"<|spare-{i}|>" for i in spare])
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    save_model(LlamaForCausalLM(config), tokenizer, folder)


def _texts(sources: Sequence[Path]) -> list[str]:
    """Words as words: a token that spans several would make the observations far too short."""
    text = "\n".join(path.read_text() for path in sources)
    text += "\n" + "\n".join(observation(task, 0, 40) for task in range(8))
    return [f" {word}" for word in text.split()]


class LongWinded:
    """An `LLM` that writes all the tokens it may and stops there, as if it had meant to.

    What `min_new_tokens` does on TRL's side: the end token cannot be drawn.
    """

    def __init__(self, policy: LocalLLM) -> None:
        self.policy = policy
        end, feed = policy.encoder.end, policy.decoder.feed

        @torch.inference_mode()
        def endless(*args: Sequence[object]) -> torch.Tensor:
            logits = feed(*args)  # type: ignore[arg-type]
            logits[:, end] = -torch.inf
            return logits

        policy.decoder.feed = endless  # type: ignore[method-assign]

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        completion = await self.policy.complete(prompt, sampling, session=session)
        return replace(completion, finish_reason="stop")

    async def release(self, session: str) -> None:
        await self.policy.release(session)


class World:
    """An `Env` that takes any text."""

    def __init__(self, number: int, shape: Shape) -> None:
        self._number, self._shape, self._turn = number, shape, 0

    async def start(self, task: Task) -> str:
        self._task = int(task.id)
        return observation(self._task, 0, self._shape.words)

    async def step(self, action: str) -> StepResult:
        if self._shape.latency_s:
            await asyncio.sleep(self._shape.latency_s)
        self._turn += 1
        state = observation(self._task, self._turn, self._shape.words)
        if self._turn < self._shape.turns:
            return StepResult(state, 0.0)
        return StepResult(state, payment(self._number, self._shape.attempts), Ending.DONE)

    async def close(self) -> None:
        pass


def worlds(shape: Shape) -> Callable[[Task, int], Env]:
    numbers = itertools.count()
    return lambda task, group: World(next(numbers), shape)


def make_learner(folder: Path, micro_tokens: int) -> Learner:
    """GRPO as published, and as TRL has it: AdamW, one optimiser step on all episodes, no KL."""
    config = LearnerConfig(
        optimizer="adamw",
        learning_rate=1e-5,
        warmup_steps=0,
        epochs=1,
        minibatch_tokens=1 << 40,
        micro_tokens=micro_tokens,
        negative=1.0,
        credit_refused=True,
        demonstrations=0,
    )
    return Learner(*load_model(folder), config)


def play_batch(learner: Learner, shape: Shape, seed: int) -> tuple[list[Group], LocalLLM]:
    """All episodes at once, with the snapshot of the weights that every iteration takes."""
    policy = learner.policy(slots=shape.episodes)
    config = RolloutConfig(
        group_size=shape.attempts,
        max_turns=shape.turns,
        max_tokens=shape.new,
        in_flight=shape.episodes,
        invalid_limit=shape.turns + 1,  # random tokens are no action, and are played all the same
    )
    tasks = [Task(str(i), INSTRUCTION) for i in range(shape.groups)]
    playing = collect(LongWinded(policy), tasks, worlds(shape), config, world="real", seed=seed)
    return asyncio.run(playing), policy


def row_lengths(groups: Sequence[Group]) -> list[int]:
    """The tokens of each episode, which is one growing sequence."""
    last = [e.turns[-1].completion for group in groups for e in group.episodes]
    return [len(c.prompt_ids) + len(c.ids) for c in last if c is not None]


def iterate(learner: Learner, shape: Shape, seed: int, measured: Measured) -> list[Group]:
    """One rollout and one update on it."""
    with Load() as rollout:
        groups, policy = play_batch(learner, shape, seed)
    with Load() as update:
        metrics = learner.update(groups)
    turns = [t.completion for group in groups for e in group.episodes for t in e.turns]
    sampled = sum(len(c.ids) for c in turns if c is not None)
    trained = sum(row_lengths(groups))
    measured.rolled(rollout, sampled=sampled, read=policy.tokens_fed, trained=trained)
    measured.updated(update)
    if metrics["train/tokens"] != shape.sampled:
        raise SystemExit(f"{metrics['train/tokens']:g} tokens were trained on: groups were skipped")
    return groups


def main() -> None:
    request = Request.decode(sys.argv[1])
    torch.set_num_threads(request.threads)
    torch.manual_seed(request.seed)
    learner = make_learner(Path(request.model), request.micro)
    measured = Measured()
    for number in range(request.warm + request.iterations):
        iterate(learner, request.shape, request.seed + number, measured)
    told = versions("dreamgym", "torch", "transformers")
    print(measured.answer(request, imports_mb=IMPORTS_MB, peak_mb=peak_mb(), versions=told))


if __name__ == "__main__":
    main()
