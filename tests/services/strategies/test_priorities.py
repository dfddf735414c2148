"""The strategy of priorities in the daemon: what it is told, and what becomes of one that fails, lies or hangs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import FAILURE, SUCCESS, Policy
from coordd.core.node.room import PRIORITIES, Past
from coordd.errors import UnavailableError
from coordd.services.strategies import priorities as module, rooms
from coordd.services.strategies.priorities import Priorities, past_of

WALL = 1_800_000_000.0


class Site:
    """A driver, a node and a ledger. ``rows``: job -> its runs."""

    def __init__(self, by: str, rows: Mapping[str, list[Row]]) -> None:
        self.rows = dict(rows)
        self.scores: dict[str, float] = {}
        self.away = False
        self.node = SimpleNamespace(settings=SimpleNamespace(priority_by=by), jobs=dict.fromkeys(rows), pursuits=self)

    def now(self) -> Any:
        return SimpleNamespace(wall=WALL)

    def scored(self, scores: dict[str, float]) -> None:
        self.scores = dict(scores)

    async def query(self, call: Callable[[Any], Any]) -> Any:
        if self.away:
            raise UnavailableError("no answer")
        return call(SimpleNamespace(runs=lambda job, limit: self.rows[job][:limit]))


def ran(job: str, number: int, lasted_s: float, state: str = SUCCESS, every_s: float = 60.0) -> Row:
    """One run of a job; number 0 is the newest."""
    due = WALL - number * every_s - 10.0
    made = Registration(f"{job}#{number}", job, "d1", Policy(), due, scheduled=False)
    row = Life()._new_row(made, LedgerTime(due, 500.0))
    row.state, row.started_at, row.ended_at = state, due, due + lasted_s
    return row


ROWS = {
    "quick": [ran("quick", number, 2.0) for number in range(3)],
    "long": [ran("long", number, 300.0, every_s=30.0) for number in range(3)],
    "rare": [ran("rare", 0, 20.0, every_s=86400.0), ran("rare", 1, 20.0, every_s=86400.0)],
    "fresh": [],
}


def looked(site: Site, times: int = 1) -> list[Any]:
    """The log of some looks."""
    priorities = Priorities(site, site)  # type: ignore[arg-type]  # it has all that Priorities uses

    async def look() -> None:
        for _ in range(times):
            await priorities.look()

    with capture_logs() as logs:
        trio.run(look)
    return [entry for entry in logs if entry["event"] == "strategy.absurd"]


def order(site: Site) -> list[str]:
    return sorted(site.scores, key=lambda job: -site.scores[job])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("quick_first", ["fresh", "quick", "rare", "long"]),
        ("long_first", ["fresh", "long", "rare", "quick"]),
        ("rare_first", ["fresh", "rare", "quick", "long"]),
    ],
)
def test_the_built_in_strategies(by: str, expected: list[str]) -> None:
    site = Site(by, ROWS)
    assert looked(site) == []
    assert order(site) == expected, "a job that is not known yet comes first"


def test_without_a_strategy_no_job_is_read() -> None:
    site = Site("", ROWS)
    site.away = True
    assert looked(site) == []
    assert site.scores == {}


def test_the_past_of_a_job() -> None:
    rows = [ran("j", 0, 5.0), ran("j", 1, 900.0, FAILURE), ran("j", 2, 7.0), ran("j", 3, 50.0)]
    assert past_of("j", rows, WALL) == Past("j", 4, 7.0, 190.0 / 4)
    assert past_of("j", [ran("j", 0, 1.0, FAILURE)], WALL).seconds is None
    assert past_of("j", [], WALL) == Past("j", 0, None, None)
    assert set(PRIORITIES) == {"quick_first", "long_first", "rare_first"}


def test_a_strategy_of_a_package_orders_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "installed", lambda name: SimpleNamespace(load=lambda: lambda past: len(past.job)))
    site = Site("mine", ROWS)
    assert looked(site) == []
    assert site.scores == {"quick": 5.0, "long": 4.0, "rare": 4.0, "fresh": 5.0}


def hang(_: Past) -> float:
    time.sleep(1.5)
    return 1.0


def fail(_: Past) -> float:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (hang, "no answer within 1 s"),
        (fail, "failed: ValueError: no idea"),
        (lambda past: "high", "expected a number"),
        (lambda past: True, "expected a number"),
        (lambda past: math.nan, "expected a number"),
    ],
)
def test_a_strategy_that_fails_is_named_once_and_nothing_changes(
    strategy: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "installed", lambda name: SimpleNamespace(load=lambda: strategy))
    site = Site("mine", ROWS)
    said = looked(site, times=2)
    assert len(said) == 1
    assert (said[0]["strategy"], said[0]["of"]) == ("mine", "priority")
    assert problem in said[0]["problem"]
    assert site.scores == {}


def test_one_that_hangs_keeps_one_thread_and_none_of_the_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again when its call has ended."""
    held, calls = threading.Event(), []

    def strategy(past: Past) -> float:
        calls.append(past.job)
        held.wait(30.0)
        return 5.0

    monkeypatch.setattr(module, "ASKED_S", 0.05)
    monkeypatch.setattr(rooms, "installed", lambda name: SimpleNamespace(load=lambda: strategy))
    site = Site("mine", {"quick": ROWS["quick"]})
    priorities = Priorities(site, site)  # type: ignore[arg-type]  # it has all that Priorities uses

    async def look() -> None:
        try:
            for _ in range(4):
                await priorities.look()
            assert calls == ["quick"]
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        finally:
            held.set()
        while site.scores != {"quick": 5.0}:
            await trio.sleep(0.01)
            await priorities.look()

    with capture_logs() as logs:
        trio.run(look)
    assert len([entry for entry in logs if entry["event"] == "strategy.absurd"]) == 1


def test_what_it_said_holds_on_while_the_ledger_is_away() -> None:
    site = Site("quick_first", ROWS)
    priorities = Priorities(site, site)  # type: ignore[arg-type]  # it has all that Priorities uses
    trio.run(priorities.look)
    site.away, site.scores = True, {"kept": 1.0}
    trio.run(priorities.look)
    assert site.scores == {"kept": 1.0}
    site.node.settings.priority_by = ""
    trio.run(priorities.look)
    assert site.scores == {}
