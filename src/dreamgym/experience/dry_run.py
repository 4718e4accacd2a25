"""A solver plays a task in the dream: whether it can be reached there at all."""

from __future__ import annotations

from dreamgym.envs.base import Env
from dreamgym.envs.text import Solver
from dreamgym.types import Task


async def dry_run(env: Env, task: Task, solver: Solver, max_turns: int) -> int:
    """The turns that the solver needed, 0 where it did not get there; raises DreamFault as `env`
    does."""
    try:
        await env.start(task)
        for turn in range(1, max_turns + 1):
            action = solver.act()
            result = await env.step(action)
            if result.ending is not None:
                return turn if result.reward > 0 else 0
            solver.observe(action, result.state)
    finally:
        await env.close()
    return 0
