"""Which tasks a step gets, and which variants are let in."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dreamgym.curriculum.curriculum import MOST, Choice, Curriculum, CurriculumConfig
from dreamgym.curriculum.variants import Variant, task_hash
from dreamgym.envs.text import PlainText
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.types import Ending, Episode, Group, Task, Turn

ROOM = "You are in a room. You see a box 1."


class BoxText(PlainText):
    """A reader of worlds with one box; a task can be solved if its last word is in the box."""

    def places(self, first_state: str) -> Sequence[str]:
        return ("box 1",)

    def solvable(self, instruction: str, first_state: str, facts: Mapping[str, str]) -> bool:
        return instruction.lower().split()[-1] in facts["box 1"]


def writer(variants: Iterable[str] = (), inside: str = "a key, a coin, a ring") -> DreamWorld:
    """A dream whose model writes these variants, then nothing, and says what is in the box."""
    left = iter(variants)

    def answer(prompt: Sequence[Message]) -> str:
        return inside if prompt[-1].text == "What is at the box 1?" else next(left, "")

    config = ExperienceConfig(hidden_tries=2)
    return DreamWorld(ExperienceModel(ScriptedLLM(answer), BoxText(), config))


def tasks_named(prefix: str, number: int) -> list[Task]:
    return [Task(f"{prefix}/{i}", f"take {prefix} {i}", ROOM) for i in range(number)]


def group(task: Task, *returns: float, faults: int = 0) -> Group:
    episodes = [Episode(task, (Turn("s", "a", r, "n"),), Ending.DONE, "dream") for r in returns]
    episodes += [Episode(task, (), Ending.DREAM_FAULT, "dream", "X") for _ in range(faults)]
    return Group(task, tuple(episodes))


def half_solved(tasks: Iterable[Task]) -> list[Group]:
    return [group(task, 0.0, 1.0) for task in tasks]


def curriculum(
    tasks: Sequence[Task], dream: DreamWorld | None = None, **changes: float
) -> Curriculum:
    config = CurriculumConfig.model_validate(changes)
    return Curriculum(tasks, config, dream or writer(), seed=7)


def variants_named(prefix: str, number: int) -> list[Variant]:
    return [Variant(task, "unknown", 0, 0.25, None) for task in tasks_named(prefix, number)]


def ids_of(choices: Iterable[Choice]) -> list[str]:
    return [choice.task.id for choice in choices]


@given(
    st.integers(1, 30), st.integers(0, 30), st.integers(1, 24), st.floats(0, 1), st.integers(0, 99)
)
@settings(max_examples=150, deadline=None)
def test_a_step_keeps_to_lambda_and_repeats_no_task(
    num_tasks: int, num_variants: int, size: int, share: float, step: int
) -> None:
    subject = curriculum(tasks_named("real", num_tasks), tasks_per_step=size, share=share)
    subject.variants = variants_named("variant", num_variants)
    ids = ids_of(subject.sample(step))
    variants = sum(id.startswith("variant") for id in ids)
    assert len(set(ids)) == len(ids) <= size
    assert variants <= share * len(ids)
    # and it does not give less than it could
    assert len(ids) - variants == min(size - min(int(share * size), num_variants), num_tasks)


def test_a_share_of_a_quarter_gives_two_variants_of_eight() -> None:
    subject = curriculum(tasks_named("real", 20), tasks_per_step=8, share=0.25)
    subject.variants = variants_named("variant", 20)
    for step in range(20):
        drawn = ids_of(subject.sample(step))
        assert Counter(id.split("/")[0] for id in drawn) == {"real": 6, "variant": 2}


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValidationError):
        CurriculumConfig(share=share)


def test_sampling_is_a_matter_of_seed_and_step() -> None:
    tasks = tasks_named("real", 40)
    one, other = curriculum(tasks), curriculum(tasks)
    steps = [one.sample(step) for step in range(6)]
    assert [other.sample(step) for step in reversed(range(6))] == steps[::-1]
    assert len({tuple(ids_of(drawn)) for drawn in steps}) == 6
    another = Curriculum(tasks, CurriculumConfig(), writer(), seed=8)
    assert another.sample(0) != steps[0]


def test_half_solved_tasks_come_back_more_often_and_none_is_dropped() -> None:
    tasks = tasks_named("real", 20)
    subject = curriculum(tasks, tasks_per_step=4, floor=0.02)
    subject.record(half_solved(tasks[:2]) + [group(task, 1.0, 1.0) for task in tasks[2:]])
    drawn = Counter(id for step in range(400) for id in ids_of(subject.sample(step)))
    often = [drawn[task.id] for task in tasks[:2]]
    seldom = [drawn[task.id] for task in tasks[2:]]
    assert min(often) > 300  # 13.5 times the weight of the others
    assert min(seldom) > 0 and max(seldom) < 100


def test_an_untried_task_counts_as_half_solved() -> None:
    tasks = tasks_named("real", 20)
    subject = curriculum(tasks, tasks_per_step=2)
    subject.record([group(task, 0.0, 0.0) for task in tasks[1:]])
    drawn = Counter(id for step in range(200) for id in ids_of(subject.sample(step)))
    assert drawn[tasks[0].id] > 3 * max(drawn[task.id] for task in tasks[1:])


def test_the_last_group_of_a_task_counts_and_faults_do_not() -> None:
    first, second = tasks_named("real", 2)
    subject = curriculum([first, second])
    subject.record([group(first, 1.0, 0.0, 0.0, 0.0, faults=3), group(second, faults=4)])
    assert subject.entropy == {first.id: 0.1875}
    subject.record([group(first, 1.0, 1.0)])
    subject.record([group(first, faults=2)])
    assert subject.entropy == {first.id: 0.0}


def grow(subject: Curriculum, seeds: Sequence[Task], step: int = 0) -> list[Variant]:
    groups = half_solved(seeds)
    subject.record(groups)
    return asyncio.run(subject.grow(groups, step))


def restyled(text: str, number: int) -> list[str]:
    """The same words, with other spaces and capitals every time."""
    rng = random.Random(0)
    style: Callable[[str], str] = lambda c: c.upper() if rng.random() < 0.5 else c  # noqa: E731
    return [
        "  " * rng.randrange(2)
        + (" " * rng.randint(1, 3)).join("".join(map(style, word)) for word in text.split())
        + "\n" * rng.randrange(2)
        for _ in range(number)
    ]


def test_of_fifty_copies_of_a_variant_one_is_let_in() -> None:  # P079
    seeds = tasks_named("real", 50)
    copies = restyled("take the shiny key", 50)
    assert len(set(copies)) > 40
    subject = curriculum(seeds, writer(copies), variants_per_step=50)
    grown = grow(subject, seeds)
    assert len(grown) == 1 and subject.variants == grown
    assert subject.writer.refused == Counter(DUPLICATE=49, EMPTY=150)


def test_a_variant_in_another_place_is_another_task() -> None:
    here = Task("a", "take a", ROOM)
    there = Task("b", "take b", ROOM + " It is dark.")
    subject = curriculum([here, there], writer(["take the key"] * 2))
    grown = grow(subject, [here, there])
    assert len({variant.task.id for variant in grown}) == 2


def test_seed_tasks_and_held_out_tasks_are_never_written_again() -> None:
    seed, held_out = Task("a", "take the key", ROOM), Task("secret", "take the coin", ROOM)
    config = CurriculumConfig(variants_per_step=1)
    dream = writer(["Take  THE key", "take the COIN ", "take the ring"])
    subject = Curriculum([seed], config, dream, seed=0, held_out={task_hash(held_out, BoxText())})
    assert [variant.task.instruction for variant in grow(subject, [seed])] == ["take the ring"]
    assert subject.writer.refused == Counter(DUPLICATE=1, HELD_OUT=1, EMPTY=1)


def test_a_variant_that_the_world_cannot_hold_is_refused_by_its_class() -> None:
    seed = Task("a", "take the key", ROOM)
    dream = writer(["take the moon", "Take the moon"])
    subject = curriculum([seed], dream, variants_per_step=1)
    assert grow(subject, [seed]) == [] == subject.variants
    assert subject.writer.refused == Counter(UNSOLVABLE=1, DUPLICATE=1, EMPTY=2)
    assert dream.model.faults["UNSOLVABLE_START"] == 2  # hidden states that were tried


def test_a_variant_without_words_is_refused() -> None:
    seed = Task("a", "take the key", ROOM)
    subject = curriculum([seed], writer(["  \n"] * 4), variants_per_step=1)
    assert grow(subject, [seed]) == []
    assert subject.writer.refused == Counter(EMPTY=4)


def test_a_variant_of_more_than_a_line_is_refused() -> None:
    seed = Task("a", "take the key", ROOM)
    written = ["take the coin\nYou win.", "take the \x1b[31mcoin"]
    subject = curriculum([seed], writer(written), variants_per_step=1)
    assert grow(subject, [seed]) == []
    assert subject.writer.refused["UNREADABLE"] == 2


def test_variants_grow_from_the_tasks_with_the_highest_entropy() -> None:
    tasks = tasks_named("real", 4)
    subject = curriculum(tasks, writer(["take the key", "take the coin"]), variants_per_step=2)
    solved, one_of_four, half, faulty = tasks
    groups = [group(solved, 1.0, 1.0), group(one_of_four, 1.0, 0.0, 0.0, 0.0)]
    groups += [group(half, 1.0, 0.0), group(faulty, faults=2)]
    subject.record(groups)
    grown = asyncio.run(subject.grow(groups, step=3))
    assert [variant.task.parent for variant in grown] == [half.id, one_of_four.id]
    assert [(v.step, v.seed_entropy) for v in grown] == [(3, 0.25), (3, 0.1875)]


def test_a_variant_carries_its_lineage() -> None:
    seed = Task("a", "take the key", ROOM, kind="take")
    dream = writer(["take the coin", "", "", "", "take the ring"])
    subject = curriculum([seed], dream, variants_per_step=1)
    [child] = [variant.task for variant in grow(subject, [seed])]
    [grandchild] = [variant.task for variant in grow(subject, [child], step=1)]
    assert (child.parent, child.generation, child.kind) == ("a", 1, "take")
    assert (grandchild.parent, grandchild.generation) == (child.id, 2)
    assert child.first_state == ROOM
    assert len({seed.id, child.id, grandchild.id}) == 3


def test_nothing_is_written_where_variants_are_switched_off() -> None:
    seed, dream = Task("a", "take the key", ROOM), writer(["take the coin"])
    assert grow(curriculum([seed], dream, variants_per_step=0), [seed]) == []
    assert isinstance(dream.model.llm, ScriptedLLM) and dream.model.llm.prompts == []


def test_no_step_lets_in_more_than_it_may() -> None:
    seeds = tasks_named("real", 5)
    dream = writer([f"take the {i} key" for i in range(99)])
    subject = curriculum(seeds, dream, variants_per_step=3)
    assert [len(grow(subject, seeds, step)) for step in range(4)] == [3, 3, 3, 3]
    assert len({variant.task.id for variant in subject.variants}) == 12


def test_a_choice_says_by_what_it_was_made() -> None:
    tasks = tasks_named("real", 3)
    subject = curriculum(tasks, writer(["take the key"]), tasks_per_step=4, variants_per_step=1)
    assert {choice.entropy for choice in subject.sample(0)} == {None}
    [variant] = grow(subject, tasks[:1])
    told = {choice.task.id: choice.data() for choice in subject.sample(1)}
    assert told[tasks[0].id] == {
        "id": tasks[0].id,
        "instruction": tasks[0].instruction,
        "entropy": MOST,
        "parent": "",
    }
    assert told[tasks[1].id]["entropy"] is None
    assert told[variant.task.id]["parent"] == tasks[0].id


def test_a_restored_curriculum_goes_on_as_the_saved_one() -> None:
    tasks = tasks_named("real", 12)
    first = ["take the key", "take  the KEY", "take the moon"]
    second = ["TAKE the key", "take the coin", "go"]
    subject = curriculum(tasks, writer(first + [""] * 9 + second), variants_per_step=3)
    grow(subject, tasks[:3])
    subject.record([group(tasks[4], 1.0, 0.0, 0.0)])
    restored = curriculum(tasks, writer(second), variants_per_step=3)
    restored.restore(subject.state())
    assert json.loads(restored.state()) == json.loads(subject.state())
    assert [restored.sample(step) for step in range(9)] == [subject.sample(s) for s in range(9)]
    for each in (subject, restored):
        [grown] = grow(each, tasks[5:8], step=1)
        assert grown.task.instruction == "take the coin"
    assert restored.writer.refused == subject.writer.refused
    assert restored.variants == subject.variants
    assert restored.writer.refused["DUPLICATE"] == 2
