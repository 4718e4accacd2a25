"""All blocks of a table, some at once: one process and one thread each, so that seeds fill the
cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dreamgym.job import Progress
from dreamgym.reproduce.plan import Block, Cell
from dreamgym.types import DreamGymError

_POLL_S = 2.0


def num_done(results: Path, blocks: Sequence[Block], cells: Sequence[Cell], backend: str) -> int:
    """Cells that have all their numbers."""
    names = {cell.name: cell.part for cell in cells}
    done = 0
    for block in blocks:
        path = results / f"{block.name}.json"
        told = json.loads(path.read_text()) if path.exists() else {}
        done += sum(
            name in told and (part == "fit" or backend in told[name]["final"])
            for name, part in names.items()
        )
    return done


def run_blocks(
    blocks: Sequence[Block],
    cells: Sequence[Cell],
    flags: Sequence[str],
    *,
    jobs: int,
    runs: Path,
    results: Path,
    backend: str,
    progress: Progress,
) -> None:
    """Start the command for one block after another, `jobs` of them at once.

    Raises DreamGymError where one fails, after the others have ended; what is done stays done.
    """
    waiting, failed = list(blocks), []
    running: dict[subprocess.Popen[bytes], Block] = {}
    runs.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with progress.bar("cells", len(blocks) * len(cells)) as tick:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    block = waiting.pop(0)
                    told = [f"--data={block.data}", f"--seeds={block.seed}", "--jobs=1"]
                    command = [sys.executable, "-m", "dreamgym", "reproduce", *flags, *told]
                    with (runs / f"{block.name}.log").open("ab") as log:
                        running[subprocess.Popen(command, stdout=log, stderr=log, env=env)] = block
                time.sleep(_POLL_S)
                for process in [p for p in running if p.poll() is not None]:
                    block = running.pop(process)
                    failed += [block.name] if process.returncode else []
                tick(
                    num_done(results, blocks, cells, backend),
                    " ".join(b.name for b in running.values()),
                )
        finally:
            for process in running:
                process.terminate()
    if failed:
        raise DreamGymError(
            f"{', '.join(failed)} failed: see {runs}/{failed[0]}.log. The same command goes on "
            "with what is left"
        )
