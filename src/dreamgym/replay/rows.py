"""The replay store's statements: how an episode becomes rows, and rows an episode again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from dreamgym.replay import checks
from dreamgym.replay.checks import AddResult, BadRow, Provenance, Reason
from dreamgym.replay.text import clean_text
from dreamgym.types import Ending, Episode, Task, Turn, World

RAW_PREFIX = 500
FAULTS = tuple(ending.value for ending in Ending if ending.is_fault)
_TURN = "state, action, reward, next_state, valid, answered_by"


@dataclass(frozen=True, slots=True)
class Row:
    """One stored transition as retrieval needs it: flat, without the history."""

    row_id: int
    seq: int  # of its episode
    episode_id: str
    task_id: str
    world: World
    state: str
    action: str
    next_state: str
    reward: float
    done: bool
    valid: bool


@dataclass(frozen=True, slots=True)
class Where:
    """Which closed episodes; None does not filter."""

    world: World | None = None
    split: str | None = None
    agent: str | None = None
    success: bool | None = None
    limit: int | None = None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def clean_provenance(provenance: Provenance) -> Provenance:
    """The same with every text writable."""
    texts = {f.name: clean_text(getattr(provenance, f.name)) for f in fields(provenance)}
    return replace(provenance, **texts)


def put_task(db: sqlite3.Connection, task: Task, env: str) -> None:
    """Store a task once; BadRow where its id already stands for another instruction."""
    known = db.execute(
        "SELECT instruction, first_state FROM tasks WHERE id = ?", (task.id,)
    ).fetchone()
    if known is None:
        texts = (task.id, task.instruction, task.first_state, task.kind, task.parent)
        db.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)", (*texts, task.generation, env))
    elif known[0] != task.instruction:
        detail = f"{task.id} stands for {known[0]!r}, not {task.instruction!r}"
        raise BadRow(Reason.TASK_CONFLICT, detail)
    elif not known[1] and task.first_state:
        db.execute("UPDATE tasks SET first_state = ? WHERE id = ?", (task.first_state, task.id))


def insert_episode(
    db: sqlite3.Connection, episode_id: str, task: Task, world: World, by: Provenance
) -> None:
    """An episode without turns or an ending yet."""
    db.execute(
        "INSERT INTO episodes (id, task_id, world, agent, model, run, split, created)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (episode_id, task.id, world, by.agent, by.model, by.run, by.split, now()),
    )


def insert_turn(
    db: sqlite3.Connection, episode_id: str, index: int, turn: Turn, original: str | None
) -> None:
    """One checked turn."""
    texts = (turn.state, turn.action, turn.next_state)
    db.execute(
        "INSERT INTO transitions (episode_id, turn_index, state, action, next_state, reward,"
        " valid, content_hash, original, answered_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(episode_id, index, *texts, turn.reward, turn.valid),
            *(checks.turn_hash(turn), original, turn.by),
        ),
    )


def insert_attempt(
    db: sqlite3.Connection, episode_id: str, episode: Episode, by: Provenance, outcome: str
) -> None:
    """The ledger's line of one attempt, whatever became of it."""
    who = (clean_text(episode.task.id), episode.world, by.run, by.agent)
    # a completion that was cut off was put to no world
    written = [turn.completion for turn in episode.turns]
    asked = sum(told is None or told.finish_reason != "length" for told in written)
    ending = None if outcome == "open" else episode.ending.value
    db.execute(
        "INSERT INTO attempts (episode_id, task_id, world, run, agent, outcome, ending,"
        " num_turns, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (episode_id, *who, outcome, ending, asked, now()),
    )


def insert_quarantine(
    db: sqlite3.Connection, source: str, line: int, error: BadRow, raw: str
) -> None:
    """Keep how a refused row begins, and why it was refused."""
    texts = (clean_text(error.detail)[:RAW_PREFIX], clean_text(raw[:RAW_PREFIX]), now())
    db.execute(
        "INSERT OR IGNORE INTO quarantine VALUES (?, ?, ?, ?, ?, ?)",
        (clean_text(source), line, error.reason.value, *texts),
    )


def duplicate_of(db: sqlite3.Connection, episode: Episode, digest: str) -> AddResult | None:
    """The result for an exact copy of a stored episode, else None."""
    found = db.execute(
        "SELECT id FROM episodes WHERE world = ? AND task_id = ? AND content_hash = ?",
        (episode.world, episode.task.id, digest),
    ).fetchone()
    return AddResult("duplicate", found[0]) if found else None


