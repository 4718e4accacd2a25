"""Progress bars on standard error: standard output stays free for results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class RichProgress:
    """One bar a stage; where standard error is no terminal, a line at every tenth of it."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int, str], None]]:
        columns = (
            TextColumn("{task.description:<26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        if not self.console.is_terminal:
            yield _Lines(name, total).update
            return
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(name, total=total, note="")
            yield lambda done, note: progress.update(task, completed=min(done, total), note=note)


class _Lines:
    """Progress for a log file."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, max(1, total)
        self._tenth = -1
        self._began = time.monotonic()

    def update(self, done: int, note: str) -> None:
        tenth = min(10, 10 * done // self._total)
        if tenth > self._tenth:
            self._tenth = tenth
            seconds = time.monotonic() - self._began
            line = f"{self._name}: {min(done, self._total)}/{self._total} {seconds:.0f} s {note}"
            print(line.rstrip(), file=sys.stderr, flush=True)


class NoProgress:
    """Silence, for tests and scripts."""

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int, str], None]]:
        yield lambda done, note: None
