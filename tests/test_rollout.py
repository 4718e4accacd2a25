"""Every way an episode can end, and what collecting many of them at once must keep apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from dreamgym.envs.toy import contents_of, make_toy_env, toy_expert, toy_tasks, wanted_by
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.rollout import RolloutConfig, collect, group_number, play
from dreamgym.types import (
    Completion,
    DreamFault,
    Ending,
    EnvFault,
    Episode,
    StepResult,
    Task,
    WorldFault,
)

TASK = toy_tasks(1)[0]
LONG = Completion("take the", finish_reason="length")


@dataclass
class OddEnv:
    """A world that answers as it is told; remembers what was done to it."""

    answer: Callable[[int], StepResult] = lambda number: StepResult("s", 0.0)
    wait_s: float = 0.0
    at_start: WorldFault | None = None
    acted: list[str] = field(default_factory=list)
    closed: int = 0

    async def start(self, task: Task) -> str:
        if self.at_start:
            raise self.at_start
        return "s"

    async def step(self, action: str) -> StepResult:
        self.acted.append(action)
        await asyncio.sleep(self.wait_s)
        return self.answer(len(self.acted))

    async def close(self) -> None:
        self.closed += 1


class Watched(ScriptedLLM):
    """Remembers the sampling and the session of every call, and what was released."""

    def __init__(self, answer: Callable[[Sequence[Message]], str | Completion]) -> None:
        super().__init__(answer)
        self.calls: list[tuple[str, Sampling]] = []
        self.released: list[str] = []

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        self.calls.append((session, sampling))
        return await super().complete(prompt, sampling, session=session)

    async def release(self, session: str) -> None:
        self.released.append(session)


def run(answers: Sequence[str | Completion], env: OddEnv | None = None, **config: float) -> Episode:
    """One episode: in the toy world unless another is given."""
    world = env or make_toy_env(TASK, 0)
    settings = RolloutConfig.model_validate(config)
    return asyncio.run(play(ScriptedLLM(answers), world, TASK, settings, world="real", seed=0))


def breaking(fault: WorldFault, at: int = 2) -> OddEnv:
    def answer(number: int) -> StepResult:
        if number == at:
            raise fault
        return StepResult("s", 0.0)

    return OddEnv(answer)


def opened_and_taken(wanted: bool) -> list[str]:
    box = next(
        box for box, thing in contents_of(TASK).items() if (thing == wanted_by(TASK)) == wanted
    )
    return [f"open {box}", f"take {contents_of(TASK)[box]}"]


def test_done_with_the_right_thing_is_a_success() -> None:
    episode = run(opened_and_taken(wanted=True))
    assert episode.ending is Ending.DONE and episode.success and episode.reward == 1
    assert [turn.action for turn in episode.turns] == opened_and_taken(wanted=True)
    assert episode.turns[1].state == episode.turns[0].next_state


def test_done_with_the_wrong_thing_is_none() -> None:
    episode = run(opened_and_taken(wanted=False))
    assert episode.ending is Ending.DONE and not episode.success and episode.reward == 0


def test_the_turn_limit_cuts_and_pays_nothing() -> None:
    episode = run(["look"] * 3, max_turns=3)
    assert episode.ending is Ending.TURN_LIMIT and len(episode.turns) == 3
    assert not episode.success and not any(step.done for step in episode.transitions())


def test_a_completion_cut_at_the_token_limit_truncates_and_is_not_played() -> None:
    env = OddEnv()
    episode = run(["look", LONG], env)
    assert episode.ending is Ending.TRUNCATED and not episode.success
    assert env.acted == ["look"] and len(episode.turns) == 1


@pytest.mark.parametrize("nothing", ["", " ", "look\nlook", "<think>hm", "x" * 201])
def test_so_many_unreadable_actions_in_a_row_end_the_episode(nothing: str) -> None:
    episode = run([nothing] * 3, invalid_limit=3)
    assert episode.ending is Ending.INVALID and len(episode.turns) == 3
    assert [(t.action, t.valid, t.reward) for t in episode.turns] == [("", False, 0.0)] * 3
    assert not episode.ending.is_fault


def test_so_many_refused_actions_in_a_row_end_the_episode_too() -> None:
    episode = run(["look", "fly", "", "open box 9", "look"], invalid_limit=3)
    assert episode.ending is Ending.INVALID and len(episode.turns) == 4
    assert [turn.valid for turn in episode.turns] == [True, False, False, False]


def test_an_action_that_the_world_takes_starts_the_count_anew() -> None:
    answers = ["", "fly", "look", "", "", "look", "fly", ""]
    episode = run(answers, invalid_limit=3, max_turns=8)
    assert episode.ending is Ending.TURN_LIMIT and len(episode.turns) == 8


def test_what_was_sampled_is_kept_also_where_it_was_no_action() -> None:
    sampled = Completion("<think>a</think> look ", (5, 6), (-0.5, -1.0), (1, 2))
    episode = run([sampled, Completion("a\nb", (7,), (-2.0,), (1, 2, 5, 6))], max_turns=2)
    assert [t.action for t in episode.turns] == ["look", ""]
    assert [t.completion.ids for t in episode.turns if t.completion] == [(5, 6), (7,)]


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        (EnvFault("CRASH", "worker 3"), Ending.ENV_FAULT),
        (DreamFault("EMPTY"), Ending.DREAM_FAULT),
    ],
)
@pytest.mark.parametrize("at", [1, 2])
def test_a_broken_world_ends_the_episode_and_is_never_a_reward(
    fault: WorldFault, ending: Ending, at: int
) -> None:
    env = breaking(fault, at)
    episode = run(["look"] * at, env)
    assert (episode.ending, episode.fault) == (ending, fault.kind)
    assert len(episode.turns) == at - 1  # the turn that broke has no answer
    assert episode.reward == 0 and not episode.success and env.closed == 1
    assert not any(step.done for step in episode.transitions())


def test_a_world_that_breaks_at_the_start_gives_an_episode_without_turns() -> None:
    env = OddEnv(at_start=EnvFault("NO_WORKER"))
    episode = run([], env)
    assert (episode.ending, episode.fault, episode.turns) == (Ending.ENV_FAULT, "NO_WORKER", ())
    assert env.closed == 1


def test_a_reward_paid_before_the_fault_makes_no_success() -> None:
    def answer(number: int) -> StepResult:
        if number == 2:
            raise EnvFault("CRASH")
        return StepResult("s", 1.0)

    episode = run(["look"] * 2, OddEnv(answer))
    assert episode.ending is Ending.ENV_FAULT and not episode.success


def test_a_hanging_world_is_a_fault_after_its_time() -> None:
    began = time.monotonic()
    env = OddEnv(wait_s=60)
    episode = run(["look"], env, timeout_s=0.05)
    assert (episode.ending, episode.fault) == (Ending.ENV_FAULT, "TIMEOUT")
    assert time.monotonic() - began < 50 and env.closed == 1


def test_a_bug_in_our_own_code_is_raised_and_still_cleans_up() -> None:
    def bug(number: int) -> StepResult:
        raise KeyError("ours")

    env = OddEnv(bug)
    policy = Watched(lambda prompt: "look")
    with pytest.raises(KeyError):
        asyncio.run(play(policy, env, TASK, RolloutConfig(), world="real", seed=0))
    assert env.closed == 1 and len(policy.released) == 1


def test_the_prompt_of_an_episode_only_grows() -> None:
    policy = ScriptedLLM(["look", "open box 1", "", "look"])
    env = make_toy_env(TASK, 0)
    config = RolloutConfig(max_turns=4)
    asyncio.run(play(policy, env, TASK, config, world="real", seed=0))
    for earlier, later in zip(policy.prompts, policy.prompts[1:], strict=False):
        assert later[: len(earlier)] == earlier and len(later) == len(earlier) + 2
    assert [m.role for m in policy.prompts[1]] == ["user", "assistant", "user"]
    assert policy.prompts[0][0].text.startswith(TASK.first_state)
    assert all(TASK.instruction in m.text for m in policy.prompts[-1] if m.role == "user")


def expert_policy(task: Task) -> Callable[[Sequence[Message]], str]:
    return lambda prompt: toy_expert(task, [m.text for m in prompt if m.role == "user"])


def test_collecting_gives_a_group_per_task_in_order_with_all_its_attempts() -> None:
    tasks = [TASK, *toy_tasks(2, seed=4), TASK]  # a task may be drawn twice
    made: list[tuple[str, int]] = []

    def make_env(task: Task, group: int) -> OddEnv:
        made.append((task.id, group))
        return OddEnv()

    config = RolloutConfig(group_size=3, max_turns=2)
    policy = Watched(lambda prompt: "look")
    told: list[Episode] = []
    groups = asyncio.run(
        collect(policy, tasks, make_env, config, world="dream", seed=7, on_episode=told.append)
    )
    assert [group.task for group in groups] == tasks
    assert [len(group.episodes) for group in groups] == [3] * 4
    assert all(e.task == g.task and e.world == "dream" for g in groups for e in g.episodes)
    numbers = {number for _, number in made}
    assert numbers == {group_number(7, index) for index in range(4)} and len(numbers) == 4
    assert all(made.count(pair) == 3 for pair in made)
    assert sorted(map(id, told)) == sorted(id(e) for g in groups for e in g.episodes)
    sessions = {session for session, _ in policy.calls}
    assert len(sessions) == 12 and sorted(policy.released) == sorted(sessions)


def test_every_turn_of_every_attempt_has_its_own_noise_and_the_same_seed_the_same() -> None:
    def seeds(seed: int) -> list[int]:
        policy = Watched(lambda prompt: "look")
        tasks = toy_tasks(8)
        config = RolloutConfig(group_size=4, max_turns=5)
        asyncio.run(collect(policy, tasks, lambda t, g: OddEnv(), config, world="real", seed=seed))
        return sorted(sampling.seed for _, sampling in policy.calls)

    assert len(set(seeds(1))) == 8 * 4 * 5
    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))


def test_the_temperature_and_length_asked_for_are_those_of_the_config() -> None:
    policy = Watched(lambda prompt: "look")
    config = RolloutConfig(max_turns=1, temperature=0.5, max_tokens=9)
    asyncio.run(play(policy, OddEnv(), TASK, config, world="real", seed=3))
    (_, sampling) = policy.calls[0]
    assert (sampling.temperature, sampling.max_tokens) == (0.5, 9)


def test_a_slow_world_holds_up_no_other() -> None:
    """The others are over before the slow one has answered for the first time."""
    over: list[str] = []
    answered: list[int] = []

    class Slow(OddEnv):
        async def step(self, action: str) -> StepResult:
            while len(over) < 3:  # the answer comes only when the rest is done
                await asyncio.sleep(0.001)
            answered.append(len(over))
            return StepResult("s", 0.0, Ending.DONE)

    def make_env(task: Task, group: int) -> OddEnv:
        return Slow() if task is tasks[0] else OddEnv()

    tasks = toy_tasks(4)
    config = RolloutConfig(group_size=1, max_turns=6, timeout_s=600)
    asyncio.run(
        collect(
            ScriptedLLM(lambda prompt: "look"), tasks, make_env, config,
            world="real", seed=0, on_episode=lambda e: over.append(e.task.id),
        )
    )  # fmt: skip
    assert answered == [3] and over[-1] == tasks[0].id


def test_one_broken_world_takes_no_other_down() -> None:
    def make_env(task: Task, group: int) -> OddEnv:
        return breaking(EnvFault("CRASH")) if task is tasks[1] else OddEnv()

    tasks = toy_tasks(3)
    config = RolloutConfig(group_size=2, max_turns=3)
    groups = asyncio.run(
        collect(ScriptedLLM(lambda p: "look"), tasks, make_env, config, world="real", seed=0)
    )
    endings = [[episode.ending for episode in group.episodes] for group in groups]
    assert endings == [[e] * 2 for e in (Ending.TURN_LIMIT, Ending.ENV_FAULT, Ending.TURN_LIMIT)]


def test_the_expert_solves_the_toy_world_through_the_rollout() -> None:
    for task in toy_tasks(5, seed=2):
        policy = ScriptedLLM(expert_policy(task))
        env = make_toy_env(task, 0)
        assert asyncio.run(play(policy, env, task, RolloutConfig(), world="real", seed=0)).success
