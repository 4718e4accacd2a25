"""Plays episodes: one, or all attempts at many tasks at once."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Sequence

from dreamgym.agents.prompt import policy_messages, read_action
from dreamgym.envs.base import Env, MakeEnv
from dreamgym.llm.base import LLM, Sampling
from dreamgym.settings import Settings
from dreamgym.types import (
    DreamFault,
    Ending,
    EnvFault,
    Episode,
    Group,
    StepResult,
    Task,
    Turn,
    World,
    WorldFault,
)

log = logging.getLogger(__name__)


class RolloutConfig(Settings):
    group_size: int = 2
    """Attempts per task; advantages compare inside a group, so 1 cannot learn. Few attempts at many
    tasks teach a tiny policy more than many at few."""
    max_turns: int = 15
    """After that many a training episode is cut; it counts as not solved."""
    max_tokens: int = 24
    """For one completion of the policy."""
    temperature: float = 1.0
    """Of the policy while it trains. There is no top-p: it would train another distribution."""
    in_flight: int = 128
    """Episodes at once. More than the policy's engine has slots would only evict one another."""
    invalid_limit: int = 4
    """So many actions in a row that cannot be read, or that the world refuses, end a training
    episode: a policy that is stuck repeats itself until the turn limit, and every turn costs."""
    timeout_s: float = 120.0
    """For one step of the world, not for the episode."""


async def play(
    policy: LLM, env: Env, task: Task, config: RolloutConfig, *, world: World, seed: int
) -> Episode:
    """Play one episode. A world that breaks ends it; only a bug in our own code raises."""
    session = f"{world}/{task.id}/{seed}"
    turns: list[Turn] = []
    ending, fault = Ending.TURN_LIMIT, ""
    invalid = 0
    try:
        state = await env.start(task)
        while len(turns) < config.max_turns:
            sampling = Sampling(config.temperature, config.max_tokens, seed * 1009 + len(turns))
            completion = await policy.complete(
                policy_messages(task.instruction, turns, state), sampling, session=session
            )
            if completion.finish_reason == "length":
                ending = Ending.TRUNCATED
                if completion.ids:  # trained on like all it wrote, or never ending would be free
                    turns.append(Turn(state, completion.text, 0.0, state, False, completion))
                break
            action = read_action(completion)
            result = await _step(env, action or "", config.timeout_s, world)
            invalid = 0 if action and result.valid else invalid + 1
            turns.append(
                Turn(
                    state,
                    action or "",
                    result.reward,
                    result.state,
                    result.valid,
                    completion,
                    result.by,
                )
            )
            if result.ending is not None:
                ending = result.ending
                break
            if invalid >= config.invalid_limit:
                ending = Ending.INVALID
                break
            state = result.state
    except WorldFault as broken:
        ending, fault = broken.ending, broken.kind
        log.warning("%s world broke on %s: %s", world, task.id, broken)
    finally:
        await env.close()
        await policy.release(session)
    return Episode(task, tuple(turns), ending, world, fault)


async def _step(env: Env, action: str, timeout_s: float, world: World) -> StepResult:
    try:
        return await asyncio.wait_for(env.step(action), timeout_s)
    except TimeoutError as late:
        fault = DreamFault if world == "dream" else EnvFault
        raise fault("TIMEOUT", f"no answer to {action!r} in {timeout_s:g} s") from late


async def collect(
    policy: LLM,
    tasks: Sequence[Task],
    make_env: MakeEnv,
    config: RolloutConfig,
    *,
    world: World,
    seed: int,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> list[Group]:
    """All attempts at all tasks at once. A group shares its number, and so its world."""

    places = asyncio.Semaphore(config.in_flight)

    async def attempt(index: int, task: Task, number: int) -> Episode:
        group = group_number(seed, index)
        async with places:
            env = make_env(task, group)
            episode = await play(
                policy, env, task, config, world=world, seed=group * config.group_size + number
            )
        on_episode(episode)
        return episode

    size = config.group_size
    attempts = [attempt(i, task, n) for i, task in enumerate(tasks) for n in range(size)]
    episodes = await asyncio.gather(*attempts)
    return [Group(task, tuple(episodes[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]


def group_number(seed: int, index: int) -> int:
    """One per draw of a task, never from its text: two draws of a task are two groups."""
    return zlib.crc32(f"{seed}/{index}".encode())
