"""Replies that were paid for once, on the disk: the same questions again cost nothing, and offline
they are the whole run, byte for byte."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dreamgym.types import Completion, DreamGymError

_ABOUT = 0x44_47_52_43  # "DGRC" in SQLite's application_id: this file is a cache of replies
_COMPLETION = TypeAdapter(Completion)


def request_key(path: str, body: Mapping[str, Any], seed: int) -> str:
    """Names a question: what is asked of which model, and the noise, which not every server takes.

    Not where it is asked: the same run may go on at another address.
    """
    told = json.dumps([path, body, seed], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


class ReplyCache:
    """One file, many readers and writers. What `put` has returned is not lost by a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            (about,) = self._db.execute("PRAGMA application_id").fetchone()
            tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if about != _ABOUT and tables:
                raise DreamGymError(f"{path} is another program's file: name a new one")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA application_id = {_ABOUT}")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)"
                " WITHOUT ROWID"
            )
        except sqlite3.DatabaseError as error:
            raise self._broken(error) from error

    def close(self) -> None:
        self._db.close()

    def get(self, key: str) -> Completion | None:
        try:
            row = self._db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
            return _COMPLETION.validate_json(row[0]) if row else None
        except (sqlite3.DatabaseError, ValidationError) as error:
            raise self._broken(error) from error

    def put(self, key: str, reply: Completion) -> Completion:
        """Keep a reply; returns the one that is kept, the first where two came for one question."""
        text = json.dumps(asdict(reply), ensure_ascii=False, allow_nan=False)
        try:
            with self._db:
                self._db.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, text))
        except (sqlite3.DatabaseError, UnicodeEncodeError) as error:
            raise self._broken(error) from error
        kept = self.get(key)
        assert kept is not None
        return kept

    def _broken(self, error: Exception) -> DreamGymError:
        return DreamGymError(
            f"{self.path} cannot be used as a cache of replies ({error}): move it away, and what it"
            " held is asked again"
        )
