"""The replay store: what goes in comes out, whatever dies, races or lies on the way."""

import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from dreamgym.replay.checks import MAX_CHARS, BadRow, Provenance, Reason, parse_json
from dreamgym.replay.store import ReplayStore
from dreamgym.types import DreamGymError, Ending, Episode, Task, Turn

HUMAN = Provenance(run="r1", agent="human", split="train", env="toy")
TASK = Task("t1", "find the key", kind="find")


def episode(*actions: str, task: Task = TASK, ending: Ending = Ending.DONE, world="real"):
    """An episode that walks through the rooms named by its actions, and wins at the end."""
    states = ["hall", *(f"you see {action}" for action in actions)]
    end = len(actions) - 1
    turns = [
        Turn(states[i], action, float(i == end and ending is Ending.DONE), states[i + 1])
        for i, action in enumerate(actions)
    ]
    return Episode(task, tuple(turns), ending, world)


@pytest.fixture
def store(tmp_path):
    with ReplayStore(tmp_path / "replay.db") as store:
        yield store


def test_an_episode_comes_out_as_it_went_in(store):
    odd = Turn("钥匙 'quoted'", "", 0.25, "line\nbreak 😀", valid=False)
    lived = Episode(
        replace(TASK, first_state="hall", parent="t0", generation=1),
        (odd, Turn("b", "c", 0.5, "")),
        Ending.TURN_LIMIT,
        "dream",
    )
    assert store.add_episode(lived, provenance=HUMAN).outcome == "added"
    assert list(store.episodes()) == [lived]


def test_transitions_carry_their_history_and_only_the_last_is_done(store):
    lived = episode("a", "b")
    store.add_episode(lived, provenance=HUMAN)
    rows = list(store.transitions())
    assert [transition for _, transition in rows] == list(lived.transitions())
    assert [transition.done for _, transition in rows] == [False, True]
    assert [row.done for row in store.rows()] == [False, True]
    assert [row.row_id for row in store.rows()] == [row_id for row_id, _ in rows]


def test_an_exact_copy_is_counted_but_not_stored_twice(store):
    report = store.add_episodes([episode("a"), episode("a"), episode("b")], provenance=HUMAN)
    assert (report.rows, report.added, report.exact_duplicates) == (3, 2, 1)
    assert store.counts()["episodes"] == 2


def test_the_same_actions_in_another_world_or_task_are_no_copy(store):
    other = replace(TASK, id="t2")
    lived = [episode("a"), episode("a", world="dream"), episode("a", task=other)]
    assert store.add_episodes(lived, provenance=HUMAN).added == 3


def test_a_near_copy_is_kept_and_counted(store):
    report = store.add_episodes(
        [episode("go  to SHELF 1"), episode("go to shelf 22")], provenance=HUMAN
    )
    assert (report.added, report.near_duplicates) == (2, 1)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -0.1, 1.5, True, "1", None])
def test_a_reward_that_is_no_number_in_0_1_is_quarantined(store, reward):
    bad = replace(episode("a"), turns=(Turn("s", "a", reward, "n"),))
    result = store.add_episode(bad, provenance=HUMAN)
    assert (result.outcome, result.reason) == ("quarantined", Reason.BAD_REWARD)
    assert store.quarantined() == {"bad_reward": 1}
    assert store.counts()["episodes"] == 0


@pytest.mark.parametrize(
    "turns, reason",
    [
        ((), Reason.NO_TURNS),
        ((Turn(" \n", "a", 0.0, "n"),), Reason.EMPTY_STATE),
        ((Turn("s", "a", 0.0, ""), Turn("s", "a", 0.0, "n")), Reason.EMPTY_STATE),
        ((Turn("s", "a", 0.0, "x" * (MAX_CHARS + 1)),), Reason.TOO_LONG),
    ],
)
def test_what_nobody_can_learn_from_is_quarantined(store, turns, reason):
    result = store.add_episode(replace(episode("a"), turns=turns), provenance=HUMAN)
    assert result.reason is reason
    assert store.counts()["episodes"] == 0


def test_a_fault_before_the_first_turn_is_data_but_never_trained_on(store):
    broken = Episode(TASK, (), Ending.ENV_FAULT, "real", fault="hang")
    later = replace(episode("a", ending=Ending.ENV_FAULT), fault="crash")
    store.add_episodes([broken, later], provenance=HUMAN)
    assert list(store.episodes()) == [broken, later]
    assert list(store.transitions()) == [] and list(store.rows()) == []


def test_a_task_id_that_stands_for_another_instruction_is_refused(store):
    store.add_episode(episode("a"), provenance=HUMAN)
    other = replace(TASK, instruction="lose the key")
    result = store.add_episode(episode("b", task=other), provenance=HUMAN)
    assert result.reason is Reason.TASK_CONFLICT


