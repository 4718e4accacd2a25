"""Who is promoted, who stays, and when a dream has lied."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dreamgym.evaluate import Evaluation, Rate
from dreamgym.gate import (
    ALARM_Z,
    Gate,
    GateConfig,
    Incumbent,
    alarm,
    compare,
    divergence,
    sign_test,
)
from dreamgym.train_metrics import diverged


def result(outcomes: str, first: int = 0) -> Evaluation:
    """A task a letter: `+` is solved, `-` is not, `?` was a fault and left out."""
    told = {str(first + i): sign == "+" for i, sign in enumerate(outcomes) if sign != "?"}
    rate = Rate(sum(told.values()), len(told))
    return Evaluation(rate, {}, Counter(), 1.0, told)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1 / 2),
        (0, 1, 1.0),
        (1, 1, 3 / 4),
        (2, 0, 1 / 4),
        (3, 1, 5 / 16),
        (4, 1, 6 / 32),
        (5, 0, 1 / 32),
        (8, 2, 56 / 1024),
    ],
)
def test_the_sign_test_is_the_binomial_tail(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == p
    flips = itertools.product((True, False), repeat=wins + losses)
    assert p == sum(sum(heads) >= wins for heads in flips) / 2 ** (wins + losses)


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_sign_test_is_a_chance_and_more_wins_are_rarer(wins: int, losses: int) -> None:
    p = sign_test(wins, losses)
    assert 0 < p <= 1
    assert sign_test(wins + 1, losses) < p or p == 1.0
    # either side of the same coin: both tails share the middle
    both = p + sign_test(losses, wins)
    assert both >= 1 or pytest.approx(1) == both


@pytest.mark.parametrize(
    ("incumbent", "candidate", "promoted"),
    [
        ("----", "++--", True),  # p = 1/4
        ("----", "+---", False),  # p = 1/2: by chance
        ("++--", "++--", False),  # equal
        ("++--", "--++", False),  # another policy, as good
        ("++--", "----", False),  # worse
        ("+-----", "-+++++", True),  # 5 of 6 won: p = 7/64
        ("+----", "-+++-", False),  # 3 of 4 won: p = 5/16
        ("++++", "++++", False),
        ("", "", False),
    ],
)
def test_only_a_candidate_that_is_better_is_promoted(
    incumbent: str, candidate: str, promoted: bool
) -> None:
    verdict = compare(Incumbent(0, result(incumbent).outcomes), result(candidate), 0.25)
    assert verdict.promoted is promoted


def test_the_first_is_promoted_for_want_of_another() -> None:
    verdict = compare(None, result("----"), 0.25)
    assert verdict.promoted and verdict.success == Rate(0, 4)


def test_a_smaller_alpha_asks_for_more() -> None:
    incumbent = Incumbent(0, result("-----").outcomes)
    assert compare(incumbent, result("++++-"), 0.0625).promoted  # p = 1/16
    assert not compare(incumbent, result("++++-"), 0.06).promoted


def test_only_tasks_that_both_have_played_are_compared() -> None:
    incumbent = Incumbent(0, result("??--++").outcomes)
    verdict = compare(incumbent, result("++++??"), 0.25)
    assert (verdict.wins, verdict.losses, verdict.p) == (2, 0, 0.25)
    assert verdict.success == Rate(4, 4)
    assert not compare(incumbent, result("++++", first=10), 0.25).promoted  # nothing in common


outcomes = st.lists(st.booleans(), min_size=1, max_size=60)


@given(outcomes, st.randoms())
def test_a_promotion_is_never_undone_by_the_one_it_replaced(
    solved: list[bool], rng: object
) -> None:
    one = result("".join("+-"[flag] for flag in solved))
    other = result("".join("-+"[flag] for flag in solved))
    for first, second in ((one, other), (other, one)):
        if compare(Incumbent(0, first.outcomes), second, 0.5).promoted:
            assert not compare(Incumbent(0, second.outcomes), first, 0.5).promoted


def keep(gate: Gate, kept: str) -> None:
    """What the loop does with a promoted one: its words lie beside its weights."""
    gate.folder.mkdir(parents=True, exist_ok=True)
    (gate.folder / "gate.json").write_text(kept)


def test_the_best_stays_whatever_comes_after_and_after_a_restart(tmp_path: Path) -> None:
    config = GateConfig(alpha=0.25)
    gate = Gate(config, tmp_path / "best")
    assert gate.incumbent is None
    promoted = []
    for step, outcome in enumerate(["+---", "+++-", "----", "+++-", "-++-"]):
        verdict, kept = gate.judge(result(outcome), step)
        promoted.append(verdict.promoted)
        assert bool(kept) is verdict.promoted
        if kept:
            keep(gate, kept)
        gate = Gate(config, tmp_path / "best")  # killed and begun again
    assert promoted == [True, True, False, False, False]
    assert gate.incumbent == Incumbent(1, result("+++-").outcomes, 1.0)
    verdict, _ = gate.judge(result("-+++"), 9)  # as many solved as the best
    assert not verdict.promoted and (verdict.wins, verdict.losses) == (1, 1)


def test_a_verdict_is_told_in_numbers(tmp_path: Path) -> None:
    gate = Gate(GateConfig(), tmp_path / "best")
    gate.judge(result("----"), -1)
    verdict, kept = gate.judge(result("++-?"), 4)
    assert json.loads(kept)["step"] == 4
    assert verdict.metrics() == {
        "gate/success": 2 / 3,
        "gate/episodes": 3.0,
        "gate/wins": 2.0,
        "gate/losses": 0.0,
        "gate/p": 0.25,
        "gate/promoted": 1.0,
    }


def rates(before: int, after: int, total: int = 100) -> tuple[Rate, Rate]:
    return Rate(before, total), Rate(after, total)


@pytest.mark.parametrize(
    ("dream", "real", "alarms"),
    [
        (rates(20, 80), rates(50, 20), True),  # P086: the one rises, the other falls
        (rates(20, 80), rates(20, 20), True),  # the other does not follow
        (rates(70, 90), rates(10, 30), False),  # levels differ, gains agree
        (rates(20, 60), rates(30, 70), False),
        (rates(50, 50), rates(50, 50), False),
        (rates(20, 20), rates(20, 80), False),  # a real gain is none to warn of
        (rates(80, 20), rates(50, 80), False),
        (rates(2, 8, 10), rates(2, 2, 10), False),  # too few to tell
        (rates(0, 0), rates(0, 0), False),
        (rates(0, 100), rates(100, 0), True),
    ],
)
def test_the_alarm_is_of_gains_and_not_of_levels(
    dream: tuple[Rate, Rate], real: tuple[Rate, Rate], alarms: bool
) -> None:
    assert bool(alarm(dream, real)) is alarms
    assert (divergence(dream, real) > ALARM_Z) is alarms


def test_the_alarm_says_what_happened_and_what_to_do() -> None:
    said = alarm(rates(20, 80), rates(50, 20))
    assert said.startswith("ALARM") and "20.0% -> 80.0% in the dream" in said
    assert "50.0% -> 20.0% in the real world" in said and "dreamgym audit" in said


some_rates = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(
    lambda pair: Rate(min(pair), max(pair))
)


@given(some_rates, some_rates, some_rates, some_rates)
def test_divergence_is_symmetric_and_finite(a: Rate, b: Rate, c: Rate, d: Rate) -> None:
    z = divergence((a, b), (c, d))
    assert z == pytest.approx(-divergence((c, d), (a, b)))
    assert z == pytest.approx(-divergence((b, a), (d, c)))
    assert divergence((a, b), (a, b)) == pytest.approx(0)


@given(some_rates, some_rates, st.integers(1, 300))
def test_more_success_in_the_dream_alone_is_more_divergence(a: Rate, b: Rate, total: int) -> None:
    assume(total > 1)
    falls = divergence((Rate(total, total), Rate(0, total)), (a, b))
    rises = divergence((Rate(0, total), Rate(total, total)), (a, b))
    assert falls < rises


def update(dream: int, real: int | None, name: str = "gate") -> dict[str, float | None]:
    told: dict[str, float | None] = {
        "dream/train_success": dream / 100,
        "dream/train_episodes": 100.0,
    }
    if real is not None:
        told |= {f"{name}/success": real / 100, f"{name}/episodes": 100.0}
    return told


@pytest.mark.parametrize("name", ["gate", "real"])
def test_the_loop_compares_the_first_and_the_last_time_both_were_measured(name: str) -> None:
    fine, unmeasured, lie = update(20, 50, name), update(90, None), update(80, 20, name)
    follows = update(50, 80, name)
    assert "ALARM" in diverged([unmeasured, fine, unmeasured, lie])
    assert diverged([fine, lie, unmeasured]) == ""  # it was told when it was measured
    assert diverged([unmeasured, lie]) == diverged([]) == diverged([unmeasured]) == ""
    assert diverged([fine, follows]) == ""
    assert diverged([fine, lie, follows]) == ""  # it has followed since


def test_the_gate_is_believed_before_the_held_out_games() -> None:
    first, last = update(20, 50) | update(20, 50, "real"), update(50, 80) | update(50, 5, "real")
    assert diverged([first, last]) == ""


@pytest.mark.parametrize("faults_only", [float("nan"), None])  # as counted, and as read back
def test_a_measurement_of_faults_alone_raises_no_alarm(faults_only: float | None) -> None:
    nothing = update(80, 0) | {"gate/success": faults_only, "gate/episodes": 0.0}
    assert diverged([update(20, 50), nothing]) == ""


def test_a_run_in_the_real_world_has_no_dream_to_compare_with() -> None:
    real = {"real/train_success": 0.1, "real/train_episodes": 9.0, "gate/success": 0.1}
    assert diverged([real | {"gate/episodes": 60.0}] * 3) == ""
