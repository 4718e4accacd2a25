"""Engine episodes in worker processes: deadlines kept by the parent, broken workers replaced.

The engine is slow, leaks, and can crash or hang inside its C library. So each episode has a worker
process to itself while it lasts. The parent waits for every answer with a deadline; a worker that
is late or dies is killed with its whole process group, its episode ends as an `EnvFault`, and the
slot goes to the next episode with a new process.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.reference import require_engine
from dreamgym.envs.alfworld.worker import Worker
from dreamgym.types import Ending, EnvFault, StepResult, Task

WORKER = (sys.executable, "-m", "dreamgym.envs.alfworld.reference")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the parent waits before it kills a worker, in seconds."""

    start_s: float = 120.0
    """For the process, its imports and the game: 3 seconds where nothing else runs."""
    step_s: float = 30.0
    episode_s: float = 1800.0
    """From start to close, the policy's own time included."""
    episodes_per_worker: int = 50
    """Then a fresh process takes over: the engine does not give its memory back."""


class EnginePool:
    """A fixed number of slots for engine episodes. Close it, or use it in a `with` block."""

    def __init__(
        self,
        num_workers: int = 2,
        deadlines: Deadlines | None = None,
        command: Sequence[str] = WORKER,
    ) -> None:
        if command is WORKER:
            require_engine()
        self.deadlines = deadlines or Deadlines()
        self.num_started = 0  # processes so far: more than slots where some were replaced
        self._command = command
        self._lock = threading.Lock()
        self._idle: deque[Worker | None] = deque([None] * num_workers)  # None: yet to be started
        self._waiting: deque[Future[Worker | None]] = deque()
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="alfworld-engine")
        self._closed = False

    def env(self, game: Game) -> ReferenceEnv:
        """An Env for one episode of one game; it waits for a free slot when it starts."""
        return ReferenceEnv(self, game)

    async def acquire(self, game: str = "") -> Worker:
        """A worker for one episode, in order of asking; of idle ones that which has this game
        loaded. Give it back with `release`."""
        turn: Future[Worker | None] = Future()
        with self._lock:
            if self._closed:
                raise EnvFault("misuse", "the engine pool is closed")
            if self._idle:
                has = (i for i, w in enumerate(self._idle) if w is not None and w.game == game)
                self._idle.rotate(-next(has, 0))
                turn.set_result(self._idle.popleft())
            else:
                self._waiting.append(turn)
        try:
            worker = await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            turn.add_done_callback(self._return_unused)
            raise
        if worker is not None:
            if worker.alive:
                return worker
            worker.kill()  # it died while it was idle: collect what is left of it
        try:
            worker = Worker(self._command)
        except OSError as error:
            self.release(None)
            raise EnvFault("engine_start", f"{self._command[0]}: {error}") from error
        self.num_started += 1
        return worker

    def _return_unused(self, turn: Future[Worker | None]) -> None:
        if not turn.cancelled() and turn.exception() is None:  # it came as we were called off
            self.release(turn.result())

    def release(self, worker: Worker | None) -> None:
        """Free the slot. A worker that broke, or has served its time, goes."""
        if worker is not None and (
            worker.busy or not worker.alive or worker.episodes >= self.deadlines.episodes_per_worker
        ):
            worker.kill()
            worker = None
        while True:
            with self._lock:
                if not self._closed and not self._waiting:
                    self._idle.append(worker)
                    return
                turn = self._waiting.popleft() if self._waiting else None
            if turn is None:  # the pool is closed
                if worker is not None:
                    worker.kill()
                return
            if turn.set_running_or_notify_cancel():  # False: it no longer waits
                turn.set_result(worker)
                return

    async def ask(
        self, worker: Worker, message: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """`Worker.request` without blocking the loop."""
        worker.busy = True  # from now on: the thread may begin later
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, worker.request, message, timeout_s)

    def close(self) -> None:
        """Kill every idle worker; those still in an episode end with it."""
        with self._lock:
            self._closed = True
            idle, waiting = list(self._idle), list(self._waiting)
            self._idle.clear()
            self._waiting.clear()
        for worker in idle:
            if worker is not None:
                worker.kill()
        for turn in waiting:
            if turn.set_running_or_notify_cancel():
                turn.set_exception(EnvFault("misuse", "the engine pool was closed"))
        self._threads.shutdown(wait=False)

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ReferenceEnv:
    """One episode of one game in ALFWorld's own engine."""

    def __init__(self, pool: EnginePool, game: Game) -> None:
        self._pool = pool
        self._game = game
        self._worker: Worker | None = None
        self._deadline = 0.0
        self._started = False
        self._over = ""  # why no further action is taken

    async def start(self, task: Task) -> str:
        """Wait for a slot and begin the game that the task names."""
        if self._started or self._over:
            raise EnvFault("misuse", "start() a second time, or after close()")
        if task.id != self._game.id:
            raise EnvFault("misuse", f"task {task.id} is not this env's game {self._game.id}")
        self._started = True
        self._worker = await self._pool.acquire(self._game.id)
        self._worker.episodes += 1
        self._worker.game = self._game.id
        self._deadline = time.monotonic() + self._pool.deadlines.episode_s
        answer = await self._ask(
            {"do": "start", "game": asdict(self._game)}, self._pool.deadlines.start_s
        )
        return str(answer["state"])

    async def step(self, action: str) -> StepResult:
        """Take one action; after the ending there is none to take."""
        if not self._started or self._over:
            raise EnvFault("misuse", f"step() {self._over or 'before start()'}")
        answer = await self._ask({"do": "step", "action": action}, self._pool.deadlines.step_s)
        if answer["done"]:
            self._over = "after the ending"
        ending = Ending.DONE if answer["done"] else None
        return StepResult(answer["state"], answer["reward"], ending, answer["valid"])

    async def admissible(self) -> list[str]:
        """The commands the engine would accept now."""
        answer = await self._ask({"do": "admissible"}, self._pool.deadlines.step_s)
        return list(answer["admissible"])

    async def close(self) -> None:
        """Give the slot back."""
        self._over = "after close()"
        self._free()

    async def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._worker is None:
            raise EnvFault("misuse", f"{message['do']} before start() or after close()")
        left = self._deadline - time.monotonic()
        try:
            return await self._pool.ask(self._worker, message, max(0.0, min(timeout_s, left)))
        except EnvFault:
            self._over = "after a fault"
            self._free()
            raise

    def _free(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.release(worker)
