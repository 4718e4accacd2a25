"""A run's policy in the real world, measured in as many processes as there are cores.

Decoding a tiny model keeps one core busy, however many threads it is given: two processes of one
thread each play nearly twice as many games. Every process reads the run folder for itself and
writes a line for every episode that ends; one whose parent is gone fails at its next line.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dreamgym import build
from dreamgym.config import RunConfig
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.world import AlfworldWorld, Backend
from dreamgym.evaluate import Evaluation, Outcome, evaluate, summarise
from dreamgym.llm.local import LocalLLM
from dreamgym.progress import quiet_libraries
from dreamgym.settings import load_config
from dreamgym.train import eval_rollout
from dreamgym.types import DreamGymError

_GAMES_PER_PROCESS = 50
"""Fewer would not repay the seconds that a process takes to start."""

OnOutcome = Callable[[Outcome], None]


def load_policy(weights: Path, slots: int) -> LocalLLM:
    return LocalLLM(*build.load_model(weights), slots=slots)


async def measure_real(
    policy: LocalLLM,
    weights: Path,
    games: Sequence[Game],
    *,
    backend: Backend,
    num_processes: int | None = None,
    on_outcome: OnOutcome = lambda outcome: None,
) -> Evaluation:
    """One attempt at each of `games`, which are the first of the held-out ones of a run.

    `policy` holds `weights`, a folder in that run's, and plays a share of them here; the other
    processes load their own. The samples do not depend on how many there are: by default one per
    thread of torch's, and for ALFWorld's own engine, which has worker processes already, only this.
    """
    if num_processes is None:
        useful = len(games) // _GAMES_PER_PROCESS if backend == "fast" else 1
        num_processes = max(1, min(torch.get_num_threads(), useful))
    size = math.ceil(len(games) / num_processes)
    outcomes: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        on_outcome(outcome)

    with _threads(1 if num_processes > 1 else torch.get_num_threads()):
        await asyncio.gather(
            *(
                _play_elsewhere(weights, range(first, min(first + size, len(games))), keep)
                for first in range(size, len(games), size)
            ),
            _play(policy, read_config(weights.parent), games[:size], backend, 0, keep),
        )
    return summarise(outcomes)


async def _play(
    policy: LocalLLM,
    cfg: RunConfig,
    games: Sequence[Game],
    backend: Backend,
    first: int,
    on_outcome: OnOutcome,
) -> None:
    with AlfworldWorld(games, backend) as world:
        await evaluate(
            policy,
            world.tasks,
            world.make_env,
            eval_rollout(cfg),
            world="real",
            seed=cfg.seed,
            first=first,
            on_episode=lambda episode: on_outcome(Outcome.of(episode)),
        )


async def _play_elsewhere(weights: Path, numbers: range, on_outcome: OnOutcome) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dreamgym.measure"),
        *(str(weights), str(numbers.start), str(numbers.stop)),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is ours to pass on
    )
    assert process.stdout is not None
    missing = len(numbers)
    try:
        async for line in process.stdout:
            on_outcome(Outcome(**json.loads(line)))
            missing -= 1
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status or missing:
        raise DreamGymError(
            f"a process that measured {weights} ended with status {status}, {missing} of its"
            f" {len(numbers)} episodes missing. What it said is above; with status -9 it was"
            " killed, perhaps for memory. Start the command again: finished stages are kept."
        )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read_config(run: Path) -> RunConfig:
    """The resolved config that a run was made with."""
    path = run / "config.toml"
    if not path.exists():
        raise DreamGymError(f"{run} is no run folder: it has no config.toml")
    settings, _ = load_config(RunConfig, path)
    return settings


def as_data(result: Evaluation) -> dict[str, Any]:
    """For reports: JSON knows no rate of nothing, so that is None."""
    low, high = result.success.interval
    return {
        "hits": result.success.hits,
        "episodes": result.success.total,
        "success": _known(result.success.value),
        "low": low,
        "high": high,
        "half_width": result.success.half_width,
        "mean_turns": _known(result.mean_turns),
        "by_kind": {kind: [rate.hits, rate.total] for kind, rate in result.by_kind.items()},
        "endings": dict(result.endings),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _child(weights: Path, first: int, stop: int) -> None:
    quiet_libraries()
    torch.set_num_threads(1)
    cfg = read_config(weights.parent)
    games = build.make_games(cfg.world, cfg.seed).eval[first:stop]
    policy = load_policy(weights, cfg.rollout.in_flight)

    def tell(outcome: Outcome) -> None:
        print(json.dumps(asdict(outcome)), flush=True)

    asyncio.run(_play(policy, cfg, games, "fast", first, tell))


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