def test_a_lone_surrogate_is_stored_as_the_replacement_character(store):
    odd = replace(episode("a"), turns=(Turn("s", "a", 1.0, "x\ud83d y\0"),))
    assert store.add_episode(odd, provenance=HUMAN).sanitised
    (read,) = store.episodes()
    assert read.turns[0].next_state == "x\ufffd y\ufffd"
    with sqlite3.connect(store.path) as db:  # the original is kept, escaped
        assert r"x\ud83d y\u0000" in db.execute("SELECT original FROM transitions").fetchone()[0]


def test_a_crlf_copy_and_a_bom_copy_are_exact_copies(store):
    plain = replace(episode("a"), turns=(Turn("one\ntwo", "a", 1.0, "n"),))
    crlf = replace(plain, turns=(Turn("one\r\ntwo", "a", 1.0, "n"),))
    bom = replace(plain, turns=(Turn("\ufeffone\ntwo", "a", 1.0, "n"),))
    report = store.add_episodes([plain, crlf, bom], provenance=HUMAN)
    assert (report.added, report.exact_duplicates, report.sanitised) == (1, 2, 0)


def test_episodes_are_filtered_and_limited_in_the_order_they_came(store):
    lived = [episode("a"), episode("b", ending=Ending.TURN_LIMIT), episode("c", world="dream")]
    store.add_episodes(lived, provenance=HUMAN)
    store.add_episode(episode("d"), provenance=replace(HUMAN, agent="random", split="test"))
    assert list(store.episodes(world="real", agent="human")) == lived[:2]
    assert list(store.episodes(success=True)) == [lived[0], lived[2], episode("d")]
    assert list(store.episodes(success=False)) == [lived[1]]
    assert list(store.episodes(split="test")) == [episode("d")]
    assert list(store.episodes(limit=2)) == lived[:2]
    assert len(list(store.transitions(limit=1))) == 1


def test_reading_is_lazy_and_sees_no_later_writes(store):
    store.add_episodes([episode("a"), episode("b")], provenance=HUMAN)
    reading = store.episodes()
    assert next(reading) == episode("a")
    store.add_episode(episode("c"), provenance=HUMAN)
    assert list(reading) == [episode("b")]


def test_the_budget_counts_every_real_step_whatever_became_of_it(store):
    lived = [episode("a", "b"), episode("a", "b"), episode("c", world="dream")]
    store.add_episodes(lived, provenance=HUMAN)
    store.add_episode(replace(episode("z"), turns=(Turn("", "z", 1.0, "n"),)), provenance=HUMAN)
    store.open_episode("e", TASK, world="real", provenance=HUMAN)
    store.append_turn("e", 0, Turn("s", "a", 0.0, "n"))
    assert store.real_transitions("r1") == 2 + 2 + 1 + 1
    assert store.real_transitions("r2") == 0


def test_a_resumed_collection_knows_what_it_need_not_repeat(store):
    lived = [episode("a"), episode("a"), episode("b", ending=Ending.ENV_FAULT)]
    store.add_episodes(lived, provenance=HUMAN)
    store.open_episode("e", TASK, world="real", provenance=HUMAN)
    assert store.finished("r1") == {"t1": 2}
    assert store.finished("r2") == {}


def test_a_source_that_breaks_loses_nothing_of_what_it_gave(store):
    def source():
        yield episode("a")
        raise ConnectionError("flaky")

    with pytest.raises(ConnectionError):
        store.add_episodes(source(), provenance=HUMAN)
    assert list(store.episodes()) == [episode("a")]


def test_a_repeated_turn_is_committed_once_and_the_first_stays(store):
    store.open_episode("e", TASK, world="real", provenance=HUMAN)
    first = Turn("s", "a", 0.0, "n")
    assert store.append_turn("e", 0, first) == first
    assert store.append_turn("e", 0, Turn("s", "sampled again", 0.0, "fork")) == first
    assert store.open_episode("e", TASK, world="real", provenance=HUMAN) == 1
    assert store.turns("e") == (first,)
    with pytest.raises(ValueError, match="gap"):
        store.append_turn("e", 2, first)


def test_an_episode_lived_turn_by_turn_equals_one_added_whole(store):
    lived = episode("a", "b")
    store.open_episode("e", TASK, world="real", provenance=HUMAN)
    for index, turn in enumerate(lived.turns):
        store.append_turn("e", index, turn)
    assert list(store.episodes()) == [] and store.unfinished() == [("e", "t1", 2)]
    assert store.close_episode("e", Ending.DONE).outcome == "added"
    assert list(store.episodes()) == [lived] and store.unfinished() == []
    assert store.add_episode(lived, provenance=HUMAN).outcome == "duplicate"
    with pytest.raises(DreamGymError, match="already closed"):
        store.append_turn("e", 2, lived.turns[0])
    with pytest.raises(DreamGymError, match="already closed"):
        store.open_episode("e", TASK, world="real", provenance=HUMAN)


