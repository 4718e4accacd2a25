"""The store keeps a teacher's reasons and who gave an answer, and brings older files up."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from dreamgym.replay.checks import Provenance
from dreamgym.replay.rows import Where
from dreamgym.replay.store import Call, ReplayStore
from dreamgym.types import By, DreamGymError, Ending, Episode, Task, Turn

OFFLINE = Provenance(run="r1", agent="human", split="train", env="toy")
REASONS = ("The door is open.", 'It "holds"\n</think> {"a": 1} 钥匙 😀')
TURNS = (Turn("hall", "go", 0.0, "You see a box."), Turn("You see a box.", "open", 1.0, "A key."))
EPISODE = Episode(Task("t1", "find the key"), TURNS, Ending.DONE, "real")
OTHER = replace(EPISODE, task=Task("t2", "find the coin"))
WHO: tuple[By, ...] = ("world", "model", "rule")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replay.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[ReplayStore]:
    with ReplayStore(path) as store:
        store.add_episodes([EPISODE, OTHER], provenance=OFFLINE)
        yield store


def ids(store: ReplayStore) -> list[str]:
    return [episode_id for episode_id, _ in store.named_episodes(Where())]


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What SQLite itself finds in a file."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


# ---- reasons ----


def test_reasons_come_out_as_they_went_in_under_their_episode(store: ReplayStore) -> None:
    one, other = ids(store)
    store.add_annotation(one, "teacher", REASONS, {"overall_plan": "钥匙 first"})
    store.add_annotation(other, "teacher", ("a", "b"), {})
    assert store.annotations("teacher") == {one: REASONS, other: ("a", "b")}
    assert store.annotations("another") == {}
    plans = ask(store.path, "SELECT json_extract(tutorial, '$.overall_plan') FROM annotations")
    assert plans == [("钥匙 first",), (None,)]


def test_reasons_survive_reopening_also_for_readers(store: ReplayStore) -> None:
    store.add_annotation(ids(store)[0], "teacher", REASONS, {})
    store.close()
    for readonly in (True, False):
        with ReplayStore(store.path, readonly=readonly) as again:
            assert again.annotations("teacher") == {ids(again)[0]: REASONS}


def test_a_second_annotation_replaces_the_same_teachers_first(store: ReplayStore) -> None:
    one, other = ids(store)
    for episode_id, teacher in ((one, "teacher"), (one, "another"), (other, "teacher")):
        store.add_annotation(episode_id, teacher, REASONS, {})
    store.add_annotation(one, "teacher", ("new", "newer"), {})
    assert store.annotations("teacher") == {one: ("new", "newer"), other: REASONS}
    assert store.annotations("another") == {one: REASONS}


@pytest.mark.parametrize("reasons", [(), ("one",), ("one", "two", "three")])
def test_another_number_of_reasons_than_turns_is_refused(
    store: ReplayStore, reasons: tuple[str, ...]
) -> None:
    one = ids(store)[0]
    store.add_annotation(one, "teacher", REASONS, {})
    with pytest.raises(ValueError, match=f"{len(reasons)} reasons for the 2 turns"):
        store.add_annotation(one, "teacher", reasons, {})
    assert store.annotations("teacher") == {one: REASONS}


def test_an_episode_that_is_not_there_takes_no_reasons(store: ReplayStore) -> None:
    for reasons, error in ((REASONS, ValueError), ((), sqlite3.IntegrityError)):
        with pytest.raises(error):
            store.add_annotation("absent", "teacher", reasons, {})
    assert store.annotations("teacher") == {}
    store.add_annotation(ids(store)[0], "teacher", REASONS, {})  # and nothing is left locked


def test_a_reader_adds_no_reason_and_no_call(store: ReplayStore) -> None:
    one = ids(store)[0]
    with ReplayStore(store.path, readonly=True) as reader:
        with pytest.raises(DreamGymError, match="reading only"):
            reader.add_annotation(one, "teacher", REASONS, {})
        with pytest.raises(DreamGymError, match="reading only"):
            reader.add_call(one, "teacher", Call("OK", 1, 1, 0.0, 1.0))
        assert reader.annotations("teacher") == {} and reader.ledger("teacher")["calls"] == 0


def test_the_ledger_survives_reopening_and_adds_up_by_teacher(store: ReplayStore) -> None:
    one, other = ids(store)
    store.add_call(one, "teacher", Call("EMPTY", 10, 2, 0.25, 1.5))
    store.add_call(one, "teacher", Call("OK", 10, 4, 0.5, 1.0))
    store.add_call(other, "another", Call("OK", 1000, None, None, 9.0))
    store.close()
    with ReplayStore(store.path, readonly=True) as again:
        assert again.ledger("teacher") == {
            "calls": 2,
            "outcomes": {"EMPTY": 1, "OK": 1},
            "prompt_tokens": 20,
            "completion_tokens": 6,
            "usd": 0.75,
            "seconds": 2.5,
        }
        assert again.ledger("another")["usd"] is None


# ---- who answered ----


def by(*who: By) -> Episode:
    turns = [Turn(f"s{i}", "a", 0.0, f"s{i + 1}", by=by) for i, by in enumerate(who)]
    return Episode(Task("t", "i"), tuple(turns), Ending.TURN_LIMIT, "dream")


def test_who_answered_survives_a_round_trip(path: Path) -> None:
    with ReplayStore(path) as store:
        store.add_episode(by(*WHO), provenance=OFFLINE)
    with ReplayStore(path, readonly=True) as store:
        assert list(store.episodes()) == [by(*WHO)]


def test_who_answered_survives_turn_by_turn(path: Path) -> None:
    with ReplayStore(path) as store:
        store.open_episode("e", by().task, world="dream", provenance=OFFLINE)
        for index, turn in enumerate(by(*WHO).turns):
            assert store.append_turn("e", index, turn).by == turn.by
    with ReplayStore(path) as store:
        assert [turn.by for turn in store.turns("e")] == list(WHO)
        store.close_episode("e", Ending.TURN_LIMIT)
        assert list(store.episodes()) == [by(*WHO)]


def test_who_answered_survives_the_cleaning_of_text(path: Path) -> None:
    odd = replace(by("rule"), turns=(Turn("s", "a", 0.0, "x\ud83d", by="rule"),))
    with ReplayStore(path) as store:
        assert store.add_episode(odd, provenance=OFFLINE).sanitised
        assert [turn.by for turn in next(store.episodes()).turns] == ["rule"]


# ---- a file that an older version wrote ----

TO_VERSION_1 = (
    "ALTER TABLE transitions DROP COLUMN answered_by",
    "DROP TABLE annotations",
    "DROP TABLE teacher_calls",
    "PRAGMA user_version = 1",
)


def version_1(path: Path) -> Path:
    """A file as version 1 left it, with two episodes."""
    with ReplayStore(path) as store:
        store.add_episodes([EPISODE, OTHER], provenance=OFFLINE)
    with closing(sqlite3.connect(path)) as db:
        for statement in TO_VERSION_1:
            db.execute(statement)
    assert version(path) == 1
    return path


def version(path: Path) -> int:
    return ask(path, "PRAGMA user_version")[0][0]


def shape(path: Path) -> list[tuple[Any, ...]]:
    """Every table and its columns."""
    return ask(
        path,
        "SELECT t.name, c.name, c.type, c.dflt_value FROM sqlite_master t,"
        " pragma_table_info(t.name) c WHERE t.type = 'table' ORDER BY 1, c.cid",
    )


def test_opening_for_writing_brings_an_older_file_up_and_keeps_its_rows(path: Path) -> None:
    with ReplayStore(version_1(path)) as store:
        assert list(store.episodes()) == [EPISODE, OTHER]
        assert {turn.by for episode in store.episodes() for turn in episode.turns} == {"world"}
        assert store.finished("r1") == {"t1": 1, "t2": 1}
        assert store.add_episode(EPISODE, provenance=OFFLINE).outcome == "duplicate"
    assert version(path) == 2
    with ReplayStore(path, readonly=True) as reader:
        assert list(reader.episodes()) == [EPISODE, OTHER]


def test_a_file_brought_up_has_the_tables_of_a_new_one(path: Path, tmp_path: Path) -> None:
    ReplayStore(version_1(path)).close()
    ReplayStore(tmp_path / "new.sqlite").close()
    # a column that is added later stands at the end, so the order is no part of it
    assert set(shape(path)) == set(shape(tmp_path / "new.sqlite"))


def test_a_file_brought_up_takes_what_the_new_version_adds(path: Path) -> None:
    with ReplayStore(version_1(path)) as store:
        store.add_annotation(ids(store)[0], "teacher", REASONS, {})
        store.add_call(ids(store)[0], "teacher", Call("OK", 1, 1, 0.5, 1.0))
        store.add_episode(by(*WHO), provenance=OFFLINE)
    with ReplayStore(path) as store:  # nothing is brought up twice
        assert store.annotations("teacher") == {ids(store)[0]: REASONS}
        assert store.ledger("teacher")["usd"] == 0.5
        assert list(store.episodes()) == [EPISODE, OTHER, by(*WHO)]


def test_an_older_file_is_not_read_and_the_error_says_what_to_do(path: Path) -> None:
    before = shape(version_1(path))
    with pytest.raises(DreamGymError, match=r"version 1,.*version 2.*for writing once") as caught:
        ReplayStore(path, readonly=True)
    assert str(path) in str(caught.value) and "dreamgym collect" in str(caught.value)
    assert version(path) == 1 and shape(path) == before
    ReplayStore(path).close()
    with ReplayStore(path, readonly=True) as reader:
        assert list(reader.episodes()) == [EPISODE, OTHER]


def test_a_file_that_cannot_be_brought_up_stays_as_it_was(path: Path) -> None:
    with closing(sqlite3.connect(version_1(path))) as db:
        db.execute("CREATE TABLE teacher_calls (mine)")  # in the way of the last step
    before = shape(path)
    with pytest.raises(DreamGymError, match="cannot be read as a replay store"):
        ReplayStore(path)
    assert version(path) == 1 and shape(path) == before


def test_threads_that_bring_one_file_up_at_once_all_succeed(tmp_path: Path) -> None:
    for attempt in range(8):
        path = version_1(tmp_path / f"{attempt}.sqlite")
        start, seen = threading.Barrier(4), []

        def open_it(path: Path = path, start: threading.Barrier = start, seen: list = seen) -> None:
            start.wait()
            with ReplayStore(path) as store:
                seen.append(list(store.episodes()))

        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [[EPISODE, OTHER]] * 4 and version(path) == 2


def _open_and_add(path: Path, start: Event, number: int) -> None:
    start.wait()
    with ReplayStore(path) as store:
        store.add_episode(replace(EPISODE, task=Task(f"p{number}", "i")), provenance=OFFLINE)


def test_processes_that_bring_one_file_up_at_once_all_succeed(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    version_1(path)
    openers = [context.Process(target=_open_and_add, args=(path, start, n)) for n in range(2)]
    for opener in openers:
        opener.start()
    start.set()
    for opener in openers:
        opener.join()
    assert [opener.exitcode for opener in openers] == [0, 0]
    with ReplayStore(path, readonly=True) as store:
        assert {episode.task.id for episode in store.episodes()} == {"t1", "t2", "p0", "p1"}
