"""One cleaning removes everything older than the retention, however much it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.memory import MemoryLedger
from support.small_cluster import asked_for

from coordd import daemon as module
from coordd.config.sections import HistoryConfig
from coordd.core.ledger.requests import Register, Revoke
from coordd.core.ledger.rows import LedgerTime


def test_more_rows_than_one_bite_are_forgotten_in_one_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRUNE_AT_ONCE", 10)
    times = [1000.0]
    ledger = MemoryLedger(clock=lambda: LedgerTime(times[0], 500.0))
    for number in range(35):
        ledger.ask(Register(of=asked_for(f"sales#{number}")))
        if number:
            ledger.ask(Revoke(run=f"sales#{number}", by="root"))
    history = HistoryConfig()
    idle: Any = SimpleNamespace(
        config=SimpleNamespace(history=history),
        _journal=SimpleNamespace(prune=lambda _keep_s, _now: []),
        builder=SimpleNamespace(prune_logs=lambda _before: None),
        connections=SimpleNamespace(open_ledger=lambda: SimpleNamespace(prune=ledger.prune, close=lambda: None)),
    )

    times[0] += history.keep_s
    module.Daemon._clean(idle)
    assert len(ledger._store.runs) == 35, "by the ledger's time, and not by this node's, they are to be kept"

    times[0] += 1.0
    module.Daemon._clean(idle)

    assert list(ledger._store.runs) == ["sales#0"]
