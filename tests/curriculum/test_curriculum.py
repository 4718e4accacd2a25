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

from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig, task_hash
from dreamgym.envs.text import PlainText
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


def writer(variants: Iterable[str], inside: str = "a key, a coin, a ring") -> ExperienceModel:
    """An experience model that writes these variants and says what is inside the box."""
    left = iter(variants)

    def answer(prompt: Sequence[Message]) -> str:
        return inside if prompt[-1].text == "What is at the box 1?" else next(left)

    return ExperienceModel(ScriptedLLM(answer), BoxText(), ExperienceConfig(hidden_tries=2))


def tasks_named(prefix: str, number: int) -> list[Task]:
    return [Task(f"{prefix}/{i}", f"take {prefix} {i}", ROOM) for i in range(number)]


def group(task: Task, *returns: float, faults: int = 0) -> Group:
    episodes = [Episode(task, (Turn("s", "a", r, "n"),), Ending.DONE, "dream") for r in returns]
    episodes += [Episode(task, (), Ending.DREAM_FAULT, "dream", "X") for _ in range(faults)]
    return Group(task, tuple(episodes))


def half_solved(tasks: Iterable[Task]) -> list[Group]:
    return [group(task, 0.0, 1.0) for task in tasks]


def curriculum(tasks: Sequence[Task], **changes: float) -> Curriculum:
    return Curriculum(tasks, CurriculumConfig(**changes), seed=7)  # type: ignore[arg-type]


@given(
    st.integers(1, 30), st.integers(0, 30), st.integers(1, 24), st.floats(0, 1), st.integers(0, 99)
)
@settings(max_examples=150, deadline=None)
def test_a_step_keeps_to_lambda_and_repeats_no_task(
    num_tasks: int, num_variants: int, size: int, share: float, step: int
) -> None:
    subject = curriculum(tasks_named("real", num_tasks), tasks_per_step=size, share=share)
    subject.variants = tasks_named("variant", num_variants)
    drawn = subject.sample(step)
    ids = [task.id for task in drawn]
    variants = sum(id.startswith("variant") for id in ids)
    assert len(set(ids)) == len(ids) <= size
    assert variants <= share * len(ids)
    # and it does not give less than it could
    assert len(ids) - variants == min(size - min(int(share * size), num_variants), num_tasks)


def test_a_share_of_a_quarter_gives_two_variants_of_eight() -> None:
    subject = curriculum(tasks_named("real", 20), tasks_per_step=8, share=0.25)
    subject.variants = tasks_named("variant", 20)
    for step in range(20):
        drawn = subject.sample(step)
        assert Counter(task.id.split("/")[0] for task in drawn) == {"real": 6, "variant": 2}


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValidationError):
        CurriculumConfig(share=share)


def test_sampling_is_a_matter_of_seed_and_step() -> None:
    tasks = tasks_named("real", 40)
    one, other = curriculum(tasks), curriculum(tasks)
    steps = [one.sample(step) for step in range(6)]
    assert [other.sample(step) for step in reversed(range(6))] == steps[::-1]
    assert len({tuple(task.id for task in drawn) for drawn in steps}) == 6
    another = Curriculum(tasks, CurriculumConfig(), seed=8)
    assert another.sample(0) != steps[0]


def test_half_solved_tasks_come_back_more_often_and_none_is_dropped() -> None:
    tasks = tasks_named("real", 20)
    subject = curriculum(tasks, tasks_per_step=4, floor=0.02)
    subject.record(half_solved(tasks[:2]) + [group(task, 1.0, 1.0) for task in tasks[2:]])
    drawn = Counter(task.id for step in range(400) for task in subject.sample(step))
    often = [drawn[task.id] for task in tasks[:2]]
    seldom = [drawn[task.id] for task in tasks[2:]]
    assert min(often) > 300  # 13.5 times the weight of the others
    assert min(seldom) > 0 and max(seldom) < 100


def test_an_untried_task_counts_as_half_solved() -> None:
    tasks = tasks_named("real", 20)
    subject = curriculum(tasks, tasks_per_step=2)
    subject.record([group(task, 0.0, 0.0) for task in tasks[1:]])
    drawn = Counter(task.id for step in range(200) for task in subject.sample(step))
    assert drawn[tasks[0].id] > 3 * max(drawn[task.id] for task in tasks[1:])


def test_the_last_group_of_a_task_counts_and_faults_do_not() -> None:
    first, second = tasks_named("real", 2)
    subject = curriculum([first, second])
    subject.record([group(first, 1.0, 0.0, 0.0, 0.0, faults=3), group(second, faults=4)])
    assert subject.entropy == {first.id: 0.1875}
    subject.record([group(first, 1.0, 1.0)])
    subject.record([group(first, faults=2)])
    assert subject.entropy == {first.id: 0.0}


