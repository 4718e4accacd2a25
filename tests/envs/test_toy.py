"""The toy world: solvable, learnable, and the same for the same task."""

from __future__ import annotations

import asyncio

import pytest

from dreamgym.envs.toy import (
    NOTHING_HAPPENS,
    contents_of,
    make_toy_env,
    toy_expert,
    toy_tasks,
    wanted_by,
)
from dreamgym.types import DreamGymError, Ending, StepResult, Task


def play(task: Task, *actions: str) -> list[StepResult]:
    async def scenario() -> list[StepResult]:
        env = make_toy_env(task, 0)
        assert await env.start(task) == task.first_state
        return [await env.step(action) for action in actions]

    return asyncio.run(scenario())


async def solve(task: Task) -> tuple[float, int]:
    env = make_toy_env(task, 0)
    states = [await env.start(task)]
    for turn in range(1, 9):
        result = await env.step(toy_expert(task, states))
        if result.ending is Ending.DONE:
            return result.reward, turn
        states.append(result.state)
    return 0.0, turn


def test_the_expert_solves_every_task_in_at_most_four_actions() -> None:
    outcomes = [asyncio.run(solve(task)) for task in toy_tasks(60, seed=1)]
    assert all(reward == 1.0 for reward, _ in outcomes)
    assert {turns for _, turns in outcomes} == {2, 3, 4}


def test_tasks_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    assert toy_tasks(20, seed=3) == toy_tasks(20, seed=3)
    assert toy_tasks(20, seed=3) != toy_tasks(20, seed=4)
    tasks = toy_tasks(60)
    assert len({tuple(contents_of(task).values()) for task in tasks}) == 6
    assert {wanted_by(task) for task in tasks} == {"key", "coin", "ring"}


def test_a_thing_can_be_taken_only_once_its_box_is_open() -> None:
    task = toy_tasks(1)[0]
    wanted = wanted_by(task)
    box = next(box for box, thing in contents_of(task).items() if thing == wanted)
    early, opened, again, taken = play(
        task, f"take {wanted}", f"open {box}", f"open {box}", f"take {wanted}"
    )
    assert early == StepResult(NOTHING_HAPPENS, 0.0, valid=False) == again
    assert opened == StepResult(f"You open {box}. In it, you see a {wanted}.", 0.0)
    assert taken == StepResult(f"You take the {wanted}.", 1.0, Ending.DONE)


def test_taking_the_wrong_thing_ends_with_nothing() -> None:
    task = toy_tasks(1)[0]
    box, thing = next((b, t) for b, t in contents_of(task).items() if t != wanted_by(task))
    last = play(task, f"open {box}", "look", f"take {thing}")[-1]
    assert (last.reward, last.ending, last.valid) == (0.0, Ending.DONE, True)


def test_looking_tells_which_boxes_are_open() -> None:
    task = toy_tasks(1)[0]
    before, _, after = play(task, "look", "open box 2", "look")
    assert before.state == task.first_state
    assert f"Box 2 is open. In it, you see a {contents_of(task)['box 2']}." in after.state


def test_an_instruction_it_cannot_serve_is_refused() -> None:
    task = Task(id="toy/x", instruction="take the moon")
    with pytest.raises(DreamGymError, match="take the moon"):
        asyncio.run(make_toy_env(task, 0).start(task))
