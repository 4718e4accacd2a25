"""What a command shows while it works: bars on standard error, and no other library's chatter."""

from __future__ import annotations

import logging
import os
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


def quiet_libraries() -> None:
    """Neither bars nor news from the libraries underneath, and no question to a model hub."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")


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
