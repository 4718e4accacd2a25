"""One grammar: what counts as an action, in a dream as in the real world."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.agents.prompt import acting_conversation, policy_messages, read_action
from dreamgym.envs.base import Env
from dreamgym.envs.text import PlainText
from dreamgym.envs.toy import NOTHING_HAPPENS, make_toy_env, toy_tasks
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.rollout import RolloutConfig, play
from dreamgym.types import Completion, Ending, Episode, Turn

REFUSED = (
    "",
    "  \n ",
    "I will look around first.\nlook",
    "look\nopen box 1",
    "look\r\nopen box 1",
    "<think>the key is in",
    "look <think>or not</think>",
    "<think>a</think>\n<think>b",
    "look " * 60,
    "\u200b\ufeff",
)


@pytest.mark.parametrize(
    ("written", "action"),
    [
        ("take 🍎 1\r\n", "take 🍎 1"),  # P015
        ("ｔake apple\u200b 1", "take apple 1"),  # P015
        ("\ufefftake\u00a0apple 1 ", "take apple 1"),
        ("  look\n", "look"),
        ("<think>which box?\nthe first</think>\nopen box 1", "open box 1"),
        ("<think></think>look", "look"),
        ("look", "look"),
    ],
)
def test_an_action_is_read_in_its_normal_form(written: str, action: str) -> None:
    completion = Completion(written, (5, 6), (-1.0, -2.0))
    assert read_action(completion) == action
    assert completion == Completion(written, (5, 6), (-1.0, -2.0)), "what was written is trained"


@pytest.mark.parametrize("written", REFUSED)
def test_prose_around_an_action_and_two_actions_are_no_action(written: str) -> None:
    assert read_action(Completion(written)) is None


def test_an_action_is_never_cut_out_of_a_sentence() -> None:  # P013
    prose = "I open box 1 now."
    assert read_action(Completion(prose)) == prose  # whole, for the world to refuse


@given(st.text(st.characters(blacklist_categories=("Cs", "Cf")), max_size=80))
def test_whatever_is_written_reading_it_twice_changes_nothing(written: str) -> None:
    action = read_action(Completion(written))
    if action is not None:
        assert action and "\n" not in action and "\r" not in action and action == action.strip()
        assert read_action(Completion(action)) == action


def test_a_prompt_is_the_episode_so_far_with_the_task_and_the_sampled_tokens() -> None:
    turns = (
        Turn(
            "room; take the key",
            "look",
            0.0,
            "box",
            True,
            Completion(" look\n", (5, 9), (-1.0, -1.0)),
        ),
        Turn("box", "open box 1", 0.0, "a key"),
    )
    assert policy_messages("take the key", turns, "a coin") == [
        Message("user", "room; take the key"),
        Message("assistant", "look", (5, 9)),
        Message("user", "box\nTask: take the key."),
        Message("assistant", "open box 1"),
        Message("user", "a coin\nTask: take the key."),
    ]


def test_only_a_state_that_tells_the_task_is_shown_without_it() -> None:
    seen = ("a room", "you were told to take the key", "a box")
    turns = [Turn(state, "look", 0.0, "") for state in seen[:2]]
    shown = [m.text for m in policy_messages("take the key", turns, seen[2]) if m.role == "user"]
    assert shown == ["a room\nTask: take the key.", seen[1], "a box\nTask: take the key."]


def test_p078_a_huge_state_is_cut_in_the_prompt_and_whole_in_the_trajectory() -> None:
    huge = "x" * 100_000 + "put it down" + "y" * 99_989
    (seen,) = policy_messages("put it down", [], huge)
    assert "[... 187k chars cut ...]" in seen.text and len(seen.text) < 13_100
    assert seen.text.endswith("\nTask: put it down.")  # the task stood in what was cut
    turn = Turn(huge, "look", "", 0.0)
    assert policy_messages("put it down", [turn], "s")[0] == seen and turn.state == huge


def test_a_later_prompt_begins_with_every_earlier_one() -> None:
    turns = [Turn(f"s{i}", f"a{i}", 0.0, f"s{i + 1}") for i in range(4)]
    last = policy_messages("go", turns, "s4")
    for number in range(4):
        earlier = policy_messages("go", turns[:number], f"s{number}")
        assert last[: len(earlier)] == earlier


def test_what_is_cloned_is_the_last_prompt_and_its_answer() -> None:
    task = toy_tasks(1)[0]
    said = Completion("open box 2", (7, 9), (-1.0, -1.0))
    turns = (
        Turn("room", "look", 0.0, "box"),
        Turn("box", "open box 2", 0.0, "coin", True, said),
    )
    for number in (1, 2):
        episode = Episode(task, turns[:number], Ending.TURN_LIMIT, "real")
        *prompt, answer = acting_conversation(episode)
        last = turns[number - 1]
        assert prompt == policy_messages(task.instruction, turns[: number - 1], last.state)
        assert answer == Message("assistant", last.action, said.ids if number == 2 else ())


def dream_that_must_not_be_asked() -> ExperienceModel:
    return ExperienceModel(ScriptedLLM([]), PlainText(NOTHING_HAPPENS), ExperienceConfig(k=0))


def played(written: list[str], env: Env, **changes: int) -> Episode:
    config = RolloutConfig(max_turns=len(written), **changes)  # type: ignore[arg-type]
    task = toy_tasks(1)[0]
    return asyncio.run(play(ScriptedLLM(written), env, task, config, world="real", seed=0))


def test_a_dream_and_the_real_world_refuse_the_same() -> None:
    task = toy_tasks(1)[0]
    model = dream_that_must_not_be_asked()
    for env in (make_toy_env(task, 0), DreamWorld(model).make_env(task, 0)):
        episode = played(list(REFUSED), env, invalid_limit=99)
        assert episode.ending is Ending.TURN_LIMIT and len(episode.turns) == len(REFUSED)
        for turn, written in zip(episode.turns, REFUSED, strict=True):
            assert (turn.action, turn.valid, turn.reward) == ("", False, 0.0)
            assert turn.next_state == NOTHING_HAPPENS
            assert turn.completion is not None and turn.completion.text == written
    assert model.tally["answers"] == 0


def test_prose_is_an_invalid_turn_and_the_episode_goes_on() -> None:  # P013
    prose = "任务已完成，手机在桌子上。"
    episode = played(["look", prose, "open box 1"], make_toy_env(toy_tasks(1)[0], 0))
    assert [turn.valid for turn in episode.turns] == [True, False, True]
    assert episode.turns[1].next_state == NOTHING_HAPPENS
    assert episode.ending is Ending.TURN_LIMIT and not episode.fault


def test_unreadable_actions_in_a_row_use_up_an_allowance() -> None:  # P013: budget-limited
    env = make_toy_env(toy_tasks(1)[0], 0)
    episode = played(["a\nb", "look", "a\nb", "a\nb", "a\nb", "look"], env, invalid_limit=3)
    assert episode.ending is Ending.INVALID and len(episode.turns) == 5


@pytest.mark.parametrize("text", ["look\u2028open box 1", "look\ropen box 1", "look\x0bopen box 1"])
def test_every_kind_of_line_break_makes_two_actions_and_so_none(text: str) -> None:
    assert read_action(Completion(text)) is None


def test_what_zero_width_characters_kept_apart_is_normalised_together() -> None:
    assert read_action(Completion("take caf\u0065\u200b\u0301 1\r\n")) == "take caf\u00e9 1"
