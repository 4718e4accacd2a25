"""What both sides share: the episode's shape, the world's words, and how a process is measured.

The standard library only: TRL's side imports it in an environment that has nothing of ours.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INSTRUCTION = "find the lamp"
_WORDS = ("room", "door", "key", "lamp", "box", "shelf", "north", "south")


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch of episodes; every turn writes exactly `new` tokens and reads about `words` words."""

    groups: int = 4
    attempts: int = 4
    turns: int = 4
    new: int = 32
    words: int = 40
    latency_s: float = 0.0

    @property
    def episodes(self) -> int:
        return self.groups * self.attempts

    @property
    def sampled(self) -> int:
        return self.episodes * self.turns * self.new

    def __str__(self) -> str:
        return f"{self.groups}x{self.attempts}, {self.latency_s:g} s"


def observation(task: int, turn: int, words: int) -> str:
    """What the world says; the task is in it, as both sides' prompts want it in every state."""
    told = (_WORDS[(task + turn + i) % len(_WORDS)] for i in range(words))
    return f"Task: {INSTRUCTION}. You see {' '.join(told)}."


def payment(number: int, attempts: int) -> float:
    """One attempt of each group succeeds: no group is without a signal, no advantage is 0."""
    return float(number % attempts == 0)


@dataclass(frozen=True, slots=True)
class Request:
    """What the parent asks of one measured process."""

    mode: str
    model: str  # a folder with weights and tokenizer
    shape: Shape
    threads: int
    seed: int
    micro: int  # of the update's forward passes: TRL counts episodes, we count padded tokens
    warm: int = 1  # iterations that are not measured
    iterations: int = 1

    def encode(self) -> str:
        told = {name: getattr(self, name) for name in self.__slots__ if name != "shape"}
        shape = {name: getattr(self.shape, name) for name in Shape.__slots__}
        return json.dumps(told | {"shape": shape})

    @staticmethod
    def decode(text: str) -> Request:
        told = json.loads(text)
        return Request(**(told | {"shape": Shape(**told["shape"])}))


@dataclass(slots=True)
class Measured:
    """What one process did, without its warm-up: a list has an entry per iteration."""

    rollout_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)
    rollout_cpu_s: list[float] = field(default_factory=list)  # of this process alone
    update_cpu_s: list[float] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)  # tokens the policy wrote
    read: list[int] = field(default_factory=list)  # tokens fed to the model to get them
    trained: list[int] = field(default_factory=list)  # tokens the update read, without padding
    others: list[float] = field(default_factory=list)  # cores that other processes used

    def rolled(self, load: Load, *, sampled: int, read: int, trained: int) -> None:
        """One rollout, and what the update will read of it."""
        self.rollout_s.append(load.seconds)
        self.rollout_cpu_s.append(load.cpu_s)
        self.others.append(load.others)
        self.sampled.append(sampled)
        self.read.append(read)
        self.trained.append(trained)

    def updated(self, load: Load) -> None:
        self.update_s.append(load.seconds)
        self.update_cpu_s.append(load.cpu_s)

    def answer(self, request: Request, **more: Any) -> str:
        """The line that the parent reads; complains where the work was not what was asked for."""
        kept = {name: getattr(self, name)[request.warm :] for name in self.__slots__}
        if set(kept["sampled"]) != {request.shape.sampled}:
            raise SystemExit(f"{request.shape.sampled} tokens to write, not {kept['sampled']}")
        return json.dumps(kept | more)


class Load:
    """A span of time, and the cores that other processes used meanwhile: trust it below 0.15."""

    def __enter__(self) -> Load:
        self._began, self._busy, self._own = time.perf_counter(), _busy_s(), time.process_time()
        self.seconds = self.cpu_s = self.others = 0.0
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_s = time.process_time() - self._own
        busy = _busy_s() - self._busy
        self.others = max(0.0, (busy - self.cpu_s) / max(self.seconds, 1e-9))


def _busy_s() -> float:
    """CPU seconds of all processes, where Linux tells."""
    try:
        with open("/proc/stat") as stat:
            spent = [int(x) for x in stat.readline().split()[1:]]
    except OSError:
        return 0.0
    idle = spent[3] + spent[4]
    return (sum(spent[:8]) - idle) / os.sysconf("SC_CLK_TCK")  # what follows is counted in user


def peak_mb() -> float:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def versions(*names: str) -> Mapping[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in names}
