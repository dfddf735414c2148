"""The strategy of priorities in the daemon: what it is told, and what becomes of one that fails, lies or hangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from plugins.written import hosting, written
from structlog.testing import capture_logs

from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import FAILURE, SUCCESS, Policy
from coordd.core.node.room import PRIORITIES, Past
from coordd.errors import UnavailableError
from coordd.plugins import calling
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
            while not await priorities.look():
                pass
        await priorities._hosted.keep(())

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


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Install a strategy under the name "mine": what a function of ``past`` returns."""

    def bring(said: str) -> None:
        folder = tmp_path_factory.mktemp("packages") / "site"
        text = f"import time\ndef mine(past):\n    return {said}\n"
        monkeypatch.setattr(calling, "HOST", hosting(written(folder, "coordd.strategies", text, "mine")))

    return bring


def test_a_strategy_of_a_package_orders_the_jobs(bring: Any) -> None:
    bring("len(past.job) + (past.seconds or 0)")
    site = Site("mine", ROWS)
    assert looked(site) == []
    assert site.scores == {"quick": 7.0, "long": 304.0, "rare": 24.0, "fresh": 5.0}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("time.sleep(60)", "no answer within 1 s; it was ended, and is asked again later"),
        ("{}[3]", "failed: KeyError: 3"),
        ("'high'", "it said 'high'; expected a number"),
        ("True", "expected a number"),
        ("float('nan')", "expected a number"),
        ("bytearray(2**31)", "failed: MemoryError"),
    ],
)
def test_a_strategy_that_fails_is_named_once_and_nothing_changes(said: str, problem: str, bring: Any) -> None:
    bring(said)
    site = Site("mine", ROWS)
    logged = looked(site, times=2)
    assert len(logged) == 1
    assert (logged[0]["strategy"], logged[0]["of"]) == ("mine", "priority")
    assert problem in logged[0]["problem"]
    assert site.scores == {}


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
