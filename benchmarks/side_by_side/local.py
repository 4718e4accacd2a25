"""Our engine alone, or against `transformers` in the same process: decode, gemm, scaling."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.algos.settings import LearnerConfig
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.local import LocalLLM
from dreamgym.llm.weights import load_model
from side_by_side.ours import SIZES, LongWinded, iterate, make_learner, row_lengths, save_random
from side_by_side.report import Outcome, Row, alternated, median
from side_by_side.shape import Load, Measured, Shape

FORMULA = (
    "update: 3 x (2 B T + 2 V H A + 2 D L sum t(t+1)); decode: 2 B (p+n-1) + 2 V H n +"
    " 2 D L s(s+1) with s = p+n-1, per sequence. B matrix weights of the blocks, T tokens read in"
    " rows of t, A tokens trained on, V vocabulary, H width, D heads x head width, L layers, p"
    " prompt, n new. Looking up embeddings, norms and softmax are not counted; the half of the"
    " attention that causality leaves is"
)


@contextmanager
def random_model(args: argparse.Namespace) -> Iterator[Path]:
    """A folder with the model that is measured."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(SIZES[args.size], Path(folder), args.seed)
        yield Path(folder)


class Decoding:
    """The same prompts through our engine, as a user runs it, and through `model.generate`."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, batch: int, new: int
    ) -> None:
        self.model, self.batch, self.new = model, batch, new
        self.pad, self.vocabulary = tokenizer.pad_token_id, len(tokenizer)
        self.policy = LocalLLM(model, tokenizer, slots=batch)
        self.llm = LongWinded(self.policy)

    def prompts(self, length: int, seed: int) -> list[list[Message]]:
        """Of random tokens, so that none can be copied from another; three more frame them."""
        shape = (self.batch, length - 3)
        noise = torch.Generator().manual_seed(seed)
        ids = torch.randint(5, self.vocabulary, shape, generator=noise)
        return [[Message("user", "", tuple(row))] for row in ids.tolist()]

    def ours(self, prompts: Sequence[Sequence[Message]], seed: int) -> None:
        async def write() -> None:
            asked = (
                self.llm.complete(prompt, Sampling(1.0, self.new, seed + i))
                for i, prompt in enumerate(prompts)
            )
            written = await asyncio.gather(*asked)
            assert all(len(completion.ids) == self.new for completion in written)

        asyncio.run(write())

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[Message]], seed: int) -> None:
        torch.manual_seed(seed)
        ids = torch.tensor([self.policy.encoder.prompt(prompt) for prompt in prompts])
        written = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.new,
            min_new_tokens=self.new,
            do_sample=True,
            top_k=0,
            pad_token_id=self.pad,
        )
        assert written.shape[1] == ids.shape[1] + self.new


def decode(args: argparse.Namespace) -> Outcome:
    rows: list[Row] = []
    rounds: list[Row] = []
    with random_model(args) as folder:
        model, tokenizer = load_model(folder)
        for batch in args.batch:
            both = Decoding(model, tokenizer, batch, args.new)
            sides = {"ours": both.ours, "generate": both.generate}
            for side in sides.values():
                side(both.prompts(args.prompt, seed=-1), 0)
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for number, name in alternated(list(sides), args.rounds):
                prompts = both.prompts(args.prompt, args.seed + number)
                with Load() as load:
                    sides[name](prompts, args.seed + number)
                seconds[name].append(load.seconds)
                told = {"batch": batch, "round": number, "side": name, "s": load.seconds}
                rounds.append(told | {"cpu_s": load.cpu_s, "others": load.others})
            ours, theirs = (median(seconds[name]) for name in sides)
            mine = [r for r in rounds if r["batch"] == batch]
            cpu = {n: median(r["cpu_s"] for r in mine if r["side"] == n) for n in sides}
            rows.append(
                {
                    "batch": batch,
                    "ours tok/s": batch * args.new / ours,
                    "generate tok/s": batch * args.new / theirs,
                    "ratio": theirs / ours,
                    "ratio, cpu": cpu["generate"] / cpu["ours"],
                    "others": median(r["others"] for r in mine),
                }
            )
    notes = {"prompt": args.prompt, "new": args.new, "includes": "prefill and sampling"}
    return Outcome(rows, rounds, notes)


class Flops:
    """What a model's arithmetic comes to; see FORMULA."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        layers = model.get_decoder().layers
        self.blocks = sum(p.numel() for p in layers.parameters() if p.ndim == 2)
        self.head = config.vocab_size * config.hidden_size
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // (
            config.num_attention_heads
        )
        self.attention = config.num_attention_heads * head_dim * config.num_hidden_layers

    def _seen(self, length: int) -> int:
        return 2 * self.attention * length * (length + 1)

    def update(self, lengths: Sequence[int], trained: int) -> float:
        read = 2 * self.blocks * sum(lengths) + sum(map(self._seen, lengths))
        return 3.0 * (read + 2 * self.head * trained)

    def decode(self, batch: int, prompt: int, new: int) -> float:
        fed = prompt + new - 1
        return float(batch * (2 * self.blocks * fed + 2 * self.head * new + self._seen(fed)))


