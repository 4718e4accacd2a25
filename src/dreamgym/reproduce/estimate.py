"""What a table will take, before it is run: tokens, memory and hours, from stated assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.config import RunConfig
from dreamgym.progress import NoProgress
from dreamgym.reproduce.plan import Block, Cell
from dreamgym.reproduce.run import Workshop
from dreamgym.types import DreamGymError


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, as far as memory and work depend on it."""

    parameters: float
    layers: int
    kv_width: int  # heads of keys and values times their size


SHAPES = {
    "Qwen/Qwen2.5-7B-Instruct": Shape(7.62e9, 28, 512),
    "meta-llama/Llama-3.1-8B-Instruct": Shape(8.03e9, 32, 1024),
    "meta-llama/Llama-3.2-3B-Instruct": Shape(3.21e9, 28, 1024),
}
"""From the models' own configs, as of 2026-12."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates that are reached, not peaks, in FLOP/s."""

    name: str
    train: float
    decode: float
    weight_bytes: int  # of a parameter in use
    state_bytes: int  # of a parameter in training: weight, gradient, moments, master copy


CPU = Machine("one core (as measured here: 5,000 tokens/s in a fit)", 33e9, 10e9, 4, 16)
GPU = Machine("one H100 (assumed: 40 % of 989 TFLOP/s, a tenth of that in decoding)",
              4e14, 4e13, 2, 16)  # fmt: skip
TURNS = 0.6  # of max_turns, per episode
WRITTEN = 0.5  # of max_tokens, per answer
STATE_TOKENS = 60  # read per turn beside what was written


@dataclass(frozen=True, slots=True)
class Needs:
    """One cell."""

    trained: float  # tokens through a backward pass
    read_and_written: float  # tokens through a forward pass alone
    memory_gib: float
    hours: float


def needs(cfg: RunConfig, cell: Cell) -> Needs:
    """Work is 6 FLOP a parameter and token in training (8 with checkpointing), 2 in a forward pass;
    attention is left out."""
    machine = GPU if cfg.model.pretrained else CPU
    dream, policy = _shape(cfg, cfg.model.pretrained), _shape(cfg, cfg.clone.pretrained)
    fits = cfg.fit.num_tokens if not cell.init else 0
    clones = cfg.clone.sft.num_tokens if cell.weights == "none" or not cell.init else 0
    work = 6 * (fits * dream.parameters + clones * policy.parameters)
    trained, passed, decoded = float(fits + clones), 0.0, 0.0
    if cell.learns:
        episodes = cfg.steps * cfg.curriculum.tasks_per_step * cfg.rollout.group_size
        turns = episodes * TURNS * cfg.rollout.max_turns
        wrote = turns * (WRITTEN * cfg.rollout.max_tokens + STATE_TOKENS)
        passes = cfg.learner.epochs * (8 if cfg.learner.checkpointing else 6)
        passes += 2 * (cfg.learner.objective.kl > 0)
        work += passes * wrote * policy.parameters
        trained += wrote * cfg.learner.epochs
        decoded = wrote * policy.parameters
        passed = wrote
        if cfg.train_world == "dream":
            told = turns * (WRITTEN * cfg.experience.max_tokens + STATE_TOKENS)
            decoded += told * dream.parameters
            passed += told
    hours = (work / machine.train + 2 * decoded / machine.decode) / 3600
    return Needs(trained, passed, _memory(cfg, cell, machine, dream, policy), hours)


def _memory(cfg: RunConfig, cell: Cell, machine: Machine, dream: Shape, policy: Shape) -> float:
    """The most of the cell's phases, in GiB: a fit, or a policy in training beside its dream."""
    cache = sum(
        2 * s.layers * s.kv_width * machine.weight_bytes * cfg.model.context * cfg.rollout.in_flight
        for s in ((policy, dream) if cfg.train_world == "dream" else (policy,))
    )
    copies = 1 + (cfg.learner.objective.kl > 0)  # the sampler's snapshot, and the reference
    trained = (machine.state_bytes + copies * machine.weight_bytes) * policy.parameters + cache
    if cfg.learner.algorithm == "ppo" and cfg.learner.ppo.critic == "separate":
        trained += machine.state_bytes * policy.parameters
    if cfg.train_world == "dream":
        trained += machine.weight_bytes * dream.parameters
    fitted = machine.state_bytes * dream.parameters
    return max(trained if cell.learns else 0.0, 0.0 if cell.init else fitted) / 2**30


def _shape(cfg: RunConfig, name: str) -> Shape:
    if not name:  # a Llama made here; the gated layer is 8/3 as wide
        m = cfg.model
        kv = m.width * m.kv_heads // m.heads
        layer = 2 * m.width * (m.width + kv) + 8 * m.width**2
        return Shape(m.layers * layer + m.vocab_size * m.width, m.layers, kv)
    if name not in SHAPES:
        raise DreamGymError(f"the size of {name} is not known here: {', '.join(SHAPES)} are")
    return SHAPES[name]


def estimate(blocks: Sequence[Block], cells: Sequence[Cell]) -> dict[str, Any]:
    """Every cell of every block, resolved; raises DreamGymError where a recipe does not hold."""
    nowhere = Path("runs")
    rows = []
    for block in blocks:
        shop = Workshop(block, nowhere, nowhere, NoProgress())
        for cell in cells:
            told = needs(shop.config(cell)[0], cell)
            rows.append((block.name, cell.name, told))
    hours = sum(told.hours for _, _, told in rows)
    machine = GPU if blocks and blocks[0].scale == "paper" else CPU
    lines = [f"{'cell':<28}{'trained':>12}{'read, written':>15}{'memory':>12}{'hours':>10}"]
    lines += [
        f"{f'{block}/{name}':<28}{t.trained / 1e6:>10.1f} M{t.read_and_written / 1e6:>13.1f} M"
        f"{t.memory_gib:>8.1f} GiB{t.hours:>10.1f}"
        for block, name, t in rows
    ]
    most = max((told.memory_gib for _, _, told in rows), default=0.0)
    lines.append(
        f"{len(rows)} cells, {hours:,.0f} hours of {machine.name}, at most {most:.1f} GiB. Tokens "
        f"in millions. Assumed: episodes of {TURNS:.0%} of max_turns, answers of {WRITTEN:.0%} of "
        f"max_tokens, states of {STATE_TOKENS} tokens; measuring is left out"
    )
    cell_data = [
        {"cell": f"{block}/{name}", "trained_tokens": t.trained,
         "passed_tokens": t.read_and_written, "memory_gib": t.memory_gib, "hours": t.hours}
        for block, name, t in rows
    ]  # fmt: skip
    return {"cells": cell_data, "hours": hours, "memory_gib": most, "text": "\n".join(lines)}
