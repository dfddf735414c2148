"""The comparison with Celery's State: a run whose events all name a later attempt has one attempt, not two."""

from __future__ import annotations

from typing import Any

import pytest

from history.oracle import celery_state
from history.oracle.comparing import Tally
from history.oracle.reference import run_rows

UUID = "11eb67ca-01fe-546b-920e-f04d9c922585"


def event(kind: str, clock: int, attempt: int) -> dict[str, Any]:
    head = {"hostname": "edge-0", "pid": 1, "incarnation": "1-aa", "seq": 1, "utcoffset": 0, "uuid": UUID}
    return {**head, "type": f"task-{kind}", "clock": clock, "timestamp": 1790398814.0 + clock, "attempt": attempt}


def compared(records: list[dict[str, Any]], **spoilt: str) -> Tally:
    rows = {uuid: {**row, **spoilt} for uuid, row in run_rows(records).items()}
    tally = Tally()
    celery_state.compare(records, rows, tally)
    return tally


@pytest.mark.parametrize(
    "told",
    [
        [("started", 19, 1), ("sent", 27, 1)],
        [("revoked", 1, 2), ("rejected", 10, 2)],
        [("started", 3, 0), ("sent", 9, 1), ("received", 10, 1)],
    ],
)
def test_an_attempt_begins_with_its_first_event(told: list[tuple[str, int, int]]) -> None:
    records = [event(*one) for one in told]
    assert compared(records).shown == []
    assert len(compared(records, state="success").shown) == 1
