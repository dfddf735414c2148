"""`run.list`: how far back it searched, where it did not look at all runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from coordd.services.control import disclosure, methods
from coordd.services.control.callers import OPERATOR, VIEWER, Caller
from coordd.services.control.methods import Methods
from services.control.test_why_answers import row

DUE = 1_795_392_000.0  # 2026-11-23
ROWS = [row("success", run=f"sales#{number}", node="a.1", created_at=DUE - number) for number in range(30)]


def listed(role: int, **params: Any) -> list[dict[str, Any]]:
    async def query(call: Any) -> Any:
        return call(SimpleNamespace(runs=lambda *, job, state, limit: ROWS[:limit]))

    desk = object.__new__(Methods)
    ledger: Any = SimpleNamespace(query=query)
    desk._ledger = ledger
    return trio.run(desk.run_list, params, Caller(1, frozenset(), role, 1, "ann"))


@pytest.mark.parametrize(
    ("role", "params", "runs", "searched"),
    [
        (OPERATOR, {"node": "b"}, 0, {"searched": 20, "back_to": "2026-11-22T23:59:41Z"}),
        (VIEWER, {"node": "b"}, 0, {"searched": 5, "back_to": "2026-11-22T23:59:56Z"}),
        (VIEWER, {"limit": 8}, 5, {"searched": 5, "back_to": "2026-11-22T23:59:56Z"}),
        (OPERATOR, {"since": DUE - 3.0}, 4, {"searched": 20, "back_to": "2026-11-22T23:59:41Z"}),
        (OPERATOR, {"node": "a", "limit": 3}, 3, None),  # as many as were asked for
        (VIEWER, {"node": "a", "limit": 5}, 5, None),
        (OPERATOR, {"limit": 8}, 8, None),
        (OPERATOR, {"limit": 50}, 20, None),
    ],
)
def test_a_list_says_how_far_back_it_searched(
    role: int, params: dict[str, Any], runs: int, searched: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "LIST_MAX", 20)
    monkeypatch.setattr(methods, "VIEWER_LIST_MAX", 5)
    found = disclosure.shown("run.list", listed(role, searched=True, **params))
    assert [one["id"] for one in found if "id" in one] == [f"sales#{number}" for number in range(runs)]
    assert found[runs:] == ([searched] if searched else [])
    assert listed(role, **params) == [one for one in listed(role, searched=True, **params) if "id" in one]


def test_a_list_of_all_runs_was_searched_to_its_end() -> None:
    assert listed(OPERATOR, node="b", searched=True) == []
    assert len(listed(OPERATOR, searched=True)) == 30
