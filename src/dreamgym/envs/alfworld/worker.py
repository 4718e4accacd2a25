"""One process that answers JSON lines, watched by its parent: deadlines, and a clean kill."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dreamgym
from dreamgym.types import EnvFault


class Worker:
    """One process that answers one JSON line per JSON line."""

    def __init__(self, command: Sequence[str]) -> None:
        self.episodes = 0
        self.game = ""  # whose game is loaded: beginning it again is a fraction of loading it
        self.busy = False  # a request is on its way: what comes next would answer that one
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the other streams)
        root = str(Path(dreamgym.__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # its own process group, so that its children die with it
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)  # a worker that reads nothing must not block us
        self._buffer = b""
        self._using_streams = threading.Lock()

    @property
    def pid(self) -> int:
        """The process, and the group it leads."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one request and wait for its answer; after any fault the worker is dead."""
        what = message["do"]
        self.busy = True
        try:
            with self._using_streams:
                try:
                    answer = self._exchange(message, time.monotonic() + timeout_s)
                except (OSError, EOFError, ValueError) as error:
                    if isinstance(error, TimeoutError):
                        raise EnvFault(
                            "engine_timeout", f"{what}: over {timeout_s:.1f} s"
                        ) from None
                    detail = f"during {what}: {error!r}; {self._last_words()}"
                    raise EnvFault("engine_crash", detail) from error
        except EnvFault:
            self.kill()
            raise
        self.busy = False
        return answer

    def _exchange(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        data = json.dumps(message).encode() + b"\n"
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_WRITE)
            while data:
                self._wait(selector, deadline)
                data = data[os.write(self._in.fileno(), data) :]
            selector.unregister(self._in)
            selector.register(self._out, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                self._wait(selector, deadline)
                chunk = os.read(self._out.fileno(), 1 << 16)
                if not chunk:
                    raise EOFError("the worker ended")
                self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError(f"the answer is {answer!r}")
        return answer

    @staticmethod
    def _wait(selector: selectors.BaseSelector, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not selector.select(left):
            raise TimeoutError

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 500))
        return self._errors.read().decode(errors="replace").strip()

    def kill(self) -> None:
        """End the process and everything it started; safe to call again, from any thread."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # gone already
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        with self._using_streams:  # a request that still waits sees the end, then lets go
            for stream in (self._in, self._out, self._errors):
                stream.close()