def test_an_open_episode_that_turns_out_a_copy_or_bad_goes_and_is_counted(store):
    store.add_episode(episode("a"), provenance=HUMAN)
    store.open_episode("copy", TASK, world="real", provenance=HUMAN)
    store.append_turn("copy", 0, episode("a").turns[0])
    assert store.close_episode("copy", Ending.DONE).outcome == "duplicate"
    store.open_episode("empty", TASK, world="real", provenance=HUMAN)
    assert store.close_episode("empty", Ending.DONE).reason is Reason.NO_TURNS
    assert store.counts()["episodes"] == 1 and store.unfinished() == []
    assert store.counts()["transitions"] == 1


def test_a_bad_turn_is_refused_before_it_is_committed(store):
    store.open_episode("e", TASK, world="real", provenance=HUMAN)
    with pytest.raises(BadRow, match="bad_reward"):
        store.append_turn("e", 0, Turn("s", "a", math.nan, "n"))
    assert store.turns("e") == ()


def test_kill_9_in_the_middle_of_an_episode_keeps_every_committed_turn(tmp_path):
    script = """
        import os, signal, sys
        from dreamgym.replay.checks import Provenance
        from dreamgym.replay.store import ReplayStore
        from dreamgym.types import Task, Turn
        store = ReplayStore(sys.argv[1])
        by = Provenance(run="r", agent="a")
        store.open_episode("e", Task("t", "i"), world="real", provenance=by)
        for index in range(5):
            store.append_turn("e", index, Turn(f"s{index}", "a", 0.0, "n"))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "replay.db"
    code = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    assert subprocess.run(code, env={**os.environ}).returncode == -signal.SIGKILL
    with ReplayStore(path) as store:
        assert store.unfinished("r") == [("e", "t", 5)]
        assert [turn.state for turn in store.turns("e")] == ["s0", "s1", "s2", "s3", "s4"]
        store.close_episode("e", Ending.ENV_FAULT, fault="killed")
        assert len(next(store.episodes()).turns) == 5


def _write(path, start, number, writer):
    start.wait()
    with ReplayStore(path) as store:
        for index in range(number):
            store.add_episode(episode(f"w{writer} i{index}"), provenance=HUMAN)


def test_four_processes_write_at_once_and_no_commit_is_lost(tmp_path):
    context = multiprocessing.get_context("spawn")
    start, path = context.Event(), tmp_path / "replay.db"
    number = 250
    writers = [context.Process(target=_write, args=(path, start, number, w)) for w in range(4)]
    for writer in writers:
        writer.start()
    start.set()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    with ReplayStore(path, readonly=True) as store:
        assert store.counts()["episodes"] == 4 * number
        assert len({e.turns[0].action for e in store.episodes()}) == 4 * number


def test_a_file_that_is_not_ours_or_newer_is_refused_and_left_alone(tmp_path):
    text, other, newer = (tmp_path / name for name in ("text.db", "other.db", "newer.db"))
    text.write_text("not a database, but long enough to look like a header of something" * 9)
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE people (name)")
    ReplayStore(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    for path, says in ((text, "cannot be read"), (other, "not a replay"), (newer, "version 99")):
        with pytest.raises(DreamGymError, match=says):
            ReplayStore(path)
    assert text.read_text().startswith("not a database")


def test_a_reader_writes_nothing_and_needs_a_file(store, tmp_path):
    with pytest.raises(DreamGymError, match="no replay store"):
        ReplayStore(tmp_path / "absent.db", readonly=True)
    with (
        ReplayStore(store.path, readonly=True) as reader,
        pytest.raises(DreamGymError, match="reading only"),
    ):
        reader.add_episode(episode("a"), provenance=HUMAN)


def test_the_fingerprint_names_the_content_and_not_its_order(tmp_path):
    prints = []
    for name, actions in (("1", "ab"), ("2", "ba"), ("3", "ac")):
        with ReplayStore(tmp_path / name) as store:
            store.add_episodes([episode(action) for action in actions], provenance=HUMAN)
            prints.append(store.fingerprint())
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"reward": NaN}', Reason.BAD_NUMBER),
        ('{"reward": -Infinity}', Reason.BAD_NUMBER),
        ('{"reward": 1e400}', Reason.BAD_NUMBER),
        ('{"reward": 0, "reward": 1}', Reason.DUPLICATE_KEY),
        ('{"a": {"b": 1, "b": 1}}', Reason.DUPLICATE_KEY),
        ('{"reward": 1', Reason.BAD_JSON),
        ("[" * 100_000, Reason.BAD_JSON),
        ("1" * 5_000, Reason.BAD_JSON),
    ],
)
def test_json_that_means_two_things_or_nothing_is_refused(line, reason):
    with pytest.raises(BadRow) as caught:
        parse_json(line)
    assert caught.value.reason is reason
