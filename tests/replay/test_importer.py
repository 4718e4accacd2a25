"""Importing: dirty files of a user's own, and ALFWorld's expert logs through our engine."""

import io
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dreamgym.envs.alfworld.games import load_games
from dreamgym.replay.importer import import_alfworld, import_jsonl, report_table
from dreamgym.replay.store import ReplayStore
from dreamgym.types import DreamGymError, Ending

DATA = Path(
    os.environ.get("DREAMGYM_DATA") or Path(__file__).resolve().parents[2] / "../shared/data"
)
OLD = DATA / "alfworld/expert_trajectories_train.jsonl.xz"
NEW = DATA / "alfworld/expert_demos_engine_0.4.2_sample160.jsonl.xz"
needs_data = pytest.mark.skipif(
    not OLD.is_file(), reason=f"no ALFWorld data at {DATA}: set DREAMGYM_DATA"
)


def log(number: int = 0, **changes) -> dict:
    turn = {"state": f"hall {number}\nline", "action": "open box", "reward": 1, "next_state": "key"}
    row = {"task_id": "t", "instruction": "find the key", "turns": [turn], "ending": "done"}
    for key, value in changes.items():
        (turn if key in turn else row)[key] = value
    return row


def import_bytes(tmp_path: Path, content: bytes, name: str = "logs.jsonl"):
    (tmp_path / name).write_bytes(content)
    store = ReplayStore(tmp_path / "replay.db")
    return import_jsonl(tmp_path / name, store), store


def lines(*rows: dict | str | bytes) -> bytes:
    texts = (row if isinstance(row, (str, bytes)) else json.dumps(row) for row in rows)
    return b"".join((t if isinstance(t, bytes) else t.encode()) + b"\n" for t in texts)


def test_a_log_becomes_an_episode_with_its_provenance(tmp_path):
    row = log(kind="find", split="train", agent="human", extra="of their own")
    report, store = import_bytes(tmp_path, lines(row))
    assert (report.rows, report.added) == (1, 1)
    (episode,) = store.episodes(agent="human", split="train", world="real")
    assert (episode.task.id, episode.task.kind, episode.ending) == ("t", "find", Ending.DONE)
    assert episode.turns[0].next_state == "key" and episode.success


def test_dirty_offline_data_is_counted_and_never_weighs_double(tmp_path):
    # P072: 100 rows: 30 exact copies, 10 CRLF variants, 1 BOM, 1 of 200k characters, 1 bad line
    unique = [log(number) for number in range(57)]
    copies = unique[:30]
    crlf = [log(number, state=f"hall {number}\r\nline") for number in range(30, 40)]
    bom = log(state="\ufeffbom")
    long = log(state="x" * 200_000)
    content = b"\xef\xbb\xbf" + lines(*unique, *copies, *crlf, bom, long, "{bad").replace(
        b"\n", b"\r\n"
    )
    report, store = import_bytes(tmp_path, content)
    assert report.rows == 100
    assert (report.added, report.exact_duplicates) == (59, 40)
    assert report.quarantined == {"bad_json": 1}
    assert report.longest_state == 200_000
    assert store.counts()["episodes"] == 59


@pytest.mark.parametrize(
    "bad, reason",
    [
        ('{"reward":NaN}', "bad_number"),
        ('{"reward":1e400}', "bad_number"),
        ('{"reward":0,"reward":1}', "duplicate_key"),
        (log(reward=True), "bad_reward"),
        (log(reward="1"), "bad_reward"),
        (log(reward=-1), "bad_reward"),
        (log(reward=10**400), "bad_reward"),
        (log(ending="won"), "bad_field"),
        (log(task_id=5), "bad_field"),
        (log(task_id=""), "bad_field"),
        (log(turns={}), "bad_field"),
        (log(turns=[]), "no_turns"),
        (log(state=""), "empty_state"),
        (log(next_state=None), "bad_field"),
        (log(state="x" * 200_001), "too_long"),
        ("[1]", "bad_field"),
        ("null", "bad_field"),
        ("[" * 50_000, "bad_json"),
        (b'{"task_id": "\xe4\xb8"}', "bad_utf8"),
        (log(instruction="lose the key"), "task_conflict"),
    ],
)
def test_a_bad_line_is_quarantined_with_its_number_and_the_others_stay(tmp_path, bad, reason):
    report, store = import_bytes(tmp_path, lines(log(1), bad, log(2)))
    assert (report.rows, report.added, report.quarantined) == (3, 2, {reason: 1})
    assert [row[:3] for row in store.refused()] == [("logs.jsonl", 2, reason)]


@pytest.mark.parametrize("cut", [b'{"task_id": "t', b'{"task_id": "\xe4\xb8'])
def test_a_torn_last_line_is_told_from_a_bad_one(tmp_path, cut):
    report, _ = import_bytes(tmp_path, lines(log()) + cut)
    assert (report.added, report.quarantined) == (1, {"torn": 1})


