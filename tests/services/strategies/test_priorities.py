"""The strategy of priorities in the daemon: what it is told, and what becomes of one that fails, lies or hangs."""

from __future__ import annotations

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
from coordd.services.strategies import brought as module
from coordd.services.strategies.brought import Brought
from coordd.services.strategies.priorities import Priorities, past_of
from services.strategies.conftest import Bring

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

    async def look() -> None:
        async with trio.open_nursery() as nursery:
            brought = Brought()
            await nursery.start(brought.run)
            driver: Any = site  # it has all that Priorities uses
            priorities = Priorities(driver, driver, brought)
            for _ in range(times):
                while not await priorities.look():
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

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


def test_a_strategy_of_a_package_orders_the_jobs(bring: Bring) -> None:
    bring("def mine(past): return len(past.job)")
    site = Site("mine", ROWS)
    assert looked(site) == []
    assert site.scores == {"quick": 5.0, "long": 4.0, "rare": 4.0, "fresh": 5.0}


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("loops(past)", "no answer within 4 s"),
        ("raise ValueError('no idea')", "failed: ValueError: no idea"),
        ("sys.exit()", "it called exit(None)"),
        ("os._exit(1)", "its process has ended"),
        ("return 'high'", "expected a number"),
        ("return True", "expected a number"),
        ("return math.nan", "expected a number"),
    ],
)
def test_a_strategy_that_fails_is_named_once_and_nothing_changes(
    bring: Bring, monkeypatch: pytest.MonkeyPatch, does: str, problem: str
) -> None:
    if "no answer" in problem:
        monkeypatch.setattr(module, "ASKED_S", 4.0)
    bring(f"def mine(past):\n    if past.job == 'rare':\n        {does}\n    return 1.0")
    site = Site("mine", ROWS)
    said = looked(site, times=2)
    assert len(said) == 1
    assert (said[0]["strategy"], said[0]["of"]) == ("mine", "priority")
    assert problem in said[0]["problem"]
    assert site.scores == {}


def test_what_it_said_holds_on_while_the_ledger_is_away() -> None:
    site = Site("quick_first", ROWS)
    driver: Any = site  # it has all that Priorities uses
    priorities = Priorities(driver, driver, Brought())
    trio.run(priorities.look)
    site.away, site.scores = True, {"kept": 1.0}
    trio.run(priorities.look)
    assert site.scores == {"kept": 1.0}
    site.node.settings.priority_by = ""
    trio.run(priorities.look)
    assert site.scores == {}
