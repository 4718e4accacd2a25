"""TRL's side of engine.py, in an environment of its own: nothing of ours but the episode's shape.

    python -m side_by_side.trl_side REQUEST

Modes: `env` is TRL's own tool loop over `environment_factory`; `rollout` is a `rollout_func`, which
brings its own turns and steps one world after another; `rollout_threads` steps them all at once, as
an author who expects a slow world would. A random model never writes a tool call, so in `env` what
it wrote is handed on as one; all other code is TRL's.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import trl
import trl.trainer.grpo_trainer as grpo
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from side_by_side.shape import (
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
Ids = list[int]


class World:
    """An environment as TRL wants it: a public method with types and a docstring is a tool."""

    _shape = Shape()
    _numbers = itertools.count()

    def reset(self, task: int = 0, **row: Any) -> str:
        self._task, self._turn, self._number = task, 0, next(self._numbers)
        return observation(self._task, 0, self._shape.words)

    def step(self, action: str) -> str:
        """
        Act in the world.

        Args:
            action: What to do next.

        Returns:
            What you see after the action.
        """
        if self._shape.latency_s:
            time.sleep(self._shape.latency_s)
        self._turn += 1
        return observation(self._task, self._turn, self._shape.words)

    def get_reward(self) -> float:
        return payment(self._number, self._shape.attempts)


class Watch(TrainerCallback):
    """Reads clocks around TRL's own methods. An update is what follows a rollout within a step, so
    that the trainer's loop and its logs are not held against it."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self._sampled = self._read = 0
        self._update = Load()
        for name, seen in (
            ("_generate_single_turn", self._turn),
            ("_generate_and_score_completions", self._rollout),
        ):
            setattr(GRPOTrainer, name, seen(getattr(GRPOTrainer, name)))

    def _turn(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def seen(trainer: GRPOTrainer, prompt_ids: list[Ids], *args: Any, **more: Any) -> Any:
            answer = generate(trainer, prompt_ids, *args, **more)
            written = sum(map(len, answer[0]))
            self._sampled += written
            self._read += sum(map(len, prompt_ids)) + written
            return answer

        return seen

    def _rollout(self, play: Callable[..., Any]) -> Callable[..., Any]:
        def seen(trainer: GRPOTrainer, inputs: Any) -> Any:
            self._sampled = self._read = 0
            with Load() as load:
                batch = play(trainer, inputs)
            tokens = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
            self.measured.rolled(load, sampled=self._sampled, read=self._read, trained=tokens)
            self._update = Load().__enter__()
            return batch

        return seen

    def on_step_end(self, *args: Any, **more: Any) -> None:
        self._update.__exit__()
        self.measured.updated(self._update)


def as_tool_calls() -> None:
    """Whatever the model wrote is one call of `step`."""

    def parse(tokenizer: PreTrainedTokenizerFast, ids: Ids, **more: Any) -> dict[str, Any]:
        action = tokenizer.decode(ids, skip_special_tokens=True)
        call = {"name": "step", "arguments": {"action": action}}
        tool_calls = [{"type": "function", "function": call}]
        return {"role": "assistant", "content": "", "tool_calls": tool_calls}

    grpo.parse_response = parse


def turns_of(shape: Shape, workers: int) -> Callable[[Any, GRPOTrainer], dict[str, Any]]:
    """A `rollout_func`: turns in step, written as our side's prompts are."""

    def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        worlds = [World() for _ in prompts]
        first = [w.reset(task=i // shape.attempts) for i, w in enumerate(worlds)]
        texts = [f"<|user|>{text}<|end|><|assistant|>" for text in first]
        asked = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        ids: list[Ids] = [[] for _ in prompts]
        mask: list[Ids] = [[] for _ in prompts]
        with ThreadPoolExecutor(workers) as pool:
            for turn in range(shape.turns):
                contexts = [a + b for a, b in zip(asked, ids, strict=True)]
                written, _ = trainer._generate_single_turn(contexts, None, {}, 1)
                actions = tokenizer.batch_decode(written, skip_special_tokens=True)
                seen = pool.map(World.step, worlds, actions)
                for i, (new, state) in enumerate(zip(written, seen, strict=True)):
                    ids[i] += new
                    mask[i] += [1] * len(new)
                    if turn < shape.turns - 1:
                        text = f"<|end|><|user|>{state}<|end|><|assistant|>"
                        shown = tokenizer.encode(text, add_special_tokens=False)
                        ids[i] += shown
                        mask[i] += [0] * len(shown)
        rewards = [world.get_reward() for world in worlds]
        return {
            "prompt_ids": asked,
            "completion_ids": ids,
            "logprobs": None,
            "env_mask": mask,
            "paid": rewards,
        }

    return rollout


def make_trainer(request: Request, folder: str) -> GRPOTrainer:
    shape = request.shape
    World._shape = shape
    tokenizer = PreTrainedTokenizerFast.from_pretrained(request.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(request.model, dtype=torch.float32)
    if request.mode == "env":
        as_tool_calls()
        tokenizer.eos_token = "<|im_end|>"
        templates = Path(trl.__file__).parent / "chat_templates"
        tokenizer.chat_template = (templates / "qwen3.jinja").read_text()
        how: dict[str, Any] = {"environment_factory": World}
    else:
        workers = shape.episodes if request.mode == "rollout_threads" else 1
        how = {
            "rollout_func": turns_of(shape, workers),
            "reward_funcs": lambda paid, **more: paid,
        }
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=request.micro,
        gradient_accumulation_steps=shape.episodes // request.micro,
        num_generations=shape.attempts,
        max_completion_length=shape.turns * (shape.new + 4 * shape.words + 60),
        max_steps=request.warm + request.iterations,
        learning_rate=1e-5,
        seed=request.seed,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,  # it saves memory and costs time
        generation_kwargs={"max_new_tokens": shape.new, "min_new_tokens": shape.new, "top_k": 0},
        max_tool_calling_iterations=shape.turns - 1,
        disable_tqdm=True,
        chat_template_kwargs={"enable_thinking": False},
    )
    tasks = list(range(shape.groups))
    prompt = [{"role": "user", "content": ""}]
    rows = Dataset.from_dict({"prompt": [prompt for _ in tasks], "task": tasks})
    return GRPOTrainer(
        model=model, args=config, train_dataset=rows, processing_class=tokenizer, **how
    )


def main() -> None:
    request = Request.decode(sys.argv[1])
    torch.set_num_threads(request.threads)
    measured = Measured()
    watch = Watch(measured)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(request, folder)
        trainer.add_callback(watch)
        trainer.train()
    told = versions("trl", "torch", "transformers")
    print(measured.answer(request, imports_mb=IMPORTS_MB, peak_mb=peak_mb(), versions=told))


if __name__ == "__main__":
    main()
