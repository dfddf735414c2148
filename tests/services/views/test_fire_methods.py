"""`job.fires` and the counts of `job.show` on a long history: the newest fire times, and if there are earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import trio
from support.ledger_calls import EPOCH, FakeClock, Nodes
from support.memory import MemoryLedger
from support.small_cluster import job

from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import After, Job, Schedule, iso, scheduled_run
from coordd.core.ledger.requests import Register
from coordd.core.ledger.rows import LedgerTime
from coordd.services.control import disclosure
from coordd.services.control.callers import OPERATOR, VIEWER, Caller
from coordd.services.control.lookups import Lookups
from coordd.services.views import fire_methods
from coordd.services.views.fire_methods import SPAN_LEAST_S, FireMethods

MINUTE_S = 60.0
T = TypeVar("T")
CHILD = job(after=After(jobs=("load",)))


class Desk:
    """The methods, on a ledger in memory with a run for each minute of the past ``minutes``."""

    def __init__(self, of: Job, minutes: int) -> None:
        clock = FakeClock()
        self.ledger = MemoryLedger(clock)
        self.of = of
        nodes = Nodes(self.ledger, clock)
        members = of.expand.count if of.expand else 0
        for minute in range(minutes):
            at = EPOCH + minute * MINUTE_S
            run = scheduled_run(of.name, at)
            for one in [f"{run}~{number}" for number in range(members)] or [run]:
                nodes.ask(Register(of=nodes.of(one, overlap="allow")))
            clock.step(MINUTE_S)
        self.now = clock.wall
        self.methods = object.__new__(FireMethods)
        node = SimpleNamespace(jobs={of.name: of}, skew_s=lambda _: 0.0, past=lambda _: [], identity_from=0.0)
        now = lambda: LedgerTime(self.now, 0.0, "", 0.0)  # noqa: E731 - a clock
        said: dict[str, Any] = {
            "_driver": SimpleNamespace(node=node, now=now, passed_over=lambda *_: ""),
            "_ledger": SimpleNamespace(query=self._query),
            "_lookups": Lookups(),
        }
        for name, value in said.items():
            setattr(self.methods, name, value)

    async def _query(self, call: Callable[[MemoryLedger], T]) -> T:
        return call(self.ledger)

    def told(self, role: int = OPERATOR, /, **params: Any) -> list[dict[str, Any]]:
        caller = Caller(0, frozenset(), role, 1, "ann")
        return trio.run(self.methods.fires_of, self.of, params, caller)

    def counts(self) -> dict[str, Any]:
        async def ask() -> dict[str, Any] | None:
            return await self.methods.fire_counts(self.of, looks=False)

        found = trio.run(ask)
        assert found is not None
        return found


def minutes(told: list[dict[str, Any]]) -> list[float]:
    """Their fire times, in minutes since the first run."""
    return [(fire_at(one["fire_time"]) - EPOCH) / MINUTE_S for one in told]


def fire_at(text: str) -> float:
    return fire_methods._instant({"at": text}, "at", 0.0)


def last(count: int, of: int) -> list[float]:
    return [float(minute) for minute in range(of - count, of)]


def test_the_last_fire_times_of_a_job_without_a_schedule_are_the_newest() -> None:
    """They were the oldest, where the history had more than 1,100 of them."""
    desk = Desk(CHILD, 1200)
    told = desk.told()
    assert minutes(told) == last(50, of=1200)
    assert minutes(desk.told(to=EPOCH + 99 * MINUTE_S)) == last(50, of=100)
    assert minutes(desk.told(**{"from": EPOCH + 1190 * MINUTE_S})) == last(10, of=1200)


def test_the_counts_of_a_job_are_those_of_its_newest_fire_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fire_methods, "FIRES_MAX", 100)
    counts = Desk(CHILD, 1500).counts()
    assert counts["from"] == iso(EPOCH + 1400 * MINUTE_S)
    assert sum(count for word, count in counts.items() if word != "from") == 100


@pytest.mark.parametrize("of", [CHILD, job(every_s=MINUTE_S)], ids=["child", "scheduled"])
def test_an_answer_that_is_cut_says_so_and_the_rest_can_be_asked_for(of: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fire_methods, "FIRES_MAX", 7)
    desk = Desk(of, 20)
    begin, pages = {"from": EPOCH}, []
    pages.append(desk.told(**begin))
    while pages[-1][0].get("earlier"):
        pages.append(desk.told(**begin, to=fire_at(pages[-1][0]["fire_time"]) - 0.001))
    whole = [one for page in reversed(pages) for one in page]
    assert minutes([one for one in whole if one["run"]]) == last(20, of=20)
    assert [len(page) for page in pages] == [7, 7, len(whole) - 14]
    assert [one for page in pages for one in page[1:] if "earlier" in one] == []


def test_an_answer_that_is_just_full_is_whole() -> None:
    desk = Desk(CHILD, 60)
    assert "earlier" in desk.told()[0]
    assert "earlier" not in desk.told(to=EPOCH + 49 * MINUTE_S)[0]
    assert len(desk.told(to=EPOCH + 49 * MINUTE_S)) == 50
    assert desk.told(to=EPOCH - 1.0) == []


def test_viewers_are_told_fewer_and_that_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fire_methods, "VIEWER_LIST_MAX", 4)
    desk = Desk(CHILD, 10)
    told = desk.told(VIEWER)
    assert (minutes(told), told[0]["earlier"]) == (last(4, of=10), True)
    assert disclosure.shown("job.fires", told)[0]["earlier"] is True


def test_of_a_large_group_fewer_are_told_and_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fire_methods, "MEMBERS_READ_MAX", 30)
    monkeypatch.setattr(fire_methods, "REVOKED_MAX", 10)
    desk = Desk(job(after=After(jobs=("load",)), expand=Expand(key="n", values=("a", "b", "c"))), 60)
    told = desk.told()
    assert (minutes(told), told[0]["earlier"]) == (last(10, of=60), True)
    assert {one["state"] for one in told} == {"pending"}


def test_runs_from_before_a_job_had_its_schedule_are_told_too() -> None:
    desk = Desk(CHILD, 10)
    desk.of = job(schedule=Schedule(kind="every", every_s=MINUTE_S, start=EPOCH + 6 * MINUTE_S))
    assert minutes(desk.told())[:10] == last(10, of=10)


@pytest.mark.parametrize("gap_s", [0.0, 1e-4, 5.0, 3600.0])
def test_the_newest_rows_are_found_however_far_they_are_from_each_other(
    gap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst in the past, then one row each ``gap_s``."""
    monkeypatch.setattr(fire_methods, "REVOKED_MAX", 3)
    dues = [EPOCH + number / 1000.0 for number in range(200)]
    dues += [EPOCH + 86_400.0 + number * gap_s for number in range(40)]

    def fired(_job: str, after: float, upto: float, limit: int) -> list[float]:
        return [due for due in dues if after < due <= upto][:limit]

    ledger: Any = SimpleNamespace(fired=fired)
    for upto in (dues[-1], dues[-1] + 1.0, dues[-1] + 1e7):
        found: list[Any] = list(fire_methods._newest(ledger, "j", 0.0, upto, 10))
        assert found[-10:] == dues[-10:]
        assert 10 <= len(found) <= 23 or gap_s < SPAN_LEAST_S
