"""Harder tasks of a household room: what is refused, what is proven, and what is inherited."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from households import GAME, SEED, house_dream

from dreamgym.build import true_facts
from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig
from dreamgym.curriculum.variants import Variant, task_hash
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.envs.text import PlainText
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.types import Ending, Episode, Group, Task, Turn

TEXT = AlfworldText()
CLEAN = "put a clean cloth in sidetable"
OTHER_WORDS = "clean some cloth and put it in sidetable"


def told(task: Task, instruction: str) -> Task:
    first_state = TEXT.retell(task.first_state, instruction)
    return replace(task, instruction=instruction, first_state=first_state)


def curriculum(
    dream: DreamWorld,
    wanted: int = 1,
    tasks: Sequence[Task] = (SEED,),
    held_out: Sequence[Task] = (),
) -> Curriculum:
    hashes = [task_hash(task, dream.model.text) for task in held_out]
    config = CurriculumConfig(variants_per_step=wanted)
    return Curriculum(tasks, config, dream, seed=0, held_out=hashes)


def grow(subject: Curriculum, seed: Task = SEED, step: int = 0) -> list[Variant]:
    attempts = [Turn("s", "a", reward, "n") for reward in (0.0, 1.0)]
    episodes = tuple(Episode(seed, (turn,), Ending.DONE, "dream") for turn in attempts)
    groups = [Group(seed, episodes)]
    subject.record(groups)
    return asyncio.run(subject.grow(groups, step))


def test_a_variant_is_let_in_with_what_speaks_for_it() -> None:
    [variant] = grow(curriculum(house_dream(CLEAN)), step=3)
    assert (variant.how, variant.step, variant.seed_entropy) == ("extra condition", 3, 0.25)
    assert variant.solved_in == 8  # the expert's turns in this room
    assert variant.task == replace(
        told(SEED, CLEAN), id=variant.task.id, parent=SEED.id, generation=1
    )
    assert variant.task.first_state.endswith(f"Your task is to: {CLEAN}.")


@pytest.mark.parametrize(
    ("written", "refused"),
    [
        ("", "EMPTY"),
        ("put some cloth on sidetable", "NOT_HARDER"),  # the seed itself
        ("put a cloth in sidetable.", "NOT_HARDER"),  # in other words
        ("put some candle on sidetable", "NOT_HARDER"),  # another thing, no harder
        ("tidy up", "NOT_HARDER"),  # nothing that can be checked
        ("put a hot cloth in sidetable", "UNSOLVABLE"),  # there is no microwave
        ("put two tissuebox in sidetable", "UNSOLVABLE"),  # there is one
        ("put some cloth on toilet", "UNSOLVABLE"),  # it lies there from the start
    ],
)
def test_what_is_no_harder_task_of_this_room_is_refused_by_its_class(
    written: str, refused: str
) -> None:
    subject = curriculum(house_dream(written, written, written, written))
    assert grow(subject) == [] == subject.variants
    assert Counter(set(subject.writer.refused.elements()) - {"DUPLICATE"}) == {refused: 1}


@pytest.mark.parametrize("first, second", [(CLEAN, OTHER_WORDS), (OTHER_WORDS, CLEAN)])
def test_the_same_goal_in_other_words_is_a_duplicate_at_once_and_later(
    first: str, second: str
) -> None:
    subject = curriculum(house_dream(first, second, "", "", second.upper()))
    assert [variant.task.instruction for variant in grow(subject)] == [first]
    assert subject.writer.refused == Counter(DUPLICATE=1, EMPTY=2)
    assert grow(subject, step=1) == []
    assert subject.writer.refused == Counter(DUPLICATE=2, EMPTY=5)


def test_a_real_task_in_other_words_is_a_duplicate() -> None:
    real = replace(told(SEED, OTHER_WORDS), id="real")
    subject = curriculum(house_dream(CLEAN), tasks=[SEED, real])
    assert grow(subject) == []
    assert subject.writer.refused["DUPLICATE"] == 1


def test_a_held_out_task_in_other_words_is_refused() -> None:
    secret = replace(told(SEED, OTHER_WORDS), id="secret")
    subject = curriculum(house_dream(CLEAN), held_out=[secret])
    assert grow(subject) == []
    assert subject.writer.refused == Counter(HELD_OUT=1, EMPTY=3)


def test_a_held_out_task_of_another_room_forbids_nothing_here() -> None:
    there = "You are in another room. You see a sidetable 1.\n\nYour task is to: x."
    secret = told(Task("secret", "", there), CLEAN)
    assert len(grow(curriculum(house_dream(CLEAN), held_out=[secret]))) == 1


def test_what_the_solver_does_not_reach_is_refused() -> None:
    def no_sink_works(play: FastGame, action: str) -> str:
        return "Nothing happens." if action.startswith("clean") else play.step(action)[0]

    subject = curriculum(house_dream(CLEAN, respond=no_sink_works))
    assert grow(subject) == [] == subject.variants
    assert subject.writer.refused == Counter(UNREACHED=1, EMPTY=3)


def test_a_dream_that_breaks_on_a_variant_refuses_it_by_the_class_of_the_fault() -> None:
    def lies(play: FastGame, action: str) -> str:
        return "On the toilet 1, you see a dragon 1."

    subject = curriculum(house_dream(CLEAN, respond=lies))
    assert grow(subject) == []
    assert subject.writer.refused == Counter(INCONSISTENT=1, EMPTY=3)


def test_more_are_proven_than_wanted_and_no_more_let_in() -> None:
    impossible, reachable = "put a hot cloth in shelf", "put two cloth in shelf"
    written = [impossible, reachable, CLEAN, "put a clean cloth in toilet"]
    subject = curriculum(house_dream(*written))
    assert [variant.task.instruction for variant in grow(subject)] == [reachable]
    assert subject.writer.refused == Counter(UNSOLVABLE=1)  # twice as many are proven as wanted


def test_lineage_goes_over_two_generations_and_a_restart() -> None:
    subject = curriculum(house_dream(CLEAN, "", "", "", "put two clean cloth in sidetable"))
    [child] = grow(subject)
    [grandchild] = grow(subject, child.task, step=1)
    assert (child.task.parent, child.task.generation) == (SEED.id, 1)
    assert (grandchild.task.parent, grandchild.task.generation) == (child.task.id, 2)
    assert (child.how, grandchild.how) == ("extra condition", "more objects")
    again = curriculum(house_dream(OTHER_WORDS))
    again.restore(subject.state())
    assert again.variants == subject.variants == [child, grandchild]
    assert again.variants[1].solved_in == grandchild.solved_in > 0  # type: ignore[operator]
    assert grow(again, step=2) == []  # it knows what there is
    assert again.writer.refused["DUPLICATE"] == 1


def test_what_is_known_of_a_room_holds_for_its_variants_also_after_a_restart() -> None:
    subject = curriculum(house_dream(CLEAN, "", "", "", "put two clean cloth in sidetable"))
    child = grow(subject)[0].task
    grandchild = grow(subject, child, step=1)[0].task
    state, dream = subject.state(), house_dream()
    assert child.id not in dream.model.known
    curriculum(dream).restore(state)
    truth = true_facts(GAME)
    for variant in (child, grandchild):
        # and none of it is asked of the model, which could not answer
        facts = asyncio.run(dream.model.imagine(variant, 0))
        assert all(facts[place] == truth[place] for place in TEXT.places(SEED.first_state))


def test_a_room_nobody_has_logged_is_dreamt_up_for_its_variants_as_well() -> None:
    dream = house_dream()
    dream.model.known.clear()
    dream.model.inherit(replace(SEED, id="variant/1", parent=SEED.id))
    assert dream.model.known == {}


def test_a_world_without_a_reader_lets_in_what_is_new_and_says_that_nothing_is_proven() -> None:
    config = ExperienceConfig(hidden=False, judge="model", rules=False, guard=False)
    llm = ScriptedLLM(["wash the cat", "Wash  the cat", "", "comb the dog"])
    dream = DreamWorld(ExperienceModel(llm, PlainText(), config))
    seed = Task("a", "feed the cat", "You are at home.")
    [variant] = grow(curriculum(dream, tasks=[seed]), seed)
    assert (variant.task.instruction, variant.how) == ("wash the cat", "unknown")
    assert variant.solved_in is None


def test_a_variant_is_the_same_after_it_was_written_down() -> None:
    [variant] = grow(curriculum(house_dream(CLEAN)))
    assert Variant.from_data(json.loads(json.dumps(variant.data()))) == variant
