"""The games of a world and the factory that plays them, on either back end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from dreamgym.envs.alfworld.fast import FastEnv
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.pool import EnginePool
from dreamgym.envs.base import Env
from dreamgym.types import DreamGymError, Task

Backend = Literal["fast", "engine"]


class AlfworldWorld:
    """A set of games, playable. Use it in a `with` block: the engine runs in processes."""

    def __init__(
        self, games: Iterable[Game], backend: Backend = "fast", *, num_workers: int = 2
    ) -> None:
        if backend not in ("fast", "engine"):
            raise DreamGymError(f"there is no back end {backend!r}. Use `fast` or `engine`.")
        self.games = {game.id: game for game in games}
        self.tasks = tuple(game.task() for game in self.games.values())
        self._pool = EnginePool(num_workers) if backend == "engine" else None

    def make_env(self, task: Task, group: int) -> Env:
        """A `MakeEnv`. A game begins the same for every group."""
        game = self.games.get(task.id)
        if game is None:
            raise DreamGymError(
                f"task {task.id!r} is none of this world's {len(self.games)} games. A variant "
                "lives in the dream only; a real task needs its game in the list."
            )
        return FastEnv(game) if self._pool is None else self._pool.env(game)

    def close(self) -> None:
        """End the engine's processes."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> AlfworldWorld:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
