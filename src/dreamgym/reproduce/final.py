"""The last measurement of a block's policies in ALFWorld's own engine: game by game, so that each
is loaded once for all of them, and saved after every game."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.world import AlfworldWorld
from dreamgym.envs.base import Env, MakeEnv
from dreamgym.evaluate import Evaluation, summarise
from dreamgym.job import Progress
from dreamgym.llm.base import LLM
from dreamgym.metrics_log import JsonlLog
from dreamgym.rollout import RolloutConfig, group_number, play
from dreamgym.types import Ending, Episode, StepResult, Task, Turn

_WORKERS = 2


class Clock:
    """What the engine itself takes, apart from the policies: seconds of starts and of steps."""

    def __init__(self) -> None:
        self.start_s = self.step_s = 0.0
        self.starts = self.steps = 0

    def timed(self, make_env: MakeEnv) -> MakeEnv:
        return lambda task, group: _TimedEnv(make_env(task, group), self)


class _TimedEnv:
    def __init__(self, env: Env, clock: Clock) -> None:
        self._env, self._clock = env, clock

    async def start(self, task: Task) -> str:
        began = time.monotonic()
        state = await self._env.start(task)
        self._clock.start_s += time.monotonic() - began
        self._clock.starts += 1
        return state

    async def step(self, action: str) -> StepResult:
        began = time.monotonic()
        result = await self._env.step(action)
        self._clock.step_s += time.monotonic() - began
        self._clock.steps += 1
        return result

    async def close(self) -> None:
        await self._env.close()


async def play_games(
    policies: Mapping[str, LLM],
    games: Sequence[Game],
    rollout: RolloutConfig,
    seed: int,
    log: JsonlLog,
    progress: Progress,
) -> None:
    """Let every policy play every game that the log does not have, with the random numbers that
    `evaluate` would give it; a line of the log is one game.

    The first to play a game waits until it is loaded: only that start is in the log as `load_s`.
    """
    done = {(told["game"], name) for told in log.read() for name in told["solved"]}
    waiting = [
        (index, game)
        for index, game in enumerate(games)
        if any((game.id, name) not in done for name in policies)
    ]
    number = itertools.count(len(games) - len(waiting) + 1)
    queue = iter(waiting)
    with (
        progress.bar("measure in ALFWorld's engine", len(games)) as tick,
        AlfworldWorld(games, "engine", num_workers=_WORKERS) as world,
    ):
        tick(len(games) - len(waiting), "")
        task_of = {task.id: task for task in world.tasks}

        async def stream() -> None:
            for index, game in queue:
                record: dict[str, Any] = {"game": game.id, "solved": {}, "turns": {}}
                for name, policy in policies.items():
                    if (game.id, name) in done:
                        continue
                    clock = Clock()
                    episode = await play(
                        policy,
                        clock.timed(world.make_env)(task_of[game.id], index),
                        task_of[game.id],
                        rollout,
                        world="real",
                        seed=group_number(seed, index),
                    )
                    fault = episode.ending.is_fault
                    record["solved"][name] = None if fault else episode.success
                    record["turns"][name] = len(episode.turns)
                    record.setdefault("load_s", clock.start_s)
                    record["step_s"] = record.get("step_s", 0.0) + clock.step_s
                    record["steps"] = record.get("steps", 0) + clock.steps
                log.append(record)
                tick(next(number), "")

        await asyncio.gather(*(stream() for _ in range(_WORKERS)))


def evaluation(name: str, games: Sequence[Game], log: JsonlLog) -> Evaluation:
    """One policy's part of the log."""
    told: dict[str, Mapping[str, Any]] = {}
    for line in log.read():
        if name in line["solved"]:
            told[line["game"]] = line
    return summarise([_as_episode(game, told[game.id], name) for game in games])


def _as_episode(game: Game, line: Mapping[str, Any], name: str) -> Episode:
    """As much of an episode as a rate needs."""
    solved = line["solved"][name]
    turns = line["turns"][name]
    blank = Turn("", "", 0.0, "")
    paid = Turn("", "", 1.0, "")
    told = (*[blank] * (turns - 1), paid if solved else blank) if turns else ()
    ending = Ending.ENV_FAULT if solved is None else Ending.DONE if solved else Ending.TURN_LIMIT
    return Episode(game.task(), told, ending, "real")


def costs(log: JsonlLog) -> dict[str, float]:
    """Mean seconds of loading a game and of a step, as they were in this pass."""
    lines = [line for line in log.read() if line.get("steps")]
    steps = sum(line["steps"] for line in lines)
    return {
        "load_s": sum(line["load_s"] for line in lines) / max(1, len(lines)),
        "step_s": sum(line["step_s"] for line in lines) / max(1, steps),
        "workers": float(_WORKERS),
    }
