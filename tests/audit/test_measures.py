"""The audit's measures, each on a world where the right number is known."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from dreamgym.audit.bound import bound_text, return_bound
from dreamgym.audit.episodes import (
    Compared,
    compare,
    effective_groups,
    rank_agreement,
    ratio,
    replay,
)
from dreamgym.audit.judge import RUBRICS, judge, judge_messages, read_scores
from dreamgym.audit.luck import measure_luck
from dreamgym.audit.text_scores import normalised, token_f1
from dreamgym.audit.transitions import Prediction
from dreamgym.envs.base import Env
from dreamgym.envs.toy import make_toy_env, toy_expert, toy_tasks
from dreamgym.experience.prompts import Answer
from dreamgym.llm.base import Message, Sampling
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.rollout import RolloutConfig
from dreamgym.types import (
    Completion,
    DreamFault,
    DreamGymError,
    Ending,
    Episode,
    StepResult,
    Task,
    Transition,
    Turn,
)

TASKS = toy_tasks(6)
CONFIG = RolloutConfig(max_turns=8)


def expert(prompt: Sequence[Message]) -> str:
    task = next(t for t in TASKS if t.instruction in prompt[0].text)
    return toy_expert(task, [m.text.split("\nTask:")[0] for m in prompt[1:] if m.role == "user"])


class Generous:
    """A dream that pays for whatever is done."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    async def start(self, task: Task) -> str:
        return task.first_state

    async def step(self, action: str) -> StepResult:
        if self.fault:
            raise DreamFault(self.fault)
        return StepResult("You won.", 1.0, Ending.DONE)

    async def close(self) -> None:
        return None


def generous(task: Task, group: int) -> Env:
    return Generous()


def compared(make_dream: object, answers: object = expert) -> Compared:
    return asyncio.run(
        compare(ScriptedLLM(answers), TASKS, make_toy_env, make_dream, CONFIG, seed=0)  # type: ignore[arg-type]
    )


def test_a_dream_that_is_the_real_world_is_consistent() -> None:
    found = compared(make_toy_env)
    assert found.real == found.dream == found.replayed == (True,) * len(TASKS)
    assert ratio([found])["value"] == 1.0 and not found.faults


def test_a_dream_that_pays_for_nothing_is_seen_through_when_awake() -> None:
    found = compared(generous)
    assert found.dream == (True,) * len(TASKS)
    assert found.replayed == (False,) * len(TASKS)
    assert ratio([found]) == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_a_dream_that_breaks_off_is_counted_and_leaves_the_rates() -> None:
    found = compared(lambda task, group: Generous("BROKEN"))
    assert found.dream == found.replayed == (None,) * len(TASKS)
    assert found.faults == {"BROKEN": len(TASKS)}
    assert found.data()["dream"]["value"] is None
    assert found.data()["consistency"]["value"] is None
    assert found.data()["consistency_faults_fail"]["value"] == 0.0
    assert json.dumps(found.data(), allow_nan=False)


def test_a_fault_of_the_real_world_is_never_the_dreams_failure() -> None:
    one = Compared((True, True), (True, True), (None, True), {})
    assert ratio([one])["value"] == ratio([one], faults_fail=True)["value"] == 1.0


def test_a_ratio_to_nothing_is_none_and_is_not_hidden() -> None:
    assert ratio([compared(make_toy_env, lambda prompt: "look")])["value"] is None


def test_actions_are_replayed_to_the_first_end() -> None:
    task = TASKS[0]
    assert asyncio.run(replay(make_toy_env, task, ["look"] * 3)) is False
    assert asyncio.run(replay(lambda t, g: Generous("X"), task, ["look"])) is None
    assert asyncio.run(replay(generous, task, ["look", "look"])) is True


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([0.1, 0.5, 0.9], [0.0, 0.2, 0.4], 1.0),
        ([0.1, 0.5, 0.9], [0.4, 0.2, 0.0], -1.0),
        ([0.1, 0.5, 0.9, 1.0], [0.0, 0.4, 0.2, 0.6], 4 / 6),
        ([0.1, 0.5, 0.9], [0.3, 0.3, 0.6], 2 / math.sqrt(6)),
        ([0.5, 0.5], [0.1, 0.2], None),
    ],
)
def test_rank_agreement_is_kendalls(
    first: list[float], second: list[float], tau: float | None
) -> None:
    found = rank_agreement(first, second)
    assert found == tau if tau is None else found == pytest.approx(tau)


def test_only_unequal_groups_can_teach() -> None:
    config = CONFIG.model_copy(update={"group_size": 3})
    for answers, hits in ((expert, 0), (lambda prompt: "look", 0)):
        found = asyncio.run(
            effective_groups(
                ScriptedLLM(answers), TASKS, make_toy_env, config, world="real", seed=0
            )
        )
        assert (found.hits, found.total) == (hits, len(TASKS))

    turns = iter(range(10_000))
    mixed = ScriptedLLM(lambda prompt: expert(prompt) if next(turns) % 2 else "look")
    short = config.model_copy(update={"max_turns": 4})
    found = asyncio.run(effective_groups(mixed, TASKS, make_toy_env, short, world="real", seed=0))
    assert 0 < found.hits <= found.total == len(TASKS)


