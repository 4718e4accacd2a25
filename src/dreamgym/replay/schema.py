"""The SQLite side of the replay store: tables, versions, and connections that wait their turn."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dreamgym.types import DreamGymError

VERSION = 2
APPLICATION_ID = 0x44524D47  # "DRMG": tells our files from other SQLite files
BUSY_S = 30.0

_TABLES = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    instruction TEXT NOT NULL,
    first_state TEXT NOT NULL,
    kind TEXT NOT NULL,
    parent TEXT NOT NULL,
    generation INTEGER NOT NULL,
    env TEXT NOT NULL
) STRICT;
CREATE TABLE episodes (
    id TEXT PRIMARY KEY,
    seq INTEGER UNIQUE,             -- the order in which episodes were closed; readers follow it
    task_id TEXT NOT NULL REFERENCES tasks(id),
    world TEXT NOT NULL CHECK (world IN ('real', 'dream')),
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    run TEXT NOT NULL,
    split TEXT NOT NULL,
    ending TEXT,                    -- NULL while turns are still being appended
    fault TEXT NOT NULL DEFAULT '',
    num_turns INTEGER NOT NULL DEFAULT 0,
    reward REAL NOT NULL DEFAULT 0,
    content_hash TEXT,
    near_hash TEXT,
    created TEXT NOT NULL,
    UNIQUE (world, task_id, content_hash)
) STRICT;
CREATE INDEX episodes_near ON episodes (near_hash);
CREATE TABLE transitions (
    row_id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
    turn_index INTEGER NOT NULL,
    state TEXT NOT NULL,
    action TEXT NOT NULL,
    next_state TEXT NOT NULL,
    reward REAL NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    valid INTEGER NOT NULL,
    content_hash TEXT NOT NULL,
    original TEXT,                  -- ASCII JSON of the text, where cleaning it lost characters
    UNIQUE (episode_id, turn_index)
) STRICT;
-- One row per attempt, duplicates and refused ones too: the real world was paid for each of them.
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    world TEXT NOT NULL,
    run TEXT NOT NULL,
    agent TEXT NOT NULL,
    outcome TEXT NOT NULL,          -- open, added, duplicate, quarantined
    ending TEXT,
    num_turns INTEGER NOT NULL,
    created TEXT NOT NULL
) STRICT;
CREATE INDEX attempts_run ON attempts (run, world);
CREATE INDEX attempts_episode ON attempts (episode_id);
CREATE TABLE quarantine (
    source TEXT NOT NULL,
    line INTEGER NOT NULL,          -- 0 where the row did not come from a file
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    raw TEXT NOT NULL,              -- how the row begins
    created TEXT NOT NULL,
    UNIQUE (source, line, reason, raw)
) STRICT;
"""
_SINCE_1 = """
-- Who gave a transition's answer: the real world, the experience model, or a rule that was certain.
ALTER TABLE transitions ADD COLUMN answered_by TEXT NOT NULL DEFAULT 'world';
-- Why each turn of an episode went as it did, by a teacher: JSON, one reason a turn.
CREATE TABLE annotations (
    episode_id TEXT NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
    teacher TEXT NOT NULL,
    reasons TEXT NOT NULL,
    tutorial TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (episode_id, teacher)
) STRICT;
-- The teacher's ledger: every call, also those whose answer was of no use.
CREATE TABLE teacher_calls (
    id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL,
    teacher TEXT NOT NULL,
    outcome TEXT NOT NULL,          -- OK or the class of what was wrong
    prompt_tokens INTEGER,          -- NULL where the model does not tell
    completion_tokens INTEGER,
    usd REAL,                       -- NULL where the price is unknown, never 0
    seconds REAL NOT NULL,
    created TEXT NOT NULL
) STRICT;
"""


def connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """A connection that waits for other writers instead of failing (P064)."""
    mode = "ro" if readonly else "rwc"
    if readonly and not os.access(path.parent, os.W_OK):
        mode = "ro&immutable=1"  # WAL needs a side file that cannot be made there
    uri = f"file:{quote(str(path.resolve()))}?mode={mode}"
    try:
        # isolation_level None: transactions begin where we say so, and as BEGIN IMMEDIATE.
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
    except sqlite3.OperationalError as error:
        raise DreamGymError(
            f"cannot open the replay store {path}: {error}. "
            "Check that the folder exists and that you may write to it."
        ) from error


def prepare(connection: sqlite3.Connection, path: Path, *, readonly: bool) -> None:
    """Create the tables of a new file; refuse a file that is not ours or of a newer version."""
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")  # safe against kill -9 under WAL
        if readonly or not _is_empty(connection):
            _refuse_foreign(connection, path)  # before anything in it is changed
        if readonly:
            _refuse_other_version(connection, path)
        if not readonly:
            _use_wal(connection)
            with transaction(connection):
                if _is_empty(connection):
                    _create(connection)
                elif _pragma(connection, "user_version") == 1:
                    _run(connection, _SINCE_1)
            _refuse_other_version(connection, path)
    except sqlite3.DatabaseError as error:
        raise DreamGymError(
            f"{path} cannot be read as a replay store: {error}. "
            "If it is another file, give another path; if it is damaged, restore a copy."
        ) from error


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise DreamGymError(
            f"{path} is a SQLite file, but not a replay store of dreamgym. Give another path."
        )
    if _pragma(connection, "user_version") > VERSION:
        _refuse_other_version(connection, path)


def _refuse_other_version(connection: sqlite3.Connection, path: Path) -> None:
    version = _pragma(connection, "user_version")
    if version < VERSION:
        raise DreamGymError(
            f"{path} has schema version {version}, this dreamgym reads version {VERSION}. "
            "Open it for writing once, as `dreamgym collect` or `import` do: that brings it up."
        )
    if version > VERSION:
        raise DreamGymError(
            f"{path} has schema version {version}, this dreamgym reads version {VERSION}. "
            "Install the version of dreamgym that wrote it, or import its data anew."
        )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. IMMEDIATE, because a read lock that grows later cannot wait its turn."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection) -> None:
    _run(connection, _TABLES + _SINCE_1)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _run(connection: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _use_wal(connection: sqlite3.Connection) -> None:
    # Switching a file's journal ignores the busy timeout when several processes open it first.
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
