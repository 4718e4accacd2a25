"""What language models cost, call by call and phase by phase, and the limits that stop a run.

What is not known is unknown: a price that no list has, tokens that a server does not tell. Neither
is ever counted as nothing, and a limit that could not be kept is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from dreamgym.metrics_log import JsonlLog, read_jsonl
from dreamgym.types import DreamGymError, Usage

Phase = Literal["teacher", "dream", "policy", "judge"]


class BudgetSpent(DreamGymError):
    """The limit on money or tokens is reached: the run stops, and goes on with a higher one."""

    exit_code: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens; None is unknown, which is never 0."""

    read: float | None = None
    written: float | None = None
    cached: float | None = None  # of tokens that the server had read before; else they cost `read`

    def of(self, usage: Usage) -> float | None:
        """Dollars; None where a price or a count is unknown."""
        if None in (usage.read, usage.written, self.read, self.written):
            return None
        assert usage.read is not None and usage.written is not None
        assert self.read is not None and self.written is not None
        cached = min(usage.cached or 0, usage.read)
        cheap = self.read if self.cached is None else self.cached
        fresh = usage.read - cached
        return (fresh * self.read + cached * cheap + usage.written * self.written) / 1e6

    @property
    def known(self) -> bool:
        return self.read is not None and self.written is not None


UNKNOWN_PRICE = Price()


def list_price(model: str) -> Price:
    """By the list that comes with this version; unknown where the model is not on it."""
    told = tomllib.loads(files("dreamgym").joinpath("prices.toml").read_text())
    return Price(**told["models"].get(model, {}))


@dataclass(frozen=True, slots=True)
class Limits:
    """0 is none."""

    usd: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Line:
    """One phase and model. Sums of what is known, beside how many calls told nothing."""

    calls: int = 0
    replayed: int = 0  # answered by the cache, which costs nothing
    read: int = 0
    written: int = 0
    cached: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    tokens_unknown: int = 0  # calls
    usd_unknown: int = 0  # calls


@dataclass(slots=True)
class Ledger:
    """A run's calls. With a file it goes on from what an earlier process has spent."""

    limits: Limits = field(default_factory=Limits)
    path: Path | None = None
    lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    _log: JsonlLog | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            for row in read_jsonl(self.path):
                self._count(row)
            self._log = JsonlLog(self.path)

    def close(self) -> None:
        if self._log:
            self._log.close()

    def account(self, phase: Phase, model: str, price: Price) -> Account:
        """Where the calls of one phase are told; raises DreamGymError where the limit on money
        could not be kept."""
        if self.limits.usd and not price.known and not self.limits.tokens:
            raise DreamGymError(
                f"max_usd = {self.limits.usd:g} cannot be kept: nobody knows what {model} costs. "
                "Give server.usd_read and server.usd_written (dollars per million tokens), or "
                "limit max_tokens"
            )
        return Account(self, phase, model, price)

    def require_room(self) -> None:
        """Raises BudgetSpent once a limit is reached. What is in flight then still counts."""
        told = self.total()
        if self.limits.usd and told.usd >= self.limits.usd:
            raise BudgetSpent(
                f"${told.usd:.2f} are spent and max_usd is {self.limits.usd:g}: raise it to go on "
                "from here"
            )
        if self.limits.tokens and told.read + told.written >= self.limits.tokens:
            raise BudgetSpent(
                f"{told.read + told.written:,} tokens are used and max_tokens is "
                f"{self.limits.tokens:,}: raise it to go on from here"
            )

    def add(self, row: dict[str, Any]) -> None:
        """Keep one call; raises BudgetSpent where what it does not tell would undermine a limit."""
        if self._log:
            self._log.append(row)
        self._count(row)
        if self.limits.tokens and not row["replayed"] and row["read"] is None:
            raise BudgetSpent(
                f"{row['model']} does not tell how many tokens it uses, so max_tokens cannot be "
                "kept: go on without it, or with a server that counts"
            )

    def _count(self, row: dict[str, Any]) -> None:
        line = self.lines.setdefault((row["phase"], row["model"]), Line())
        if row["replayed"]:
            line.replayed += 1
            return
        line.calls += 1
        line.seconds += row["seconds"]
        if row["read"] is None or row["written"] is None:
            line.tokens_unknown += 1
        line.read += row["read"] or 0
        line.written += row["written"] or 0
        line.cached += row["cached"] or 0
        if row["usd"] is None:
            line.usd_unknown += 1
        line.usd += row["usd"] or 0.0

    def total(self, lines: Iterable[Line] | None = None) -> Line:
        sums = Line()
        for line in self.lines.values() if lines is None else lines:
            for name, value in asdict(line).items():
                setattr(sums, name, getattr(sums, name) + value)
        return sums

    def data(self) -> list[dict[str, Any]]:
        """A row per phase and model, and their sum; `usd` is null where any call's is unknown."""
        rows = [
            {"phase": phase, "model": model, **asdict(line)}
            for (phase, model), line in sorted(self.lines.items())
        ]
        if rows:
            rows.append({"phase": "all", "model": "", **asdict(self.total())})
        for row in rows:
            row["usd"] = None if row["usd_unknown"] else round(row["usd"], 6)
            row["seconds"] = round(row["seconds"], 1)
        return rows


@dataclass(frozen=True, slots=True)
class Account:
    """One phase's side of the ledger: asked before each call, told after it."""

    ledger: Ledger
    phase: Phase
    model: str
    price: Price

    def require_room(self) -> None:
        self.ledger.require_room()

    def add(self, usage: Usage | None, seconds: float, *, replayed: bool) -> None:
        usage = usage or Usage()
        self.ledger.add(
            {
                "phase": self.phase,
                "model": self.model,
                "read": usage.read,
                "written": usage.written,
                "cached": usage.cached,
                "usd": 0.0 if replayed else self.price.of(usage),
                "seconds": round(seconds, 3),
                "replayed": replayed,
            }
        )
