"""The replay buffer's memory: every episode lived through, real or dreamed, in one SQLite file.

Any number of processes may read and write it at once. Rows pass the checks of `checks.py` first;
a refused row is kept in quarantine with its reason, an exact copy is counted and not stored twice.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from dreamgym.replay import checks, rows
from dreamgym.replay.checks import AddResult, BadRow, Provenance, Report
from dreamgym.replay.rows import Row, Where
from dreamgym.replay.schema import connect, prepare, transaction
from dreamgym.replay.text import clean_text
from dreamgym.types import DreamGymError, Ending, Episode, Task, Transition, Turn, World

_BATCH = 64  # episodes per commit of `add_episodes`


@dataclass(frozen=True, slots=True)
class Call:
    """What one call of a teacher came to; None where its model or its price is silent."""

    outcome: str
    prompt_tokens: int | None
    completion_tokens: int | None
    usd: float | None
    seconds: float


class ReplayStore:
    """Episodes in, episodes and transitions out."""

    def __init__(self, path: Path | str, readonly: bool = False) -> None:
        self.path = Path(path)
        self.readonly = readonly
        if readonly and not self.path.exists():
            raise DreamGymError(
                f"there is no replay store at {self.path}. Collect or import first."
            )
        if not readonly:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()  # one writing connection, many threads
        self._db = connect(self.path, readonly=readonly)
        try:
            prepare(self._db, self.path, readonly=readonly)
        except DreamGymError:
            self._db.close()
            raise

    def __enter__(self) -> ReplayStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was added is already on it."""
        self._db.close()

    # ---- whole episodes ----

    def add_episode(
        self, episode: Episode, *, provenance: Provenance, source: str = "", line: int = 0
    ) -> AddResult:
        """Store one episode; a bad one is quarantined, an exact copy only counted.

        `source` and `line` name the file it was read from, for whoever looks into quarantine.
        """
        self._require_writable()
        provenance = rows.clean_provenance(provenance)
        with self._lock, transaction(self._db):
            return self._add(episode, provenance, source or f"run {provenance.run}", line)

    def add_episodes(self, episodes: Iterable[Episode], *, provenance: Provenance) -> Report:
        """Store many, a few dozen per commit. A slow source holds no lock while it thinks."""
        self._require_writable()
        provenance = rows.clean_provenance(provenance)
        report = Report()
        batch: list[Episode] = []
        try:
            for episode in episodes:
                batch.append(episode)
                if len(batch) == _BATCH:
                    self._flush(batch, provenance, report)
        finally:  # a source that breaks loses nothing of what it gave
            self._flush(batch, provenance, report)
        return report

    def quarantine(self, source: str, line: int, error: BadRow, raw: str) -> AddResult:
        """Keep the beginning of a row that could not even become an episode."""
        self._require_writable()
        with self._lock, transaction(self._db):
            rows.insert_quarantine(self._db, source, line, error, raw)
        return AddResult("quarantined", reason=error.reason)

    def _flush(self, batch: list[Episode], provenance: Provenance, report: Report) -> None:
        source = f"run {provenance.run}"
        with self._lock, transaction(self._db):
            for episode in batch:
                report.count(self._add(episode, provenance, source), episode)
        batch.clear()

    def _add(self, raw: Episode, provenance: Provenance, source: str, line: int = 0) -> AddResult:
        try:
            episode = checks.check_episode(raw)
            rows.put_task(self._db, episode.task, provenance.env)
        except BadRow as error:
            begins = repr(raw.turns[0]) if raw.turns else repr(raw.task)
            rows.insert_quarantine(self._db, source, line, error, begins)
            rows.insert_attempt(self._db, "", raw, provenance, "quarantined")
            return AddResult("quarantined", reason=error.reason)
        digest = checks.content_hash(episode)
        result = rows.duplicate_of(self._db, episode, digest)
        if result is None:
            rows.insert_episode(self._db, digest, episode.task, episode.world, provenance)
            for index, turn in enumerate(episode.turns):
                original = checks.original_text(raw.turns[index])
                rows.insert_turn(self._db, digest, index, turn, original)
            result = rows.finish(self._db, digest, episode, digest)
        rows.insert_attempt(self._db, result.episode_id, episode, provenance, result.outcome)
        return result

    # ---- turn by turn: what a kill -9 must not lose ----

    def open_episode(
        self, episode_id: str, task: Task, *, world: World, provenance: Provenance
    ) -> int:
        """Begin an episode under the caller's own id, or find it again: how many turns it has."""
        self._require_writable()
        task, by = checks.check_task(task), rows.clean_provenance(provenance)
        with self._lock, transaction(self._db):
            known = self._db.execute(
                "SELECT ending FROM episodes WHERE id = ?", (episode_id,)
            ).fetchone()
            if known is None:
                rows.put_task(self._db, task, by.env)
                rows.insert_episode(self._db, episode_id, task, world, by)
                begun = Episode(task, (), Ending.TURN_LIMIT, world)
                rows.insert_attempt(self._db, episode_id, begun, by, "open")
            else:
                self._require_open(episode_id)
            return len(rows.row_ids(self._db, episode_id))

    def append_turn(self, episode_id: str, index: int, turn: Turn) -> Turn:
        """Commit one turn, once: a repeated call returns the turn that was committed first."""
        self._require_writable()
        checked = checks.check_turn(turn)
        with self._lock, transaction(self._db):
            self._require_open(episode_id)
            committed = rows.load_turns(self._db, episode_id)
            if 0 <= index < len(committed):
                return committed[index]
            if index != len(committed):
                raise ValueError(f"turn {index} of {episode_id!r} would leave a gap")
            rows.insert_turn(self._db, episode_id, index, checked, checks.original_text(turn))
            for table, key in (("episodes", "id"), ("attempts", "episode_id")):
                self._db.execute(
                    f"UPDATE {table} SET num_turns = ? WHERE {key} = ?", (index + 1, episode_id)
                )
        return checked

    def close_episode(self, episode_id: str, ending: Ending, *, fault: str = "") -> AddResult:
        """End an open episode; one that equals a stored one goes, and is counted."""
        self._require_writable()
        with self._lock, transaction(self._db):
            task_id, world = self._require_open(episode_id)
            turns = rows.load_turns(self._db, episode_id)
            episode = Episode(rows.load_task(self._db, task_id), turns, ending, world, fault)
            result = self._close(episode_id, episode)
            if result.outcome != "added":
                self._db.execute("DELETE FROM episodes WHERE id = ?", (episode_id,))
            self._db.execute(
                "UPDATE attempts SET outcome = ?, ending = ?, episode_id = ?"
                " WHERE episode_id = ? AND outcome = 'open'",
                (result.outcome, ending.value, result.episode_id, episode_id),
            )
            return result

    def _close(self, episode_id: str, raw: Episode) -> AddResult:
        try:
            episode = checks.check_episode(raw)
        except BadRow as error:
            rows.insert_quarantine(self._db, f"episode {episode_id}", 0, error, repr(raw.turns))
            return AddResult("quarantined", reason=error.reason)
        digest = checks.content_hash(episode)
        duplicate = rows.duplicate_of(self._db, episode, digest)
        return duplicate or rows.finish(self._db, episode_id, episode, digest)

    def unfinished(self, run: str | None = None) -> list[tuple[str, str, int]]:
        """(episode id, task id, turns committed) of episodes that were never closed."""
        with self._lock:
            return self._db.execute(
                "SELECT id, task_id, num_turns FROM episodes"
                " WHERE ending IS NULL AND (?1 IS NULL OR run = ?1) ORDER BY rowid",
                (run,),
            ).fetchall()

    def turns(self, episode_id: str) -> tuple[Turn, ...]:
        """The committed turns of one episode, closed or not."""
        with self._lock:
            return rows.load_turns(self._db, episode_id)

    def _require_open(self, episode_id: str) -> tuple[str, World]:
        found = self._db.execute(
            "SELECT task_id, world, ending FROM episodes WHERE id = ?", (episode_id,)
        ).fetchone()
        if found is None or found[2] is not None:
            what = "not in the store" if found is None else f"already closed ({found[2]})"
            raise DreamGymError(
                f"the episode {episode_id!r} is {what}; only an open episode takes turns. "
                "Open it first, and give every new attempt its own id."
            )
        return found[0], found[1]

    def _require_writable(self) -> None:
        if self.readonly:
            raise DreamGymError(
                f"{self.path} was opened for reading only, so nothing can be added."
            )

    # ---- reading: lazy, and each from its own snapshot ----

    def episodes(
        self,
        world: World | None = None,
        split: str | None = None,
        agent: str | None = None,
        success: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[Episode]:
        """Closed episodes, faults included, in the order in which they were closed."""
        for _, episode in self.named_episodes(Where(world, split, agent, success, limit)):
            yield episode

    def named_episodes(self, where: Where) -> Iterator[tuple[str, Episode]]:
        """The same with their ids."""
        with closing(connect(self.path, readonly=True)) as db:
            yield from rows.select_episodes(db, where, faults=True)

    def transitions(
        self,
        world: World | None = None,
        split: str | None = None,
        agent: str | None = None,
        success: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[int, Transition]]:
        """(row id, transition) of the same episodes without faults: what may be trained on.

        `limit` counts episodes.
        """
        where = Where(world, split, agent, success, limit)
        with closing(connect(self.path, readonly=True)) as db:
            for episode_id, episode in rows.select_episodes(db, where, faults=False):
                yield from zip(rows.row_ids(db, episode_id), episode.transitions(), strict=True)

    def rows(self, after: int = 0) -> Iterator[Row]:
        """Flat transitions of episodes whose `seq` is later than `after`, for a retriever."""
        with closing(connect(self.path, readonly=True)) as db:
            yield from rows.select_rows(db, after)

    # ---- a teacher's reasons, and what they cost ----

    def add_annotation(
        self, episode_id: str, teacher: str, reasons: Sequence[str], tutorial: Mapping[str, str]
    ) -> None:
        """Keep one reason a turn; a second annotation by the same teacher replaces the first."""
        self._require_writable()
        with self._lock, transaction(self._db):
            turns = len(rows.row_ids(self._db, episode_id))
            if turns != len(reasons):
                raise ValueError(f"{len(reasons)} reasons for the {turns} turns of {episode_id!r}")
            self._db.execute(
                "INSERT OR REPLACE INTO annotations VALUES (?, ?, ?, ?, ?)",
                (episode_id, teacher, json.dumps(list(reasons)), json.dumps(dict(tutorial)),
                 rows.now()),
            )  # fmt: skip

    def annotations(self, teacher: str) -> dict[str, tuple[str, ...]]:
        """Reasons by episode id."""
        with self._lock:
            found = self._db.execute(
                "SELECT episode_id, reasons FROM annotations WHERE teacher = ?", (teacher,)
            )
            return {episode_id: tuple(json.loads(told)) for episode_id, told in found}

    def add_call(self, episode_id: str, teacher: str, call: Call) -> None:
        """One line of the teacher's ledger."""
        self._require_writable()
        with self._lock, transaction(self._db):
            self._db.execute(
                "INSERT INTO teacher_calls (episode_id, teacher, outcome, prompt_tokens,"
                " completion_tokens, usd, seconds, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (episode_id, teacher, *astuple(call), rows.now()),
            )

    def ledger(self, teacher: str) -> dict[str, Any]:
        """Calls by outcome, tokens, seconds, dollars; None where a part of a sum is unknown."""
        with self._lock:
            outcomes = self._db.execute(
                "SELECT outcome, count(*) FROM teacher_calls WHERE teacher = ? GROUP BY outcome",
                (teacher,),
            ).fetchall()
            sums = self._db.execute(
                "SELECT count(*), count(prompt_tokens), count(completion_tokens),"
                " coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),"
                " count(usd), coalesce(sum(usd), 0), coalesce(sum(seconds), 0) FROM teacher_calls"
                " WHERE teacher = ?",
                (teacher,),
            ).fetchone()
        calls, known_read, known_written, read, written, priced, usd, seconds = sums
        return {
            "calls": calls,
            "outcomes": dict(outcomes),
            "prompt_tokens": read if known_read == calls else None,
            "completion_tokens": written if known_written == calls else None,
            "usd": usd if priced == calls else None,
            "seconds": round(seconds, 1),
        }

    def counts(self) -> dict[str, int]:
        """How much of everything there is."""
        queries = {
            "tasks": "FROM tasks",
            "episodes": "FROM episodes WHERE ending IS NOT NULL",
            "real_episodes": "FROM episodes WHERE ending IS NOT NULL AND world = 'real'",
            "dream_episodes": "FROM episodes WHERE ending IS NOT NULL AND world = 'dream'",
            "unfinished": "FROM episodes WHERE ending IS NULL",
            "transitions": "FROM transitions",
            "duplicates": "FROM attempts WHERE outcome = 'duplicate'",
            "quarantined": "FROM quarantine",
        }
        with self._lock:
            return {
                name: self._db.execute(f"SELECT count(*) {query}").fetchone()[0]
                for name, query in queries.items()
            }

    def quarantined(self) -> Counter[str]:
        """Quarantined rows by reason."""
        with self._lock:
            found = self._db.execute("SELECT reason, count(*) FROM quarantine GROUP BY reason")
            return Counter(dict(found.fetchall()))

    def refused(self) -> list[tuple[str, int, str, str, str]]:
        """(source, line, reason, detail, how it begins) of every quarantined row."""
        with self._lock:
            return self._db.execute(
                "SELECT source, line, reason, detail, raw FROM quarantine ORDER BY rowid"
            ).fetchall()

    def real_transitions(self, run: str) -> int:
        """Real steps this run has paid for: copies, refused and unfinished episodes count too."""
        with self._lock:
            return self._db.execute(
                "SELECT coalesce(sum(num_turns), 0) FROM attempts WHERE run = ? AND world = 'real'",
                (clean_text(run),),
            ).fetchone()[0]

    @contextmanager
    def reserved(self, run: str, transitions: int) -> Iterator[None]:
        """Count so many real transitions as spent until the block has stored what it lived through.

        Killed inside, the reservation stands: a budget then errs towards what was never used.
        """
        self._require_writable()
        run = clean_text(run)
        with self._lock, transaction(self._db):
            held = self._db.execute(
                "INSERT INTO attempts (episode_id, task_id, world, run, agent, outcome, num_turns,"
                " created) VALUES ('', '', 'real', ?, '', 'reserved', ?, ?)",
                (run, transitions, rows.now()),
            ).lastrowid
        yield
        with self._lock, transaction(self._db):
            self._db.execute("DELETE FROM attempts WHERE id = ?", (held,))

    def finished(self, run: str) -> Counter[str]:
        """Attempts per task id that this run need not repeat: stored or copies, and no faults."""
        with self._lock:
            found = self._db.execute(
                "SELECT task_id, count(*) FROM attempts WHERE run = ? AND outcome IN"
                f" ('added', 'duplicate') AND ending NOT IN {rows.FAULTS} GROUP BY task_id",
                (clean_text(run),),
            )
            return Counter(dict(found.fetchall()))

    def fingerprint(self, world: World | None = None, split: str | None = None) -> str:
        """Names the content, whatever its order; a resumed run compares it (P091)."""
        with self._lock:
            found = self._db.execute(
                "SELECT content_hash FROM episodes WHERE ending IS NOT NULL"
                " AND (?1 IS NULL OR world = ?1) AND (?2 IS NULL OR split = ?2)"
                " ORDER BY content_hash",
                (world, split),
            )
            return hashlib.sha256("".join(h for (h,) in found).encode()).hexdigest()[:16]


def copy_store(source: Path, target: Path) -> None:
    """A store as it is now, whoever writes it meanwhile; replaces what is at `target`."""
    if not source.exists():
        raise DreamGymError(f"there is no replay store at {source}. Collect or import first.")
    draft = target.with_name(target.name + ".new")
    draft.unlink(missing_ok=True)
    with closing(connect(source, readonly=True)) as db, closing(sqlite3.connect(draft)) as fresh:
        db.backup(fresh)
    draft.replace(target)