def grow(subject: Curriculum, seeds: Sequence[Task], model: ExperienceModel) -> list[Task]:
    groups = half_solved(seeds)
    subject.record(groups)
    return asyncio.run(subject.grow(groups, model, step=0))


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
    subject = curriculum(seeds, variants_per_step=50)
    copies = restyled("take the shiny key", 50)
    assert len(set(copies)) > 40
    grown = grow(subject, seeds, writer(copies))
    assert len(grown) == 1 and subject.variants == grown
    assert subject.refused == {"DUPLICATE": 49}


def test_a_variant_in_another_place_is_another_task() -> None:
    here = Task("a", "take a", ROOM)
    there = Task("b", "take b", ROOM + " It is dark.")
    subject = curriculum([here, there])
    grown = grow(subject, [here, there], writer(["take the key"] * 2))
    assert len({task.id for task in grown}) == 2


def test_seed_tasks_and_held_out_tasks_are_never_written_again() -> None:
    seed, held_out = Task("a", "take the key", ROOM), Task("secret", "take the coin", ROOM)
    config = CurriculumConfig(variants_per_step=1)
    subject = Curriculum([seed], config, seed=0, held_out={task_hash(held_out)})
    for text in ("Take  THE key", "take the COIN "):
        assert grow(subject, [seed], writer([text])) == []
    assert subject.refused == {"DUPLICATE": 2}
    assert len(grow(subject, [seed], writer(["take the ring"]))) == 1


def test_a_variant_that_the_world_cannot_hold_is_refused_by_its_class() -> None:
    seed = Task("a", "take the key", ROOM)
    subject = curriculum([seed], variants_per_step=1)
    model = writer(["take the moon", "Take the moon"])
    assert grow(subject, [seed], model) == [] == subject.variants
    assert subject.refused == {"UNSOLVABLE": 1}
    assert model.faults["UNSOLVABLE_START"] == 2  # hidden states that were tried
    assert grow(subject, [seed], model) == []
    assert subject.refused == {"UNSOLVABLE": 1, "DUPLICATE": 1}


def test_a_variant_without_words_is_refused() -> None:
    seed = Task("a", "take the key", ROOM)
    subject = curriculum([seed], variants_per_step=1)
    assert grow(subject, [seed], writer(["  \n"])) == []
    assert subject.refused == {"EMPTY": 1}


def test_variants_grow_from_the_tasks_with_the_highest_entropy() -> None:
    tasks = tasks_named("real", 4)
    subject = curriculum(tasks, variants_per_step=2)
    solved, one_of_four, half, faulty = tasks
    groups = [group(solved, 1.0, 1.0), group(one_of_four, 1.0, 0.0, 0.0, 0.0)]
    groups += [group(half, 1.0, 0.0), group(faulty, faults=2)]
    subject.record(groups)
    model = writer(["take the key", "take the coin"])
    grown = asyncio.run(subject.grow(groups, model, step=3))
    assert [task.parent for task in grown] == [half.id, one_of_four.id]


def test_a_variant_carries_its_lineage() -> None:
    seed = Task("a", "take the key", ROOM, kind="take")
    subject = curriculum([seed], variants_per_step=1)
    [child] = grow(subject, [seed], writer(["take the coin"]))
    [grandchild] = grow(subject, [child], writer(["take the ring"]))
    assert (child.parent, child.generation, child.kind) == ("a", 1, "take")
    assert (grandchild.parent, grandchild.generation) == (child.id, 2)
    assert child.first_state == ROOM
    assert len({seed.id, child.id, grandchild.id}) == 3


def test_nothing_is_written_where_variants_are_switched_off() -> None:
    seed = Task("a", "take the key", ROOM)
    assert grow(curriculum([seed], variants_per_step=0), [seed], writer([])) == []


def test_a_restored_curriculum_goes_on_as_the_saved_one() -> None:
    tasks = tasks_named("real", 12)
    subject = curriculum(tasks, variants_per_step=3)
    grow(subject, tasks[:3], writer(["take the key", "take  the KEY", "take the moon"]))
    subject.record([group(tasks[4], 1.0, 0.0, 0.0)])
    restored = curriculum(tasks, variants_per_step=3)
    restored.restore(subject.state())
    assert json.loads(restored.state()) == json.loads(subject.state())
    assert [restored.sample(step) for step in range(9)] == [subject.sample(s) for s in range(9)]
    for each in (subject, restored):
        assert grow(each, tasks[5:8], writer(["TAKE the key", "take the coin", "go"])) != []
    assert restored.refused == subject.refused and restored.variants == subject.variants
    assert restored.refused["DUPLICATE"] == 2
