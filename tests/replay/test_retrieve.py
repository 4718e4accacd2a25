"""Retrieval: the right rows, never the forbidden ones, and the same in whatever way they came."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from dreamgym.replay.checks import Provenance
from dreamgym.replay.retrieve import LexicalRetriever, Query
from dreamgym.replay.rows import Row
from dreamgym.replay.store import ReplayStore
from dreamgym.types import Ending, Episode, Task, Turn

NOUNS = ("shelf", "desk", "drawer", "bed", "fridge", "mug", "book", "lamp", "apple", "knife")


def row(number: int, state: str, action: str, *, task="", world="real", answer="") -> Row:
    task = task or f"t{number}"
    answer = answer or f"answer {number}"
    return Row(number, number, f"e-{task}", task, world, state, action, answer, 0.0, False, True)


def random_rows(number: int, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    entity = lambda: f"{rng.choice(NOUNS)} {rng.randint(1, 4)}"  # noqa: E731
    return [
        row(
            i,
            f"On the {entity()}, you see " + ", ".join(entity() for _ in range(rng.randint(0, 4))),
            f"{rng.choice(('go to', 'open', 'take'))} {entity()}",
            task=f"t{rng.randint(0, 9)}",
            world=rng.choice(("real", "dream")),
        )
        for i in range(number)
    ]


def filled(rows: list[Row]) -> LexicalRetriever:
    retriever = LexicalRetriever()
    retriever.add(rows)
    return retriever


def ids(hits) -> list[int]:
    return [hit.row.row_id for hit in hits]


@pytest.mark.parametrize("size", [0, 1, 3])
def test_fewer_rows_than_k_give_fewer_hits_and_no_padding(size):
    retriever = filled([row(i, f"shelf {i}", "open it") for i in range(size)])
    assert sorted(ids(retriever.similar("shelf 1", "open it", 8))) == list(range(size))
    assert sorted(ids(retriever.similar("nothing in common", "?", 8))) == list(range(size))


def test_many_queries_on_an_empty_index_find_nothing():
    assert LexicalRetriever().similar_many([Query("a", "b")] * 25, 4) == [[]] * 25


def test_k_of_zero_finds_nothing_and_a_negative_k_is_an_error():
    retriever = filled(random_rows(5))
    assert retriever.similar("shelf 1", "open it", 0) == []
    with pytest.raises(ValueError):
        retriever.similar("shelf 1", "open it", -1)


def test_the_same_state_and_action_come_first():
    rows = random_rows(300)
    retriever = filled(rows)
    for wanted in rows[::7]:
        best = retriever.similar(wanted.state, wanted.action, 1)[0].row
        assert (best.state, best.action) == (wanted.state, wanted.action)


def test_the_action_outweighs_the_state():
    state = "you see a bed 1, a desk 1, a drawer 1, a fridge 1 and a shelf 1"
    retriever = filled([row(1, state, "go to bed 1"), row(2, "you see a bed 1", "open fridge 1")])
    assert ids(retriever.similar(state, "open fridge 1", 1)) == [2]


def test_an_entity_matches_better_than_its_type_and_the_type_better_than_nothing():
    rows = [row(i, "hall", f"open {it}") for i, it in enumerate(("lamp 1", "shelf 2", "shelf 1"))]
    assert ids(filled(rows).similar("hall", "open shelf 1", 3)) == [2, 1, 0]


def test_chinese_text_is_found_by_bigrams():
    rows = [row(0, "房间", "关闭窗户"), row(1, "房间", "打开抽屉"), row(2, "房间", "坐下")]
    assert ids(filled(rows).similar("房间", "打开那个抽屉", 1)) == [1]


def test_excluded_tasks_episodes_and_dreams_are_never_shown():
    rows = random_rows(400)
    retriever = filled(rows)
    for query in rows[:60]:
        hits = retriever.similar(
            query.state, query.action, 400, exclude_task=query.task_id, real_only=True
        )
        allowed = [r for r in rows if r.task_id != query.task_id and r.world == "real"]
        assert sorted(ids(hits)) == [r.row_id for r in allowed]
        hits = retriever.similar(query.state, query.action, 8, exclude_episode=query.episode_id)
        assert len(hits) == 8 and all(hit.row.episode_id != query.episode_id for hit in hits)


def test_an_index_of_nothing_but_excluded_rows_gives_no_hits():
    retriever = filled([replace(r, task_id="mine") for r in random_rows(500)])
    assert retriever.similar("shelf 1", "open shelf 1", 4, exclude_task="mine") == []


def test_rows_that_say_the_same_are_shown_once_and_others_take_their_place():
    same = [row(i, "hall", "open box", answer="empty") for i in range(5)]
    rows = [*same, row(5, "hall", "open box", answer="a key"), row(6, "cellar", "sit")]
    assert ids(filled(rows).similar("hall", "open box", 3)) == [0, 5, 6]
    assert ids(filled(rows).similar("hall", "open box", 1, exclude_task="t0")) == [1]


def test_equal_scores_give_the_older_first():
    rows = [row(i, f"room {name}", "wait") for i, name in enumerate("abcdef")]
    assert ids(filled(rows).similar("nowhere", "wait", 6)) == [0, 1, 2, 3, 4, 5]


def test_scores_are_bm25():
    rows = random_rows(256)  # a power of two: the mean length is up to date
    retriever = filled(rows)
    # BM25 written out, over the distinct actions, for a state that nothing matches
    actions = list(dict.fromkeys(r.action for r in rows))
    documents = []
    for action in actions:
        verb, noun, number = action.rsplit(" ", 2)
        documents.append([*verb.split(), noun, f"{noun} {number}"])
    size = len(documents)
    known = 1 << (size.bit_length() - 1)  # the mean is that of the first `known` actions
    mean = sum(map(len, documents[:known])) / known
    query = documents[3]

    def score(document: list[str]) -> float:
        total = 0.0
        for term, count in Counter(document).items():
            if term in query:
                holds = sum(term in other for other in documents)
                idf = math.log(1 + (size - holds + 0.5) / (holds + 0.5))
                total += idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(document) / mean))
        return 3.0 * total

    for hit in retriever.similar("", actions[3], 20):
        assert hit.score == pytest.approx(score(documents[actions.index(hit.row.action)]), rel=1e-4)


def test_growing_row_by_row_equals_building_at_once():
    rows = random_rows(300)
    whole, grown = filled(rows), LexicalRetriever()
    for one in rows:
        grown.add([one])
        grown.similar(one.state, one.action, 2)
    queries = [Query(r.state, r.action, exclude_task=r.task_id) for r in random_rows(40, seed=1)]
    assert grown.similar_many(queries, 4) == whole.similar_many(queries, 4)
    assert [whole.similar(q.state, q.action, 4, exclude_task=q.exclude_task) for q in queries] == (
        whole.similar_many(queries, 4)
    )


def test_it_follows_the_store_and_equals_one_built_from_it(tmp_path):
    by = Provenance(run="r", agent="a")

    def live(name: str) -> Episode:
        turns = (Turn("hall", f"open {name}", 0.0, "dark"), Turn("dark", "sit", 1.0, name))
        return Episode(Task(name, "i"), turns, Ending.DONE, "real")

    with ReplayStore(tmp_path / "replay.db") as store:
        store.add_episode(live("box"), provenance=by)
        retriever = LexicalRetriever.from_store(store)
        store.open_episode("slow", Task("slow", "i"), world="real", provenance=by)
        store.append_turn("slow", 0, Turn("cave", "dig", 0.0, "gold"))
        store.add_episode(live("bag"), provenance=by)
        assert (retriever.sync(store), retriever.sync(store)) == (2, 0)
        store.close_episode("slow", Ending.TURN_LIMIT)  # closed later than a newer episode
        assert retriever.sync(store) == 1
        rebuilt = LexicalRetriever.from_store(store)
        assert len(rebuilt) == len(retriever) == 5
        assert rebuilt.similar("cave", "dig", 5) == retriever.similar("cave", "dig", 5)
        best = retriever.similar("cave", "dig", 1)[0].row
        assert (best.task_id, best.next_state, best.done) == ("slow", "gold", False)
