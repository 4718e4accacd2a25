"""What calls cost: unknown is never nothing, and a killed run's bill is not forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.ledger import Account, BudgetSpent, Ledger, Limits, Price, list_price
from dreamgym.types import DreamGymError, Usage

CHEAP = Price(read=1.0, written=2.0, cached=0.1)


def test_dollars_are_of_fresh_cached_and_written_tokens() -> None:
    assert CHEAP.of(Usage(1_000_000, 500_000, 400_000)) == pytest.approx(0.6 + 0.04 + 1.0)
    assert Price(1.0, 2.0).of(Usage(1_000_000, 0, 400_000)) == pytest.approx(1.0)


@pytest.mark.parametrize("price", [Price(), Price(1.0), Price(None, 1.0)])
@pytest.mark.parametrize("usage", [Usage(3, 4), Usage()])
def test_what_is_unknown_is_not_free(price: Price, usage: Usage) -> None:
    assert price.of(usage) is None
    ledger = Ledger()
    ledger.account("dream", "m", price).add(usage, 1.0, replayed=False)
    assert [row["usd"] for row in ledger.data()] == [None, None]


def test_a_limit_on_money_needs_a_price() -> None:  # P112
    assert not list_price("nobody-knows").known and list_price("gpt-4o-mini").known
    ledger = Ledger(Limits(usd=1.0))
    with pytest.raises(DreamGymError, match="nobody knows what nobody-knows costs"):
        ledger.account("dream", "nobody-knows", list_price("nobody-knows"))
    ledger.account("dream", "gpt-4o-mini", list_price("gpt-4o-mini"))
    Ledger(Limits(usd=1.0, tokens=1000)).account("dream", "nobody-knows", Price())


def test_a_server_that_does_not_count_cannot_be_held_to_a_limit() -> None:
    account = Ledger(Limits(tokens=1000)).account("dream", "m", Price())
    with pytest.raises(BudgetSpent, match="does not tell"):
        account.add(None, 1.0, replayed=False)
    account.add(None, 0.0, replayed=True)  # what the cache answers uses none


@pytest.mark.parametrize("limits", [Limits(usd=0.001), Limits(tokens=1000)])
def test_a_killed_runs_bill_still_counts(limits: Limits, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    killed = Ledger(limits, path)
    killed.account("dream", "m", CHEAP).add(Usage(500, 500), 1.0, replayed=False)
    told = path.read_bytes()  # at the moment of the kill: nothing was closed in order
    killed.close()
    path.write_bytes(told + b'{"phase": "dr')
    again = Ledger(limits, path)
    with pytest.raises(BudgetSpent):
        again.require_room()
    again.close()


def test_every_phase_has_its_line(tmp_path: Path) -> None:
    ledger = Ledger(path=tmp_path / "ledger.jsonl")
    accounts: dict[str, Account] = {
        "dream": ledger.account("dream", "a", CHEAP), "judge": ledger.account("judge", "b", Price())
    }  # fmt: skip
    accounts["dream"].add(Usage(10, 5, 4), 2.0, replayed=False)
    accounts["dream"].add(Usage(10, 5), 0.0, replayed=True)
    accounts["judge"].add(None, 1.0, replayed=False)
    dream, judge, both = ledger.data()
    assert (dream["calls"], dream["replayed"], dream["read"], dream["cached"]) == (1, 1, 10, 4)
    assert dream["usd"] == pytest.approx(1e-5, rel=1) and dream["usd_unknown"] == 0
    assert (judge["usd"], judge["tokens_unknown"]) == (None, 1)
    assert (both["phase"], both["calls"], both["usd"], both["seconds"]) == ("all", 2, None, 3.0)
    ledger.close()
