"""Each kind of ledger that is compared with the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.ledger_calls import FakeClock, Nodes
from support.stepped_redis import QUARANTINE_S, RecoveringClock, SteppedLedger

from contract.ledger.corners.both import Both
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.ports import Ledger


@pytest.fixture(params=["sqlite", "redis"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    ledger: Ledger
    if request.param == "redis":
        clock: FakeClock = RecoveringClock()
        assert isinstance(clock, RecoveringClock)
        ledger = SteppedLedger(request.getfixturevalue("redis_url"), clock, quarantine_s=QUARANTINE_S)
    else:
        clock = FakeClock()
        ledger = SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", clock=clock)
    yield Both(ledger, clock)
    if isinstance(ledger, SteppedLedger):
        ledger.check_sets("sales", "other", "third", "fourth")
    ledger.close()


@pytest.fixture
def nodes(both: Both) -> Nodes:
    return Nodes(both, both.clock)  # type: ignore[arg-type]  # it has the parts of a ledger that Nodes uses


@pytest.fixture
def back(both: Both) -> Callable[..., None]:
    return both.goes_back
