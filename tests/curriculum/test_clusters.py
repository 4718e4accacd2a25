"""PPO's groups of Eq. 7: tasks that say alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dreamgym.curriculum.clusters import cluster
from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig
from dreamgym.curriculum.variants import Variant
from dreamgym.envs.text import PlainText
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.llm.base import Message
from dreamgym.llm.scripted import ScriptedLLM
from dreamgym.types import Ending, Episode, Group, Task, Turn

KINDS = ("put a {} in shelf 1", "heat some {} and put it on table 2", "examine the {} with lamp 1")
THINGS = ("mug", "apple", "book", "pan", "plate", "pen", "egg", "vase")
TASKS = [
    Task(f"t/{k}/{thing}", kind.format(thing), "You are in a room.")
    for k, kind in enumerate(KINDS)
    for thing in THINGS
]


def test_tasks_of_a_kind_come_together_whatever_they_are_about() -> None:
    found = cluster([task.instruction for task in TASKS], 3, seed=0)
    by_kind = [set(found[k * len(THINGS) : (k + 1) * len(THINGS)]) for k in range(3)]
    assert [len(numbers) for numbers in by_kind] == [1, 1, 1]
    assert len(set.union(*by_kind)) == 3


def test_the_same_seed_gives_the_same_clusters() -> None:
    texts = [task.instruction for task in TASKS]
    assert cluster(texts, 5, seed=3) == cluster(texts, 5, seed=3)


def test_fewer_or_empty_texts_than_clusters_are_no_trouble() -> None:
    assert cluster(["a"], 16, seed=0) == [0]
    assert set(cluster(["same words"] * 4, 16, seed=0)) == {0}
    assert len(cluster(["", "!", "put a mug"], 2, seed=0)) == 3


def twice() -> DreamWorld:
    """A dream whose model can vary any task, and whose world can hold any."""

    def answer(prompt: Sequence[Message]) -> str:
        return f"do twice: {prompt[0].text.partition('Your task is to: ')[2]}"

    config = ExperienceConfig(hidden=False, judge="model", rules=False, guard=False)
    return DreamWorld(ExperienceModel(ScriptedLLM(answer), PlainText(), config))


def group(task: Task, reward: float) -> Group:
    turn = Turn("s", "a", reward, "n")
    return Group(task, (Episode(task, (turn,), Ending.DONE, "dream"),))


def test_tasks_tried_once_share_the_entropy_of_their_cluster() -> None:
    subject = Curriculum(TASKS, CurriculumConfig(clusters=3), twice(), seed=0, by_cluster=True)
    alone = Curriculum(TASKS, CurriculumConfig(), twice(), seed=0)
    half = [group(task, float(i % 2)) for i, task in enumerate(TASKS[:4])]
    solved = [group(task, 1.0) for task in TASKS[8:12]]
    single = [group(TASKS[16], 1.0)]
    for curriculum in (subject, alone):
        curriculum.record([*half, *solved, *single])
    kinds = [{subject.entropy.get(t.id) for t in TASKS[k : k + 8]} for k in (0, 8, 16)]
    assert kinds == [{0.25}, {0.0}, {None}], "also of tasks that were not tried"
    assert {alone.entropy[t.id] for t in TASKS[:4]} == {0.0}, "one attempt has no entropy"


def test_a_variant_is_of_its_parents_cluster_also_after_a_restart() -> None:
    subject = Curriculum(TASKS, CurriculumConfig(clusters=3), twice(), seed=0, by_cluster=True)
    variant = replace(TASKS[0], id="variant/1", parent=TASKS[0].id, generation=1)
    subject._let_in(Variant(variant, "longer", 0, 0.25, None))
    again = Curriculum(TASKS, CurriculumConfig(clusters=3), twice(), seed=0, by_cluster=True)
    again.restore(subject.state())
    again.record([group(variant, 1.0), group(TASKS[1], 0.0)])
    assert again.entropy[variant.id] == again.entropy[TASKS[2].id] == 0.25


def test_a_variant_that_is_grown_joins_its_parents_cluster() -> None:
    subject = Curriculum(TASKS, CurriculumConfig(clusters=3), twice(), seed=0, by_cluster=True)
    half = [group(task, float(i % 2)) for i, task in enumerate(TASKS[:4])]
    subject.record(half)
    grown = [variant.task for variant in asyncio.run(subject.grow(half, 0))]
    assert grown
    subject.record([group(grown[0], 1.0), group(TASKS[1], 0.0)])
    assert subject.entropy[grown[0].id] == 0.25
