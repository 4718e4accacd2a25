"""A dream's turns per second against ALFWorld's own engine, on the same recorded actions.

Nobody chooses actions here, so that only the world is timed: 64 episodes at once in the dream, and
in the engine as many as its pool has workers. Ours is the engine without what it does twice (see
`envs/alfworld/reference.py`), each worker started before the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym import build
from dreamgym.config import RunConfig
from dreamgym.envs.alfworld.demonstrate import demonstrate
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.reference import require_engine
from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.envs.base import Env
from dreamgym.job import read_config
from dreamgym.ledger import Ledger
from dreamgym.llm.weights import load_model
from dreamgym.replay.store import ReplayStore
from dreamgym.types import Task, WorldFault
from side_by_side.report import Outcome, Row, alternated, median
from side_by_side.shape import Load

Open = Callable[[int, Task], Env]
OTHER_SEED = 10_000


@dataclass(frozen=True, slots=True)
class Script:
    """What an agent once did in a game."""

    task: Task
    actions: tuple[str, ...]


def scripts(games: Sequence[Game], seed: int) -> list[Script]:
    """Noisy expert play on games that the logs know, as a policy in training dreams them; with the
    longest first, so that a lot's episodes end together. Not the play that was logged."""
    played = [demonstrate(game, "noisy", seed=seed + OTHER_SEED, max_turns=30) for game in games]
    made = [Script(e.task, tuple(turn.action for turn in e.turns)) for e in played]
    return sorted(made, key=lambda script: -len(script.actions))


async def replay(lot: Sequence[Script], make: Open, counts: Counter[str]) -> dict[str, float]:
    """Seconds to begin all episodes of a lot, and seconds to play them side by side."""
    envs = [make(i, script.task) for i, script in enumerate(lot)]

    async def begin(env: Env, script: Script) -> bool:
        try:
            await env.start(script.task)
        except WorldFault as fault:
            counts[f"no start: {fault.kind}"] += 1
            return False
        return True

    async def play(env: Env, script: Script) -> None:
        for action in script.actions:
            try:
                result = await env.step(action)
            except WorldFault as fault:
                counts["faulted"] += 1
                counts[f"fault: {fault.kind}"] += 1
                return
            counts["by rule" if result.by == "rule" else "answered"] += 1
            if result.ending is not None:
                return

    with Load() as starting:
        begun = await asyncio.gather(*map(begin, envs, lot))
    playing = [
        play(*pair) for pair, ok in zip(zip(envs, lot, strict=True), begun, strict=True) if ok
    ]
    with Load() as stepping:
        await asyncio.gather(*playing)
    await asyncio.gather(*(env.close() for env in envs))
    return {"start_s": starting.seconds, "step_s": stepping.seconds, "others": stepping.others}


async def in_lots(told: Sequence[Script], make: Open, in_flight: int) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    spans = [
        await replay(told[first : first + in_flight], make, counts)
        for first in range(0, len(told), in_flight)
    ]
    begun, stepped = (sum(span[name] for span in spans) for name in ("start_s", "step_s"))
    turns = counts["answered"] + counts["by rule"]
    return {
        "start_s": begun,
        "step_s": stepped,
        "turns": turns,
        "faulted": counts["faulted"],
        "by rule": counts["by rule"],
        "no start": sum(number for name, number in counts.items() if name.startswith("no start")),
        "counts": dict(counts),
        "turns/s": turns / stepped,
        "turns/s, starts too": turns / (begun + stepped),
        "others": median(span["others"] for span in spans),
    }


def fitted(args: argparse.Namespace) -> Path:
    """A run with an experience model of two million parameters; fitted once, kept in the cache."""
    if args.run:
        return args.run
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    run = cache / "dreamgym" / "benchmarks" / f"dream-2m-{args.fit_tokens}-{args.seed}"
    if not (run / "stages" / "fit.json").exists():
        print(f"fitting on {args.fit_tokens:,} tokens, once", file=sys.stderr)
        command = [sys.executable, "-m", "dreamgym", "fit", "--json", "--run-dir", str(run)]
        command += ["--model.width", "192", "--model.layers", "4", "--seed", str(args.seed)]
        command += ["--fit.num-tokens", str(args.fit_tokens)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def dream(args: argparse.Namespace) -> Outcome:
    require_engine()
    run = fitted(args)
    cfg: RunConfig = read_config(run)
    games = build.make_games(cfg.world, cfg.seed).train[: args.episodes]
    told = scripts(games, cfg.seed)
    rounds: list[Row] = []
    with (
        ReplayStore(run / "replay.sqlite") as store,
        AlfworldWorld(games, "engine", num_workers=args.workers) as engine,
    ):
        rollout = cfg.rollout.model_copy(update={"in_flight": args.in_flight})
        cfg = cfg.model_copy(update={"rollout": rollout})
        world = build.make_dream(cfg, store, run / "experience", Ledger())
        size = sum(p.numel() for p in load_model(run / "experience")[0].parameters())
        makers: dict[str, tuple[Open, int]] = {
            "dream": (lambda i, task: world.make_env(task, i), args.in_flight),
            "engine": (lambda i, task: engine.make_env(task, i), args.workers),
        }

        async def measure() -> None:
            await replay(told[-args.workers :], makers["engine"][0], Counter())
            for number, name in alternated(list(makers), args.rounds):
                make, in_flight = makers[name]
                world.forget()  # hidden states are written anew
                found = await in_lots(told, make, in_flight)
                rounds.append({"world": name, "round": number} | found)

        asyncio.run(measure())
    notes = {"parameters": size, "episodes": len(told), "in_flight": args.in_flight}
    notes |= {"workers": args.workers, "run": run.name}
    return Outcome(_rows(rounds), rounds, notes)


def _rows(rounds: Sequence[Row]) -> list[Row]:
    names = ("turns/s", "turns/s, starts too", "turns", "faulted", "by rule")
    names += ("no start", "others")
    medians = {
        world: {n: median(r[n] for r in rounds if r["world"] == world) for n in names}
        for world in ("dream", "engine")
    }
    engine = medians["engine"]
    return [
        {"world": world, **m}
        | {"ratio": m["turns/s"] / engine["turns/s"]}
        | {"ratio, starts too": m["turns/s, starts too"] / engine["turns/s, starts too"]}
        for world, m in medians.items()
    ]