def gemm_peak(seconds: float = 0.3) -> dict[str, float]:
    """FLOP/s of the best run of each size of a square product."""
    peaks = {}
    for size in (256, 512, 1024, 2048):
        a, b = torch.randn(2, size, size)
        out = torch.mm(a, b)
        best, until = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            torch.mm(a, b, out=out)
            best = min(best, time.perf_counter() - began)
        peaks[str(size)] = 2 * size**3 / best
    return peaks


def gemm(args: argparse.Namespace) -> Outcome:
    """Shares of the peak are of what the processor did in the same round."""
    shape = Shape(groups=args.groups, attempts=4)
    rounds: list[dict[str, Any]] = []
    with random_model(args) as folder:
        learner = make_learner(folder, args.micro_tokens or LearnerConfig().micro_tokens)
        flops, measured = Flops(learner.model), Measured()
        both = Decoding(*load_model(folder), args.batch, args.new)
        both.ours(both.prompts(args.prompt, seed=-1), 0)
        for number in range(args.rounds):
            peak = max(gemm_peak().values())
            groups = iterate(learner, shape, args.seed + number, measured)
            work = flops.update(row_lengths(groups), shape.sampled)
            spans = {"update": (work, measured.update_s[-1])}
            prompts = both.prompts(args.prompt, args.seed + number)
            with Load() as load:
                both.ours(prompts, args.seed + number)
            work = flops.decode(args.batch, args.prompt, args.new)
            spans[f"decode at {args.batch}"] = (work, load.seconds)
            for name, (work, seconds) in spans.items():
                told = {"work": name, "round": number, "peak": peak, "flops": work, "s": seconds}
                rounds.append(told | {"share": work / seconds / peak, "others": load.others})
    rows = []
    for name in spans:
        mine = [r for r in rounds if r["work"] == name]
        rows.append(
            {
                "work": name,
                "GFLOP": mine[0]["flops"] / 1e9,
                "GFLOP/s": median(r["flops"] / r["s"] for r in mine) / 1e9,
                "GEMM peak": median(r["peak"] for r in mine) / 1e9,
                "ratio": median(r["share"] for r in mine),
                "others": median(r["others"] for r in mine),
            }
        )
    notes = {"formula": FORMULA, "matrix weights": flops.blocks, "head": flops.head}
    return Outcome(rows, rounds, notes)


def scaling(args: argparse.Namespace) -> Outcome:
    """An iteration with more and more episodes in flight; its ratio is per episode to the first."""
    rounds: list[dict[str, Any]] = []
    with random_model(args) as folder:
        learner = make_learner(folder, args.micro_tokens or LearnerConfig().micro_tokens)
        iterate(learner, Shape(groups=2, attempts=4), args.seed, Measured())
        for number, name in alternated([str(n) for n in args.in_flight], args.rounds):
            shape, measured = Shape(groups=int(name) // 4, attempts=4), Measured()
            iterate(learner, shape, args.seed + number, measured)
            rounds.append(
                {
                    "in flight": int(name),
                    "round": number,
                    "rollout_s": measured.rollout_s[0],
                    "update_s": measured.update_s[0],
                    "others": measured.others[0],
                }
            )
    rows: list[dict[str, Any]] = []
    for in_flight in args.in_flight:
        mine = [r for r in rounds if r["in flight"] == in_flight]
        rollout, update = (median(r[name] for r in mine) for name in ("rollout_s", "update_s"))
        rows.append(
            {
                "in flight": in_flight,
                "rollout s": rollout,
                "update s": update,
                "s/iteration": rollout + update,
                "s/episode": (rollout + update) / in_flight,
                "others": median(r["others"] for r in mine),
            }
        )
    first = rows[0]["s/episode"]
    return Outcome([row | {"ratio": first / row["s/episode"]} for row in rows], rounds)
