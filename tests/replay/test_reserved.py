"""Transitions counted before they are lived through, validation apart, and a store copied."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dreamgym.replay.checks import Provenance
from dreamgym.replay.retrieve import LexicalRetriever
from dreamgym.replay.store import ReplayStore, copy_store
from dreamgym.types import Completion, DreamGymError, Ending, Episode, Task, Turn

ONLINE = Provenance(run="r", agent="policy", split="online", env="toy")


def episode(*actions: str) -> Episode:
    turns = [Turn("hall", action, 0.0, f"you see {action}") for action in actions]
    return Episode(Task("t", "find the key"), tuple(turns), Ending.TURN_LIMIT, "real")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplayStore]:
    with ReplayStore(tmp_path / "replay.sqlite") as store:
        yield store


def test_what_is_reserved_counts_while_it_is_lived_and_what_was_lived_afterwards(
    store: ReplayStore,
) -> None:
    store.add_episode(episode("a"), provenance=ONLINE)
    with store.reserved("r", 10):
        assert store.real_transitions("r") == 11
        with ReplayStore(store.path, readonly=True) as another:
            assert another.real_transitions("r") == 11
            assert another.real_transitions("other") == 0
        store.add_episode(episode("b", "c"), provenance=ONLINE)
        assert store.real_transitions("r") == 13
    assert store.real_transitions("r") == 3


def test_a_reservation_is_no_experience(store: ReplayStore) -> None:
    before = store.counts()
    with store.reserved("r", 10):
        assert store.counts() == before
        assert list(store.episodes()) == [] == list(store.rows())
        assert store.finished("r") == {} and store.unfinished("r") == []


def test_two_reservations_stand_apart(store: ReplayStore) -> None:
    with store.reserved("r", 10):
        with store.reserved("r", 5):
            assert store.real_transitions("r") == 15
        assert store.real_transitions("r") == 10


def test_a_reservation_stands_where_its_block_breaks(store: ReplayStore) -> None:
    with pytest.raises(RuntimeError), store.reserved("r", 10):
        raise RuntimeError
    assert store.real_transitions("r") == 10


def test_a_reservation_stands_where_its_process_is_killed(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from dreamgym.replay.store import ReplayStore
        with ReplayStore(sys.argv[1]) as store, store.reserved("r", 10):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "replay.sqlite"
    code = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    assert subprocess.run(code, env={**os.environ}).returncode == -signal.SIGKILL
    with ReplayStore(path) as store:
        assert store.real_transitions("r") == 10


def test_a_reader_reserves_nothing(store: ReplayStore) -> None:
    with (
        ReplayStore(store.path, readonly=True) as reader,
        pytest.raises(DreamGymError, match="reading only"),
        reader.reserved("r", 1),
    ):
        pass


def test_what_was_played_to_validate_grounds_no_dream_and_is_paid_for(store: ReplayStore) -> None:
    store.add_episode(episode("a"), provenance=ONLINE)
    validation = replace(ONLINE, run="r-gate", split="validation")
    store.add_episode(episode("b", "c"), provenance=validation)
    store.add_episode(episode("d"), provenance=ONLINE)
    assert [row.action for row in store.rows()] == ["a", "d"]
    retriever = LexicalRetriever.from_store(store)
    hits = retriever.similar("hall", "b", 9)
    assert {hit.row.action for hit in hits} == {"a", "d"}
    store.add_episode(episode("e"), provenance=validation)
    retriever.sync(store)
    assert {hit.row.action for hit in retriever.similar("hall", "e", 9)} == {"a", "d"}
    assert store.real_transitions("r-gate") == 3
    assert len(list(store.episodes(split="validation"))) == 2


def test_a_completion_that_was_cut_off_was_put_to_no_world_and_costs_nothing(
    store: ReplayStore,
) -> None:
    first = replace(episode("a").turns[0], completion=Completion("a", (1,)))
    cut = Turn(
        "you see a", "b b", 0.0, "you see a", False, Completion("b b", (2, 2), (), (), (), "length")
    )
    lived = Episode(Task("t", "find the key"), (first, cut), Ending.TRUNCATED, "real")
    store.add_episode(lived, provenance=ONLINE)
    assert store.real_transitions("r") == 1
    assert store.counts()["transitions"] == 2  # it is trained on all the same


def test_a_copy_holds_what_there_is_and_goes_its_own_way(
    store: ReplayStore, tmp_path: Path
) -> None:
    store.add_episode(episode("a"), provenance=ONLINE)  # still open, with its write-ahead log
    target = tmp_path / "copy.sqlite"
    copy_store(store.path, target)
    store.add_episode(episode("b"), provenance=ONLINE)
    with ReplayStore(target) as copy:
        assert list(copy.episodes()) == [episode("a")]
        assert copy.real_transitions("r") == 1
        copy.add_episode(episode("c"), provenance=ONLINE)
    assert list(store.episodes()) == [episode("a"), episode("b")]
    assert sorted(path.name for path in tmp_path.glob("copy.sqlite.new*")) == []


def test_a_copy_replaces_what_was_there(store: ReplayStore, tmp_path: Path) -> None:
    target = tmp_path / "copy.sqlite"
    with ReplayStore(target) as old:
        old.add_episode(episode("old"), provenance=ONLINE)
    store.add_episode(episode("new"), provenance=ONLINE)
    copy_store(store.path, target)
    with ReplayStore(target, readonly=True) as copy:
        assert list(copy.episodes()) == [episode("new")]


def test_a_store_that_is_not_there_cannot_be_copied(tmp_path: Path) -> None:
    with pytest.raises(DreamGymError, match="no replay store"):
        copy_store(tmp_path / "absent.sqlite", tmp_path / "copy.sqlite")
    assert list(tmp_path.iterdir()) == []
