"""What a dream refuses of its own model, what it does without, and how one is forked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from pydantic import ValidationError
from toy_dreams import BOXES, dream_the_toy, fact, facts_of, toy_dream

from dreamgym.envs.toy import NOTHING_HAPPENS, toy_tasks
from dreamgym.experience.dream import DreamEnv, DreamWorld
from dreamgym.experience.model import ExperienceConfig
from dreamgym.experience.prompts import Answer, answer_text
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.rollout import RolloutConfig, play
from dreamgym.types import Completion, DreamFault, Ending, Episode, StepResult, Task

TASK = Task("toy/dreamt", "take the key", toy_tasks(1)[0].first_state, "toy")
KNOWN = {TASK.id: {box: fact(box, "key") for box in BOXES}}
LIE = answer_text(Answer("You open box 1. In it, you see a coin.", 0.0, False))
TRUTH = answer_text(Answer("You open box 1. In it, you see a key.", 0.0, False))


def dreamt(world: DreamWorld, *actions: str) -> tuple[DreamEnv, list[StepResult]]:
    env = world.make_env(TASK, 0)

    async def go() -> list[StepResult]:
        await env.start(TASK)
        return [await env.step(action) for action in actions]

    return env, asyncio.run(go())


def played(world: DreamWorld, *actions: str) -> Episode:
    policy, env = ScriptedLLM(actions), world.make_env(TASK, 0)
    return asyncio.run(play(policy, env, TASK, RolloutConfig(), world="dream", seed=0))


def prompts(world: DreamWorld) -> list[tuple[Message, ...]]:
    assert isinstance(world.model.llm, ScriptedLLM)
    return world.model.llm.prompts


def test_p073_an_answer_against_the_dreams_past_is_asked_for_again() -> None:
    world = toy_dream(ScriptedLLM([LIE, TRUTH]), known=KNOWN)
    _, results = dreamt(world, "open box 1")
    assert results[0].state == "You open box 1. In it, you see a key."
    assert world.model.faults == {"INCONSISTENT": 1}
    assert (world.model.tally["answers"], world.model.tally["asked_again"]) == (2, 1)


def test_p073_twice_it_ends_the_episode_as_a_fault_and_leaves_nothing_behind() -> None:
    world = toy_dream(ScriptedLLM([LIE, LIE]), known=KNOWN)
    episode = played(world, "open box 1")
    assert (episode.ending, episode.fault) == (Ending.DREAM_FAULT, "INCONSISTENT")
    assert episode.turns == () and episode.reward == 0
    assert world.model.faults == {"INCONSISTENT": 2}


def test_without_a_guard_it_passes() -> None:
    world = toy_dream(ScriptedLLM([LIE]), known=KNOWN, guard=False)
    assert "coin" in dreamt(world, "open box 1")[1][0].state


def sure(text: str, logprob: float) -> Completion:
    return Completion(text, logprobs=(logprob,))


def test_an_answer_the_model_is_not_sure_of_is_asked_for_again() -> None:
    unsure, certain = sure(TRUTH, -2.0), sure(TRUTH, -0.1)
    world = toy_dream(ScriptedLLM([unsure, certain]), known=KNOWN, min_confidence=0.5)
    dreamt(world, "open box 1")
    assert world.model.faults == {"LOW_CONFIDENCE": 1}
    world = toy_dream(ScriptedLLM([unsure]), known=KNOWN)
    dreamt(world, "open box 1")
    assert not world.model.faults


def test_a_model_that_tells_no_confidence_cannot_be_trusted_with_any() -> None:
    world = toy_dream(ScriptedLLM([TRUTH, TRUTH]), known=KNOWN, min_confidence=0.5)
    assert played(world, "open box 1").fault == "NO_CONFIDENCE"


@pytest.mark.parametrize(
    "left", [{"judge": "facts"}, {"rules": True}, {"guard": True}], ids=lambda left: str(left)
)
def test_what_needs_facts_is_refused_without_a_hidden_state(left: dict[str, object]) -> None:
    off = {"hidden": False, "judge": "model", "rules": False, "guard": False}
    ExperienceConfig.model_validate(off)
    with pytest.raises(ValidationError, match="judge = model, rules = false and guard = false"):
        ExperienceConfig.model_validate(off | left)


def test_without_a_hidden_state_nothing_is_asked_or_looked_up() -> None:
    off = {"hidden": False, "judge": "model", "rules": False, "guard": False}
    world = toy_dream(ScriptedLLM([LIE]), known=KNOWN, **off)
    env, _ = dreamt(world, "open box 1")
    assert [prompt[-1].text for prompt in prompts(world)] == ["Task: take the key."]
    assert env.hidden.facts == {}


def test_without_history_a_prompt_holds_only_the_state_before() -> None:
    world = toy_dream(ScriptedLLM(dream_the_toy()), known={TASK.id: facts_of(TASK)}, history=False)
    _, results = dreamt(world, "open box 1", "open box 2")
    told = [[m.text for m in prompt[:-1]] for prompt in prompts(world)]
    assert told == [[TASK.first_state, "open box 1"], [results[0].state, "open box 2"]]


def test_who_answered_stands_in_the_result_and_in_the_episode() -> None:
    world = toy_dream(known={TASK.id: facts_of(TASK)})
    episode = played(world, "open box 1", "fly", "take key")
    assert [turn.by for turn in episode.turns][:2] == ["model", "rule"]
    assert episode.turns[1].next_state == NOTHING_HAPPENS


async def go_on(env: DreamEnv, actions: Sequence[str]) -> list[StepResult]:
    return [await env.step(action) for action in actions]


def test_forks_of_one_moment_go_their_own_ways() -> None:
    world = toy_dream(known={TASK.id: facts_of(TASK)})

    async def fork() -> None:
        env = world.make_env(TASK, 0)
        await env.start(TASK)
        await env.step("open box 1")
        moment = env.snapshot()
        one, other = world.fork(moment), world.fork(moment)
        told = await go_on(one, ["open box 2", "open box 3"])
        assert told == await go_on(other, ["open box 2", "open box 3"])
        assert env.snapshot() == moment  # nothing comes back
        again = toy_dream().fork(moment)  # in another world over the same kind of model
        assert await go_on(again, ["open box 2", "open box 3"]) == told
        assert again.hidden.facts == one.hidden.facts

    asyncio.run(fork())
    begins = [prompt[:4] for prompt in prompts(world) if len(prompt) > 4]
    assert len(begins) > 3 and all(begin == begins[0] for begin in begins)


def test_there_is_no_moment_before_the_start_or_after_the_end() -> None:
    env = toy_dream(known={TASK.id: facts_of(TASK)}).make_env(TASK, 0)
    with pytest.raises(DreamFault, match="OVER"):
        env.snapshot()
    asyncio.run(env.start(TASK))
    asyncio.run(env.close())
    with pytest.raises(DreamFault, match="OVER"):
        env.snapshot()


def test_a_dream_that_begins_solved_is_drawn_again() -> None:
    task = Task("t", "take the key", TASK.first_state)
    solved = [*(fact(box, "key") for box in BOXES[:2]), "You carry the key."]
    fresh = [fact(box, "key") for box in BOXES]
    world = toy_dream(ScriptedLLM([*solved, *fresh]))
    world.model.text.start_facts = lambda i, f, known: {  # type: ignore[method-assign]
        ("you" if text.startswith("You") else box): text for box, text in known.items()
    }
    facts = asyncio.run(world.model.imagine(task, 1))
    assert list(facts.values()) == fresh and world.model.faults == {"SOLVED_START": 1}