def finish(db: sqlite3.Connection, episode_id: str, episode: Episode, digest: str) -> AddResult:
    """Give a stored episode its ending and its place in the readers' order."""
    near = checks.near_hash(episode)
    is_near = db.execute("SELECT 1 FROM episodes WHERE near_hash = ? LIMIT 1", (near,)).fetchone()
    ending = (episode.ending.value, episode.fault, len(episode.turns), episode.reward)
    db.execute(
        "UPDATE episodes SET seq = (SELECT coalesce(max(seq), 0) + 1 FROM episodes), ending = ?,"
        " fault = ?, num_turns = ?, reward = ?, content_hash = ?, near_hash = ? WHERE id = ?",
        (*ending, digest, near, episode_id),
    )
    if episode.ending is Ending.DONE:
        db.execute(
            "UPDATE transitions SET done = 1 WHERE episode_id = ? AND turn_index = ?",
            (episode_id, len(episode.turns) - 1),
        )
    sanitised = db.execute(
        "SELECT 1 FROM transitions WHERE episode_id = ? AND original IS NOT NULL", (episode_id,)
    ).fetchone()
    return AddResult("added", episode_id, is_near is not None, sanitised is not None)


def load_turns(db: sqlite3.Connection, episode_id: str) -> tuple[Turn, ...]:
    """The turns of one episode in their order."""
    cursor = db.execute(
        f"SELECT {_TURN} FROM transitions WHERE episode_id = ? ORDER BY turn_index", (episode_id,)
    )
    return tuple(
        Turn(state, action, reward, next_state, bool(valid), by=by)
        for state, action, reward, next_state, valid, by in cursor
    )


def load_task(db: sqlite3.Connection, task_id: str) -> Task:
    """One task."""
    columns = db.execute(
        "SELECT id, instruction, first_state, kind, parent, generation FROM tasks WHERE id = ?",
        (task_id,),
    ).fetchone()
    return Task(*columns)


def select_episodes(
    db: sqlite3.Connection, where: Where, *, faults: bool
) -> Iterator[tuple[str, Episode]]:
    """(id, episode) in the order in which they were closed, one at a time."""
    conditions, values = _conditions(where)
    if not faults:
        conditions += f" AND ending NOT IN {FAULTS}"
    limit = -1 if where.limit is None else where.limit
    cursor = db.execute(
        "SELECT id, task_id, ending, world, fault FROM episodes"
        f" WHERE ending IS NOT NULL{conditions} ORDER BY seq LIMIT ?",
        (*values, limit),
    )
    for episode_id, task_id, ending, world, fault in cursor:
        turns = load_turns(db, episode_id)
        yield episode_id, Episode(load_task(db, task_id), turns, Ending(ending), world, fault)


def select_rows(db: sqlite3.Connection, after: int) -> Iterator[Row]:
    """Flat transitions of the closed, faultless episodes later than `after` in their order.

    What was played to validate a policy is no experience to ground a dream in.
    """
    cursor = db.execute(
        "SELECT tr.row_id, e.seq, e.id, e.task_id, e.world, tr.state, tr.action, tr.next_state,"
        " tr.reward, tr.done, tr.valid FROM episodes e JOIN transitions tr ON tr.episode_id = e.id"
        f" WHERE e.seq > ? AND e.ending NOT IN {FAULTS} AND e.split <> 'validation'"
        " ORDER BY e.seq, tr.turn_index",
        (after,),
    )
    for columns in cursor:
        *others, done, valid = columns
        yield Row(*[*others, bool(done), bool(valid)])


def row_ids(db: sqlite3.Connection, episode_id: str) -> list[int]:
    """The row ids of an episode's transitions, in turn order."""
    cursor = db.execute(
        "SELECT row_id FROM transitions WHERE episode_id = ? ORDER BY turn_index", (episode_id,)
    )
    return [row_id for (row_id,) in cursor]


def _conditions(where: Where) -> tuple[str, list[Any]]:
    sql, values = "", []
    for column in ("world", "split", "agent"):
        value = getattr(where, column)
        if value is not None:
            sql += f" AND {column} = ?"
            values.append(value)
    if where.success is not None:
        solved = "(ending = 'done' AND reward > 0)"
        sql += f" AND {solved}" if where.success else f" AND NOT {solved}"
    return sql, values