def test_a_torn_compressed_file_gives_what_it_can(tmp_path):
    whole = lzma.compress(lines(*(log(number) for number in range(300))))
    report, _ = import_bytes(tmp_path, whole[: len(whole) // 2], "logs.jsonl.xz")
    assert report.quarantined == {"torn": 1}
    report, _ = import_bytes(tmp_path, whole, "logs.jsonl.xz")
    assert report.rows == 300 and not report.quarantined


def test_structured_actions_keep_their_types_as_text(tmp_path):
    five, text = ({"args": {"id": value}} for value in (5, "5"))
    report, store = import_bytes(tmp_path, lines(log(action=five), log(action=text)))
    assert report.added == 2
    actions = [episode.turns[0].action for episode in store.episodes()]
    assert [json.loads(action) for action in actions] == [five, text]


def test_a_lone_surrogate_is_imported_as_the_replacement_character(tmp_path):
    report, store = import_bytes(tmp_path, lines(log(next_state="x\ud83d y")))
    assert (report.added, report.sanitised) == (1, 1)
    assert next(store.episodes()).turns[0].next_state == "x\ufffd y"


def test_importing_twice_changes_nothing(tmp_path):
    content = lines(log(1), "{bad", log(2))
    import_bytes(tmp_path, content)
    report, store = import_bytes(tmp_path, content)
    assert (report.added, report.exact_duplicates) == (0, 2)
    assert store.counts()["quarantined"] == 1


def test_a_folder_is_imported_file_by_file_and_an_absent_one_is_an_error(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(lines(log(1)))
    (folder / "b.jsonl").write_bytes(lines(log(2), log(1)))
    (folder / "notes.txt").write_text("not ours")
    with ReplayStore(tmp_path / "replay.db") as store:
        report = import_jsonl(folder, store)
        assert (report.rows, report.added, report.exact_duplicates) == (3, 2, 1)
        with pytest.raises(DreamGymError, match="no file"):
            import_jsonl(tmp_path / "absent.jsonl", store)


def test_the_report_is_a_table_for_people_and_a_dict_for_programs(tmp_path):
    report, _ = import_bytes(tmp_path, lines(log(1), log(1), "{bad"))
    assert json.loads(json.dumps(report.as_dict()))["quarantined"] == {"bad_json": 1}
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(report_table(report))
    shown = console.export_text()
    assert "exact duplicates" in shown and "bad_json" in shown


@pytest.fixture(scope="module")
def games():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DREAMGYM_DATA", str(DATA))
        return load_games("official", "train")


def records(path: Path) -> list[dict]:
    with lzma.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def import_records(tmp_path, rows, games):
    path = tmp_path / "expert.jsonl"
    path.write_bytes(lines(*rows))
    store = ReplayStore(tmp_path / "replay.db")
    return import_alfworld(path, store, games), store


@needs_data
def test_old_expert_logs_are_lived_through_in_todays_words(tmp_path, games):
    rows = records(OLD)[::450]  # all six task types
    report, store = import_records(tmp_path, rows, games)
    assert (report.added, report.quarantined) == (8, {})
    episodes = list(store.episodes(split="train", agent="expert", success=True))
    assert [len(e.turns) for e in episodes] == [len(row["actions"]) for row in rows]
    text = "\n".join(t.action + "\n" + t.next_state for e in episodes for t in e.turns)
    assert "You arrive at" in text and "move " in text and "in/on" not in text
    assert all(e.task.first_state == e.turns[0].state for e in episodes)
    assert all(e.task.instruction in e.task.first_state for e in episodes)


@needs_data
def test_new_expert_logs_agree_with_our_engine_word_for_word(tmp_path, games):
    with ReplayStore(tmp_path / "replay.db") as store:
        report = import_alfworld(NEW, store, games, limit=25)
        assert (report.rows, report.added, report.quarantined) == (25, 25, {})
        rows = records(NEW)[:25]
        states = [[t.state for t in episode.turns] for episode in store.episodes()]
        assert states == [[step["obs"] for step in row["steps"]] for row in rows]


@needs_data
def test_expert_logs_that_our_engine_cannot_live_through_are_quarantined(tmp_path, games):
    row = records(OLD)[0]
    states, actions = row["obs"], row["actions"]
    other = next(game for game in games if game.id != f"{row['task']}/{row['trial']}")
    wrong = [
        {**row, "obs": ["You are elsewhere.", *states[1:]]},
        {**row, "obs": [states[0], "You see a dragon 1.", *states[2:]]},
        {**row, "actions": ["go to moon 1", *actions[1:]]},
        {
            **row,
            "obs": [states[0], "You put the moon 1 in/on the bed 1.", *states[1:]],
            "actions": ["put moon 1 in/on bed 1", *actions],
        },
        {**row, "obs": states[:-1], "actions": actions[:-1]},  # stops before it has won
        {**row, "obs": states[:-1]},
        {**row, "trial": "trial_T0"},
        {"task": row["task"], "trial": row["trial"]},
    ]
    report, _ = import_records(tmp_path, wrong, games)
    expected = {"replay_differs": 5, "bad_field": 2, "unknown_game": 1}
    assert (report.added, report.quarantined) == (0, expected)
    same_room = [replace(other, id=f"{row['task']}/{row['trial']}")]  # another game by that id
    report, _ = import_records(tmp_path, [row], same_room)
    assert report.quarantined == {"replay_differs": 1}
