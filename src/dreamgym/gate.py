"""The gate between training and use: a policy is promoted only where the real world says so.

A candidate and the best policy so far play the same validation tasks with the same random numbers.
Tasks that both solve, or neither, say nothing; of the others a one-sided sign test asks whether the
candidate won more often than a coin would. What was promoted last stays, whatever comes after.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dreamgym.evaluate import Evaluation, Rate
from dreamgym.run_folder import settled
from dreamgym.settings import Settings

ALARM_Z = 2.0
"""So many standard errors between a dream's gain and the real one's are an alarm."""


class GateConfig(Settings):
    every: Annotated[int, Field(ge=0)] = 2
    """Updates in the real world between two evaluations, whose cost is counted; 0 is no gate."""
    dream_every: Annotated[int, Field(ge=0)] = 0
    """The same for training in the dream, which then is no longer free of real transitions."""
    tasks: Annotated[int, Field(ge=1)] = 60
    """Validation tasks: games to learn from that were kept out of everything else."""
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """The largest p of the sign test at which a candidate is promoted. Generous, since promoting an
    equal one costs nothing, and so few tasks rarely tell a better one for sure."""


def sign_test(wins: int, losses: int) -> float:
    """The chance of at least so many wins if either side were as likely; 1 without any."""
    total = wins + losses
    return sum(math.comb(total, k) for k in range(wins, total + 1)) / 2**total


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best policy so far: after which update, what it did at each validation task, and in how
    many turns on average."""

    step: int
    outcomes: Mapping[str, bool]
    mean_turns: float = math.nan


@dataclass(frozen=True, slots=True)
class Verdict:
    """A candidate beside the incumbent."""

    success: Rate
    wins: int
    losses: int
    p: float
    promoted: bool

    def metrics(self) -> dict[str, float]:
        return {
            "gate/success": self.success.value,
            "gate/episodes": float(self.success.total),
            "gate/wins": float(self.wins),
            "gate/losses": float(self.losses),
            "gate/p": self.p,
            "gate/promoted": float(self.promoted),
        }


def compare(incumbent: Incumbent | None, result: Evaluation, alpha: float) -> Verdict:
    """Whether the candidate is better; the first one is, for want of another, if it could be
    judged at all."""
    if incumbent is None and result.outcomes:
        return Verdict(result.success, 0, 0, 1.0, promoted=True)
    both = [
        (solved, incumbent.outcomes[task])
        for task, solved in result.outcomes.items()
        if incumbent and task in incumbent.outcomes
    ]
    wins, losses = both.count((True, False)), both.count((False, True))
    p = sign_test(wins, losses)
    return Verdict(result.success, wins, losses, p, wins > losses and p <= alpha)


class Gate:
    """Keeps the incumbent in `folder`, its weights beside what it did."""

    def __init__(self, config: GateConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        path = settled(folder)
        self.incumbent = None
        if path is not None:
            told = json.loads((path / "gate.json").read_text())
            self.incumbent = Incumbent(**told)

    def cost(self, tasks: int, max_turns: int) -> float:
        """Transitions that so many validation tasks will take: what the incumbent's did, and some
        more, since a candidate may take longer."""
        if self.incumbent is None or math.isnan(self.incumbent.mean_turns):
            return float(tasks * max_turns)
        return tasks * min(max_turns, 1.1 * self.incumbent.mean_turns)

    def judge(self, result: Evaluation, step: int) -> tuple[Verdict, str]:
        """The verdict, and the new incumbent as JSON where it is promoted, to keep beside its
        weights."""
        verdict = compare(self.incumbent, result, self.config.alpha)
        if not verdict.promoted:
            return verdict, ""
        self.incumbent = Incumbent(step, result.outcomes, result.mean_turns)
        return verdict, json.dumps(asdict(self.incumbent))


def divergence(dream: tuple[Rate, Rate], real: tuple[Rate, Rate]) -> float:
    """By how many standard errors the dream's success gained more than the real world's.

    Levels differ between worlds, and between tasks; it is gains that must agree. Rates are smoothed
    (a success and a failure more), so that 0 and 1 have errors too.
    """
    gains, variance = [], 0.0
    for before, after in (dream, real):
        smooth = [(rate.hits + 1) / (rate.total + 2) for rate in (before, after)]
        gains.append(smooth[1] - smooth[0])
        variance += sum(
            p * (1 - p) / (rate.total + 2) for p, rate in zip(smooth, (before, after), strict=True)
        )
    return (gains[0] - gains[1]) / math.sqrt(variance)


def alarm(dream: tuple[Rate, Rate], real: tuple[Rate, Rate]) -> str:
    """A warning where success in the dream rises and the real one does not follow; else empty."""
    z = divergence(dream, real)
    if z <= ALARM_Z:
        return ""
    return (
        f"ALARM: dream and real success diverge by {z:.1f} standard errors: "
        f"{dream[0].value:.1%} -> {dream[1].value:.1%} in the dream, "
        f"{real[0].value:.1%} -> {real[1].value:.1%} in the real world. The policy learns what "
        "only the dream pays for: audit the dream (dreamgym audit), and do not train on in it"
    )
