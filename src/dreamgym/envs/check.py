"""The contract of an Env, as a check that anyone can run over a world of their own.

asyncio.run(check_env(make_env, task, solution=("open box 2", "take key")))
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from dreamgym.envs.base import Env, MakeEnv
from dreamgym.types import DreamGymError, Ending, StepResult, Task, WorldFault

NONSENSE = "xyzzy the frobnicator"


class ContractError(DreamGymError):
    """An Env that breaks the contract; the message names the rule."""


async def check_env(
    make_env: MakeEnv, task: Task, *, solution: Sequence[str] = (), nonsense: str = NONSENSE
) -> None:
    """Raise ContractError at the first broken rule. Needs two envs of the world at the same time.

    `solution` is played too: valid actions, the last of which ends the task with a reward. Without
    it nothing is checked that lies beyond an ending. `nonsense` must be no action of the world.
    """
    await _check_order_of_calls(make_env, task)
    await _check_nonsense(make_env, task, nonsense)
    actions = [nonsense, *solution, *([] if solution else [nonsense])]
    first = await _record(make_env(task, 0), task, actions)
    again = await _record(make_env(task, 0), task, actions)
    _require(first == again, f"one group, one world: {first!r} and then {again!r}")
    await _check_separate(make_env, task, actions, first)
    if solution:
        await _check_ending(make_env, task, solution)


async def _check_order_of_calls(make_env: MakeEnv, task: Task) -> None:
    env = make_env(task, 0)
    await _must_fault(env.step(NONSENSE), "step() before start()")
    await env.close()
    await _must_fault(env.start(task), "start() after close()")

    env = make_env(task, 0)
    _check_state(await env.start(task), "start()")
    await _must_fault(env.start(task), "a second start()")
    await env.close()
    await _must_fault(env.step(NONSENSE), "step() after close()")
    await env.close()  # closing twice is no error: cleaning up may do it


async def _check_nonsense(make_env: MakeEnv, task: Task, nonsense: str) -> None:
    env = make_env(task, 0)
    try:
        await env.start(task)
        for action in (nonsense, ""):
            try:
                result = await env.step(action)
            except WorldFault as error:
                raise ContractError(
                    f"{action!r} raised {error!r}: an action the world refuses is answered with "
                    "valid=False and reward 0, in the world's own words"
                ) from error
            _check_result(result, action)
            _require(not result.valid, f"{action!r} is no action, but was answered as valid")
            _require(result.reward == 0.0, f"{action!r} was refused, but paid {result.reward}")
            _require(result.ending is None, f"{action!r} was refused, but ended the episode")
    finally:
        await env.close()


async def _check_separate(
    make_env: MakeEnv, task: Task, actions: Sequence[str], alone: list[object]
) -> None:
    """Play two envs in turns, one of them one action behind: both must answer as one alone does."""
    ahead, behind = make_env(task, 0), make_env(task, 0)
    told: tuple[list[object], list[object]] = ([], [])
    try:
        told[0].append(await ahead.start(task))
        for index, action in enumerate(actions):
            told[0].append(await ahead.step(action))
            told[1].append(await (behind.step(actions[index - 1]) if index else behind.start(task)))
        told[1].append(await behind.step(actions[-1]))
    finally:
        await ahead.close()
        await behind.close()
    _require(told[0] == alone, "an env answers differently while another one of its kind plays")
    _require(told[1] == alone, "two envs share something: the second saw what the first had done")


async def _check_ending(make_env: MakeEnv, task: Task, solution: Sequence[str]) -> None:
    env = make_env(task, 0)
    try:
        await env.start(task)
        for index, action in enumerate(solution, start=1):
            result = await env.step(action)
            _check_result(result, action)
            _require(result.valid, f"the solution's {action!r} was refused: {result.state!r}")
            last = index == len(solution)
            _require((result.ending is not None) == last, f"{action!r} gave {result.ending!r}")
        _require(result.ending is Ending.DONE, f"the solution ended with {result.ending!r}")
        _require(result.reward > 0, "the solution paid nothing")
        await _must_fault(env.step(solution[-1]), "step() after the ending")
    finally:
        await env.close()


async def _record(env: Env, task: Task, actions: Sequence[str]) -> list[object]:
    try:
        told: list[object] = [await env.start(task)]
        for action in actions:
            result = await env.step(action)
            _check_result(result, action)
            told.append(result)
    finally:
        await env.close()
    return told


async def _must_fault(call: Awaitable[object], what: str) -> None:
    try:
        answer = await call
    except (WorldFault, DreamGymError):
        return
    raise ContractError(f"{what} was answered with {answer!r}: it must raise a WorldFault")


def _check_state(state: object, where: str) -> None:
    _require(isinstance(state, str) and bool(state.strip()), f"{where} gave the state {state!r}")


def _check_result(result: object, action: str) -> None:
    if not isinstance(result, StepResult):
        raise ContractError(f"{action!r} was answered with {result!r}, not a StepResult")
    _check_state(result.state, f"step({action!r})")
    _require(0.0 <= result.reward <= 1.0, f"{action!r} paid {result.reward}, not in [0, 1]")
    _require(
        result.ending in (None, Ending.DONE),
        f"{action!r} ended with {result.ending!r}: a world says DONE or nothing, the rest is "
        "the rollout's to say; a world that breaks raises",
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ContractError(otherwise)
