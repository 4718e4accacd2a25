"""PPO's groups of Eq. 7: tasks that say alike."""

from __future__ import annotations

from dreamgym.curriculum.clusters import cluster
from dreamgym.curriculum.curriculum import Curriculum, CurriculumConfig
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


def group(task: Task, reward: float) -> Group:
    turn = Turn("s", "a", reward, "n")
    return Group(task, (Episode(task, (turn,), Ending.DONE, "dream"),))


def test_tasks_tried_once_share_the_entropy_of_their_cluster() -> None:
    subject = Curriculum(TASKS, CurriculumConfig(clusters=3), seed=0, by_cluster=True)
    alone = Curriculum(TASKS, CurriculumConfig(), seed=0)
    half = [group(task, float(i % 2)) for i, task in enumerate(TASKS[:4])]
    solved = [group(task, 1.0) for task in TASKS[8:12]]
    single = [group(TASKS[16], 1.0)]
    for curriculum in (subject, alone):
        curriculum.record([*half, *solved, *single])
    kinds = [{subject.entropy.get(t.id) for t in TASKS[k : k + 8]} for k in (0, 8, 16)]
    assert kinds == [{0.25}, {0.0}, {None}], "also of tasks that were not tried"
    assert {alone.entropy[t.id] for t in TASKS[:4]} == {0.0}, "one attempt has no entropy"
