"""Progress bars on standard error: standard output stays free for results."""

from __future__ import annotations

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
    """One bar a stage; where standard error is no terminal, one line a stage."""

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
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(name, total=total, note="")
            yield lambda done, note: progress.update(task, completed=min(done, total), note=note)


class NoProgress:
    """Silence, for tests and scripts."""

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int, str], None]]:
        yield lambda done, note: None
