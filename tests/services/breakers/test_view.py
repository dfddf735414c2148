"""What people see of a job's breaker, and how loudly its trips are logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordd.core.breaker import Breaker as Connection, Loud, Loudness
from coordd.core.jobs.job import Breaker, Command, Job
from coordd.core.ledger.breaker.text import CLOSED, HALF_OPEN, OPEN, State
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, Hold
from coordd.core.ready import Now
from coordd.services.breakers.service import JobBreakers, open_breakers
from coordd.services.breakers.view import JobBreaker, connection_view, job_view, of_jobs

WALL = 1_738_137_600.0  # 2025-01-29T08:00:00Z


def sales(**breaker: Any) -> Job:
    return Job(name="sales", digest="d", launch=Command(("/bin/true",)), breaker=Breaker(**breaker))


def state(word: str, trips: int = 1, **more: Any) -> State:
    kept = State()
    kept.state, kept.trips, kept.since, kept.retry_at = word, trips, WALL, WALL + 900
    kept.last, kept.failures = "sales#3", [(1, 1), (1, 2), (1, 3)]
    for name, value in more.items():
        setattr(kept, name, value)
    return kept


def seen(kept: State | None = None, isolated: Hold | None = None, job: Job | None = None) -> JobBreaker:
    holds = {} if kept is None else {OF_BREAKER + "sales": Hold(by="", note=kept.text())}
    holds |= {} if isolated is None else {OF_ISOLATED + "sales": isolated}
    return of_jobs({"sales": job or sales()}, holds)["sales"]


def test_a_closed_one_says_nothing() -> None:
    one = seen()
    assert (one.state, one.is_open, one.sentence()) == (CLOSED, False, "")
    assert job_view(one) == {
        "name": "job:sales", "kind": "job", "state": "closed", "failures": 0, "opened_at": None, "next_probe_at": None,
        "note": None, "opened": 0, "prevented": 0, "probe": None, "last_failed": None, "enforce": True,
        "isolated": None, "reason": None,
    }  # fmt: skip
    assert of_jobs({"other": Job(name="other", digest="d", launch=Command(("x",)))}, {}) == {}


def test_an_open_one_says_since_when_why_and_what_comes_next() -> None:
    one = seen(state(OPEN, 2, prevented=4))
    assert one.sentence() == (
        "The breaker of sales is open since 2025-01-29T08:00:00Z, for the 2. time in a row: the last run that failed "
        "is sales#3. The first run from 2025-01-29T08:15:00Z on tries whether it works again. `coordctl breaker reset "
        "job:sales` closes it."
    )
    view = job_view(one)
    assert (view["state"], view["failures"], view["prevented"]) == ("open", 3, 4)
    assert (view["opened_at"], view["next_probe_at"]) == ("2025-01-29T08:00:00Z", "2025-01-29T08:15:00Z")


def test_a_half_open_one_names_the_run_that_tries() -> None:
    one = seen(state(HALF_OPEN, probe="sales#4"))
    assert "half-open: sales#4 tries" in one.sentence()
    assert (job_view(one)["probe"], job_view(one)["next_probe_at"]) == ("sales#4", None)


def test_one_that_only_watches_says_so() -> None:
    assert "It only watches" in seen(state(OPEN), job=sales(enforce=False)).sentence()


def test_an_isolated_one_says_by_whom_and_until_when() -> None:
    one = seen(state(OPEN), Hold(by="ann", until=WALL + 60, at=WALL, uid=1001, note="the source is away"))
    assert one.sentence().startswith(
        "The breaker of sales is held open by ann until 2025-01-29T08:01:00Z (the source is away): none of its runs"
    )
    view = job_view(one)
    assert (view["state"], view["note"], view["isolated"]["by"]) == ("isolated", "the source is away", "ann")


def test_the_breaker_of_a_connection_has_the_same_fields() -> None:
    bus = Connection("bus")
    for _ in range(3):
        bus.failed(bus.allow(90.0), "gone", 90.0, 1.0)
    view = connection_view(bus, 90.25, WALL)
    assert (view["name"], view["kind"], view["state"], view["failures"]) == ("bus", "bus", "open", 3)
    assert (view["opened_at"], view["next_probe_at"]) == ("2025-01-29T07:59:59.750000Z", "2025-01-29T08:00:00.250000Z")


# ---- the log


class Watched:
    """The driver of a node, as far as breakers are concerned."""

    def __init__(self) -> None:
        self.mono = 0.0
        self.breakers: tuple[Connection, ...] = (Connection("bus"),)
        self.node = SimpleNamespace(jobs={"sales": sales()}, drains=SimpleNamespace(holds={}))

    def now(self) -> Now:
        return Now(self.mono, WALL + self.mono)

    def sweep(self, kept: State | None, isolated: Hold | None = None) -> None:
        holds = {} if kept is None else {OF_BREAKER + "sales": Hold(by="", note=kept.text())}
        self.node.drains.holds = holds | ({} if isolated is None else {OF_ISOLATED + "sales": isolated})


def logged(watch: JobBreakers) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        watch.look()
    return [(str(entry["event"]), str(entry["log_level"])) for entry in logs]


def test_each_change_is_logged_once_and_louder_after_repeated_trips() -> None:
    driver: Any = Watched()
    watch = JobBreakers(driver)
    assert logged(watch) == []
    driver.sweep(state(OPEN, 1))
    assert logged(watch) == [("breaker.opened", "warning")]
    assert logged(watch) == []
    assert open_breakers(driver) == ["job:sales"]
    driver.sweep(state(HALF_OPEN, 1, probe="sales#4"))
    assert logged(watch) == [("breaker.half_open", "info")]
    driver.sweep(state(OPEN, 2))
    assert logged(watch) == [("breaker.opened", "warning")]
    driver.sweep(state(OPEN, 3))
    assert logged(watch) == [("breaker.opened", "error")], "it opened again between two looks"
    driver.sweep(None)
    assert logged(watch) == [("breaker.closed", "info")]
    driver.sweep(state(OPEN, 1))
    assert logged(watch) == [("breaker.opened", "error")], "it is loud for a while"
    driver.sweep(None)
    watch.look()
    driver.mono = Loud().for_s
    driver.sweep(state(OPEN, 1))
    assert logged(watch) == [("breaker.opened", "warning")], "and falls again"
    driver.sweep(None, Hold(by="ann"))
    assert logged(watch) == [("breaker.isolated", "info")]


def test_a_job_says_when_its_trips_are_loud() -> None:
    driver: Any = Watched()
    watch = JobBreakers(driver)

    def trips(times: int, loud: Loud) -> list[str]:
        driver.node.jobs = {"sales": sales(loud=loud)}
        found = []
        for number in range(times):
            driver.sweep(state(OPEN, number + 1))
            found += [level for event, level in logged(watch) if event == "breaker.opened"]
        driver.sweep(None)
        watch.look()
        driver.mono += 10.0
        return found

    assert trips(5, Loud(after=4, within_s=1.0, for_s=2.0)) == [*["warning"] * 3, "error", "error"]
    assert trips(2, Loud(after=2, within_s=1.0, for_s=20.0)) == ["warning", "error"], "a reload counts at once"
    assert trips(1, Loud(after=2, within_s=1.0, for_s=20.0)) == ["error"]


@pytest.mark.parametrize("rule", [Loud(), Loud(after=2, within_s=7.0), Loud(after=5)])
def test_trips_within_some_minutes_are_loud(rule: Loud) -> None:
    for more_s, loud in ((0.0, True), (1.0, False)):
        loudness, apart_s = Loudness(rule), rule.within_s / (rule.after - 1) + more_s
        told = [loudness.tripped(number * apart_s) for number in range(rule.after)]
        assert told == [*[False] * (rule.after - 1), loud]
