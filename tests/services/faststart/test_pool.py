"""When servers of Spark Connect are prepared: for one run each, a few at a time, and ended if nobody takes them."""

from __future__ import annotations

import pytest
import trio

from coordd.core.jobs.job import Job, Limits, Schedule, SparkSubmit
from coordd.errors import UnavailableError
from coordd.services.faststart.pool import AHEAD_S, KEPT_S, PAUSE_S, Pool, can_be_prepared

HOUR = 3600.0


class Faked:
    """A server without a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = self.closed = self.given = self.gone = False

    def ended(self) -> bool:
        return self.gone or (self.closed and not self.given)

    def give(self) -> dict[str, object]:
        self.given = True
        return {"connect": {"address": self.name}, "born_ticks": 5}

    def close(self) -> None:
        self.closed = True


def job(called: str = "j", **fields: object) -> Job:
    launch = SparkSubmit("/a.py", args=("{date}",), connect="pool", **fields)  # type: ignore[arg-type]  # as in a job file
    return Job(name=called, digest="d", launch=launch, schedule=Schedule("every", every_s=HOUR))


class Site:
    """A pool over jobs in memory."""

    def __init__(self, *jobs: Job, most: int = 1) -> None:
        self.jobs = {each.name: each for each in jobs}
        self.made: list[Faked] = []
        self.refuses = ""
        self.stopped = False
        self.pool = Pool(lambda: self.jobs, self.prepare, lambda: most)
        self.pool.stopped = lambda: self.stopped

    def prepare(self, of: Job) -> Faked:
        if self.refuses:
            raise UnavailableError(self.refuses)
        self.made.append(Faked(of.name))
        return self.made[-1]


def test_a_server_is_prepared_ahead_and_taken_once() -> None:
    site = Site(job())
    site.pool.look(HOUR - AHEAD_S - 1)
    assert site.made == []
    for now in (HOUR - AHEAD_S, HOUR - 30, HOUR - 5):
        site.pool.look(now)
    [server] = site.made
    assert site.pool.checks() == [
        {"check": "prepared server", "state": "ok", "text": "waiting: j (starting)", "advice": ""}
    ]
    assert site.pool.take(site.jobs["j"]) == {"connect": {"address": "j"}, "born_ticks": 5}
    assert site.pool.take(site.jobs["j"]) == {}, "never shared between runs"
    site.pool.look(HOUR - 4)
    assert site.made == [server], "not a second one for the same fire time"
    site.pool.look(2 * HOUR - 30)
    assert len(site.made) == 2
    site.pool.close()
    assert (server.closed, site.made[1].closed) == (False, True), "the one that was taken belongs to its attempt"
    assert site.pool.counts == {"prepared": 2, "taken": 1, "unused": 1}


def test_a_server_that_nobody_takes_is_ended() -> None:
    site = Site(job())
    site.pool.look(HOUR - 10)
    site.pool.look(HOUR + KEPT_S)
    assert not site.made[0].closed
    site.pool.look(HOUR + KEPT_S + 1)
    assert site.made[0].closed
    assert site.pool.take(site.jobs["j"]) == {}


@pytest.mark.parametrize("change", ["another definition", "removed", "drained", "suspended"])
def test_a_server_that_is_not_wanted_any_more_is_ended(change: str) -> None:
    site = Site(job())
    site.pool.look(HOUR - 10)
    old = site.jobs["j"]
    if change == "removed":
        site.jobs = {}
    elif change == "drained":
        site.stopped = True
    elif change == "suspended":
        site.pool.held = lambda name: name == "j"
    else:
        site.jobs = {"j": Job(name="j", digest="new", launch=old.launch, schedule=old.schedule)}
        assert site.pool.take(site.jobs["j"]) == {}, "it was started for another definition"
    site.pool.look(HOUR - 9)
    assert site.made[0].closed


def test_a_suspended_job_takes_no_place() -> None:
    site = Site(job("a"), job("b"))
    site.pool.held = lambda name: name == "a"
    site.pool.look(HOUR - 10)
    assert [server.name for server in site.made] == ["b"]


def test_at_most_so_many_wait_and_the_next_run_is_first() -> None:
    later = Job(name="a", digest="d", launch=job().launch, schedule=Schedule("every", every_s=HOUR, offset_s=20.0))
    site = Site(later, job("b"), job("c"), most=2)
    site.pool.look(HOUR - 10)
    assert [server.name for server in site.made] == ["b", "c"]
    site = Site(job(), most=0)
    site.pool.look(HOUR - 10)
    assert site.made == []


def test_what_cannot_be_prepared_is_told_and_left_alone_for_a_while() -> None:
    site = Site(job())
    site.refuses = "no Java"
    site.pool.look(HOUR - 60)
    [said] = site.pool.checks()
    assert said["state"] == "warn"
    assert said["text"] == "j: no Java; its runs start one themselves"
    site.refuses = ""
    site.pool.look(HOUR - 59)
    assert site.made == []
    site.pool.look(2 * HOUR - 30)
    assert len(site.made) == 1
    assert site.pool.checks()[0]["state"] == "ok"


def test_what_was_told_of_a_job_goes_with_it() -> None:
    site = Site(job())
    site.refuses = "no Java"
    site.pool.look(HOUR - 60)
    site.jobs = {}
    site.pool.look(HOUR - 55)
    assert site.pool.checks() == []


def test_a_server_that_ends_by_itself_is_told() -> None:
    site = Site(job())
    site.pool.look(HOUR - 40)
    site.made[0].gone = True
    assert site.pool.take(site.jobs["j"]) == {}
    site.pool.look(HOUR - 39)
    assert "its server ended before its run" in site.pool.checks()[0]["text"]
    site.pool.look(HOUR - 38)
    assert len(site.made) == 1
    site.pool.look(HOUR - 39 + PAUSE_S)
    assert len(site.made) == 1, "the next fire time is far away"


def test_a_daemon_that_stops_ends_what_nobody_has_taken() -> None:
    site = Site(job())
    site.pool.look(HOUR - 10)

    async def stopped() -> None:
        with trio.move_on_after(0.05):
            await site.pool.run()

    trio.run(stopped)
    assert site.made[0].closed


@pytest.mark.parametrize(
    "fields",
    [{"conf": {"spark.a": "{date}"}}, {"env": {"A": "{run}"}}, {"jars": ("/{date}.jar",)}, {"name": "{job} {attempt}"}],
)
def test_what_is_not_known_before_the_run_cannot_be_prepared(fields: dict[str, object]) -> None:
    assert can_be_prepared(job())
    assert not can_be_prepared(job(**fields))  # type: ignore[arg-type]  # as in a job file


def test_a_program_of_another_user_or_in_a_unit_has_no_prepared_server() -> None:
    launch = job().launch
    assert not can_be_prepared(Job(name="j", digest="d", launch=launch, run_as="etl"))
    assert not can_be_prepared(Job(name="j", digest="d", launch=launch, limits=Limits(memory=1 << 30)))
    assert not can_be_prepared(Job(name="j", digest="d", launch=SparkSubmit("/a.py")))
