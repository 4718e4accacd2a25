"""The append-only JSONL files of a run folder: one writer, many readers, no loss in a crash."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import numbers
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dreamgym.replay.text import clean_text
from dreamgym.types import DreamGymError

NONFINITE = "_nonfinite"
"""The key that lists which values of a record were NaN or infinite, and so are null in it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of a file that a crash cut off, and where it was put aside."""

    path: Path
    line: int
    num_bytes: int
    moved_to: Path


class JsonlLog:
    """One file, one writing process. Reading needs no log: see `read_jsonl`."""

    def __init__(self, path: Path | str, *, durable: bool = False, wait_s: float = 0.0) -> None:
        self.path = Path(path)
        self.durable = durable  # whether each record is forced to the disk: survives a power cut
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._owner = os.getpid()
        self._lock_fd = _lock(self.path, wait_s)
        try:
            self.torn = _put_torn_tail_aside(self.path)
            self._file = self._open()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def __enter__(self) -> JsonlLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: dict[str, Any]) -> None:
        """Write one record as one line; it is on the file when this returns."""
        if os.getpid() != self._owner:
            raise DreamGymError(
                f"{self.path} belongs to process {self._owner}, and this is its child "
                f"{os.getpid()}. Hand the record to the parent, or write another file."
            )
        line = encode(record) + b"\n"
        fd = self._file.fileno()
        start = os.fstat(fd).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError:  # a full disk: half a line would swallow the next record
            os.ftruncate(fd, start)
            raise
        if self.durable:
            os.fsync(fd)

    def read(self) -> list[dict[str, Any]]:
        """Every record, oldest first."""
        return list(read_jsonl(self.path))

    def truncate_after(self, step: int) -> int:
        """Keep the records whose `step` is at most this one, all or nothing: how many went."""
        kept, dropped = [], 0
        for number, record in enumerate(read_jsonl(self.path), start=1):
            if "step" not in record:
                raise DreamGymError(
                    f"{self.path} record {number} has no step, so the file cannot be cut at step "
                    f"{step}. Start a new run folder, or remove that record."
                )
            if record["step"] <= step:
                kept.append(encode(record) + b"\n")
            else:
                dropped += 1
        if dropped:
            self._replace(b"".join(kept))
        return dropped

    def close(self) -> None:
        """Give the file back to other processes."""
        if not self._file.closed:
            self._file.close()
            os.close(self._lock_fd)

    def _open(self) -> BinaryIO:
        # Unbuffered: a record is one write of one line, so that a kill -9 loses none of it.
        return open(self.path, "ab", buffering=0)

    def _replace(self, content: bytes) -> None:
        beside = self.path.with_name(self.path.name + ".new")
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._file.close()
        os.replace(beside, self.path)
        self._file = self._open()


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """The records of a file that may be being written: an unfinished last line is left out."""
    path = Path(path)
    if not path.exists():
        return
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            record = _decode(line)
            if record is None:
                raise DreamGymError(
                    f"{path} line {number} is no JSON object: {line[:80]!r}. "
                    "Remove that line, or restore the file from a copy."
                )
            yield record


def encode(record: dict[str, Any]) -> bytes:
    """One line of strict JSON: no NaN, no lone surrogate, no line break."""
    nonfinite = list(record.get(NONFINITE, []))  # of a record that was read and is written again
    values = {key: value for key, value in record.items() if key != NONFINITE}
    plain = _plain(values, "", nonfinite)
    if nonfinite:
        plain[NONFINITE] = nonfinite
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()


def nanmean(values: Iterable[float | None]) -> tuple[float, int]:
    """(mean, n) of the finite values: NaN, infinite and missing ones are left out; (nan, 0)."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (math.fsum(finite) / len(finite) if finite else math.nan), len(finite)


def _plain(value: Any, where: str, nonfinite: list[str]) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        inside = f"{where}." if where else ""
        return {
            clean_text(str(k)): _plain(v, f"{inside}{clean_text(str(k))}", nonfinite)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{where}.{i}", nonfinite) for i, v in enumerate(value)]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):  # numpy's too
        if math.isfinite(value):
            return float(value)
        nonfinite.append(where)
        return None
    raise TypeError(f"{where or 'the record'}: a {type(value).__name__} cannot stand in a log")


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode())
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _lock(path: Path, wait_s: float) -> int:
    """Lock `<name>.lock`, which names its owner; the system frees it when the owner dies."""
    lock = path.with_name(path.name + ".lock")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise DreamGymError(
                f"{path} is being written by process {owner}. "
                "Wait until it has ended, or choose another run folder."
            ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _put_torn_tail_aside(path: Path) -> TornTail | None:
    """Repair a file whose last line is not whole, so that the next record gets its own line."""
    if not path.exists() or not path.stat().st_size:
        return None
    content = path.read_bytes()
    start = content.rstrip(b"\n").rfind(b"\n") + 1
    tail = content[start:]
    if _decode(tail) is not None:
        if not tail.endswith(b"\n"):  # the record is whole, only its line is not
            with open(path, "ab") as file:
                file.write(b"\n")
        return None
    aside = path.with_name(path.name + ".torn")
    with open(aside, "ab") as file:
        file.write(tail if tail.endswith(b"\n") else tail + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.truncate(path, start)
    torn = TornTail(path, content.count(b"\n", 0, start) + 1, len(tail), aside)
    log.warning("%s line %d was cut off by a crash: moved to %s", path, torn.line, aside)
    return torn
