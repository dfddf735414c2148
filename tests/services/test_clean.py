"""What retention does not keep is gone after one cleaning, however much it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from small_cluster import asked_for

from coordd import daemon as module
from coordd.adapters.memory import MemoryLedger
from coordd.config import HistoryConfig
from coordd.core.rows import LedgerTime


def test_more_rows_than_one_bite_are_forgotten_in_one_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRUNE_AT_ONCE", 10)
    ledger = MemoryLedger(clock=lambda: LedgerTime(1000.0, 500.0))
    for number in range(35):
        ledger.call("register", asked_for(f"sales#{number}"))
        if number:
            ledger.call("revoke", f"sales#{number}", "root")
    idle: Any = SimpleNamespace(
        config=SimpleNamespace(history=HistoryConfig()), _journal=SimpleNamespace(prune=lambda _keep_s, _now: []),
        builder=SimpleNamespace(prune_logs=lambda _before: None),
        connections=SimpleNamespace(open_ledger=lambda: ledger),
    )  # fmt: skip

    module.Daemon._clean(idle)

    assert list(ledger._store.runs) == ["sales#0"]