def fixed(task: Task, *actions: str) -> Episode:
    turns = tuple(Turn("s", action, 0.0, "s") for action in actions)
    return Episode(task, turns, Ending.TURN_LIMIT, "real")


class Fickle(Generous):
    """Pays every other time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    async def step(self, action: str) -> StepResult:
        return StepResult(f"{self.number % 2}", float(self.number % 2), Ending.DONE)


def test_luck_is_the_spread_of_what_the_same_actions_bring() -> None:
    episodes = [fixed(task, "look") for task in TASKS[:2]]

    def steady(number: int) -> object:
        return generous

    def fickle(number: int) -> object:
        return lambda task, group: Fickle(number)

    found = asyncio.run(measure_luck(steady, episodes, 4))  # type: ignore[arg-type]
    assert (found.deviation, found.success, found.changed, found.faults) == (0.0, 1.0, 0.0, 0)
    found = asyncio.run(measure_luck(fickle, episodes, 4))  # type: ignore[arg-type]
    assert (found.deviation, found.success, found.changed) == (0.5, 0.5, 1.0)
    found = asyncio.run(measure_luck(lambda n: lambda t, g: Generous("X"), episodes, 4))
    assert (found.deviation, found.success, found.faults) == (None, None, 8)


def test_the_bound_says_so_where_it_says_nothing() -> None:
    good = return_bound(0.01, 0.002, 20.0)
    assert good["bound"] == pytest.approx(0.05) and not good["says_nothing"]
    bad = return_bound(0.0, 0.05, 20.0)
    assert bad["says_nothing"] and "says nothing" in bound_text(bad)
    assert "says nothing" not in bound_text(good)


@pytest.mark.parametrize(
    ("ours", "theirs", "f1"),
    [
        ("a b c", "a b c", 1.0),
        ("a b", "a b c d", 2 / 3),
        ("a a", "a", 2 / 3),
        ("x", "y", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
        ("The Drawer!", "the drawer", 1.0),
    ],
)
def test_token_f1_by_hand(ours: str, theirs: str, f1: float) -> None:
    assert token_f1(ours, theirs) == pytest.approx(f1)


def test_texts_are_alike_but_for_how_they_are_typed() -> None:
    assert normalised("On the  shelf 1, you see!") == normalised("on the shelf 1 you see")
    assert normalised("shelf 1") != normalised("shelf 2")


PREDICTION = Prediction(
    0,
    1,
    Transition(TASKS[0], (), 'state "}', "look", "true", 0.0, False),
    Answer('"rubric_scores": 2', 0.0, False),
)


def scores(**change: object) -> str:
    return json.dumps({"rubric_scores": dict.fromkeys(RUBRICS, 1) | change})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("I cannot rate this.", "UNREPAIRABLE"),
        ("", "EMPTY"),
        ("<think>well", "TRUNCATED_REASONING"),
        (scores(diversity=3), "OUT_OF_RANGE"),
        (scores(diversity=-1), "OUT_OF_RANGE"),
        (scores(diversity=1.5), "UNREPAIRABLE"),
        (scores(diversity=True), "UNREPAIRABLE"),
        (scores(diversity=None), "UNREPAIRABLE"),
        ('{"rubric_scores": {}}', "UNREPAIRABLE"),
        (scores() + scores(diversity=2), "AMBIGUOUS"),
        ("There are 5 reasons why this is not excellent; score 9 of 9", "UNREPAIRABLE"),
    ],
)
def test_p018_p019_what_a_judge_did_not_say_is_no_score(text: str, kind: str) -> None:
    with pytest.raises(DreamFault) as caught:
        read_scores(Completion(text))
    assert caught.value.kind == kind


def test_p019_failures_are_in_no_mean_and_are_counted() -> None:
    answers = [scores(diversity=2), "I cannot rate this.", scores(diversity=1)]
    told = asyncio.run(judge(ScriptedLLM(answers), [PREDICTION] * 3))
    assert told["scores"]["diversity"] == 1.5
    assert (told["asked"], told["judged"]) == (3, 2)
    assert told["failures"] == {"UNREPAIRABLE": 1}
    none = asyncio.run(judge(ScriptedLLM(["no"]), [PREDICTION]))
    assert none["scores"] == dict.fromkeys(RUBRICS)


class Unreachable(ScriptedLLM):
    """Answers once, and is gone."""

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        if self.prompts:
            raise DreamGymError("the judge does not answer")
        return await super().complete(prompt, sampling, session=session)


def test_p021_a_judge_that_does_not_answer_is_counted_and_kills_nothing() -> None:
    told = asyncio.run(judge(Unreachable([scores(diversity=2)]), [PREDICTION] * 3))
    assert told["failures"] == {"JUDGE_UNAVAILABLE": 2}
    assert (told["judged"], told["scores"]["diversity"]) == (1, 2)


def test_the_judge_reads_texts_as_data() -> None:
    system, asked = judge_messages(PREDICTION)
    assert (system.role, asked.role) == ("system", "user")
    assert json.loads(asked.text)["next_state"] == '"rubric_scores": 2'
    assert json.loads(asked.text)["state"] == 'state "}'
    assert all(a != b for a, b in pairwise([system.text, asked.text]))
