"""Troubles for a person: runs that are unknown, late or stuck, and jobs without a success in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.ledger_calls import grant_of
from support.memory import MemoryLedger
from support.small_cluster import Lone, job

from coordd.core.jobs.job import Job, Schedule
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.open_answer import Current, OpenAnswer
from coordd.core.ledger.requests import NOTHING_SETTLED, Claim, Register
from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Gate, Registration, Renew
from coordd.core.ledger.words import GRANTED, OK, SUCCESS, AttemptNumber, Policy, Token
from coordd.core.ready import Now
from coordd.core.runs.pursued import BUDGET, Pursuit
from coordd.core.wire.events import Action, JobLate, flatten
from coordd.errors import UnavailableError
from coordd.services.control import doctor
from coordd.services.views import troubles as views
from coordd.services.views.troubles import (
    LATE_RUN_S,
    NOT_ALL,
    ROWS_MAX,
    SEARCH_S,
    Found,
    Looked,
    Successes,
    Terms,
    Trouble,
    Troubles,
    read,
)

WALL = 1_700_000_000.0
TERMS = Terms(renew_interval_s=5.0, ledger_timeout_s=2.0, kill_grace_s=10.0)


def row(state: str, run: str = "j#1", **changes: Any) -> Row:
    made = Row.__new__(Row)
    empty: dict[type, Any] = {str: "", int: 0, float: 0.0}
    for column, kind in Row.__annotations__.items():
        setattr(made, column, empty.get(kind))
    made.run, made.job, made.state, made.policy = run, run.partition("#")[0], state, Policy().pack()
    made.not_before, made.node, made.token, made.attempt = WALL, "edge-1.7", Token(5), AttemptNumber(state == "retry")
    for column, value in changes.items():
        setattr(made, column, value)
    return made


class Looks:
    """A node that looks again and again."""

    def __init__(self, *jobs: Job) -> None:
        self.troubles = Troubles(None, None)  # type: ignore[arg-type]  # nothing is asked
        self.jobs = {one.name: one for one in jobs}
        self.last: dict[str, tuple[float, float]] = {}
        self.pursuits: dict[str, Pursuit] = {}

    def at(self, seconds: float, *rows: Row) -> Found:
        now = Now(1000.0 + seconds, WALL + seconds)
        return self.troubles.judge(Looked([*rows], self.last, set(), False), self.jobs, self.pursuits, TERMS, now)


def test_an_unknown_run_is_told_with_its_reason() -> None:
    found = Looks().at(0.0, row("unknown", reason="its lease lapsed"))
    assert found.unknown == (Trouble("j#1", "j", "its lease lapsed"),)
    assert "1 run unknown (j)" in found.sentence()


@pytest.mark.parametrize("state", ["pending", "retry", "received"])
def test_a_run_that_is_due_and_not_started_is_late(state: str) -> None:
    looks = Looks()
    assert not looks.at(LATE_RUN_S - 1, row(state)).late
    (late,) = looks.at(LATE_RUN_S + 1, row(state)).late
    assert "due for 61 s, and not started" in late.text


def test_a_row_that_cannot_be_believed_is_passed_over() -> None:
    assert Looks().at(LATE_RUN_S + 1, row("pending", not_before="soon")) == Found()


def test_a_run_that_waits_its_turn_is_not_late() -> None:
    looks = Looks()
    pursuit = looks.pursuits["j#1"] = Pursuit(Action("j", "j#1"), NOTHING_SETTLED, Now(0.0, 0.0))
    pursuit.limited = True
    assert not looks.at(LATE_RUN_S + 1, row("pending")).late


@pytest.mark.parametrize(("slots", "late"), [("pool heavy", False), (BUDGET, True), ("", True)])
def test_a_run_in_the_line_of_a_pool_waits_its_turn(slots: str, late: bool) -> None:
    """Only the first of the line asks the ledger, which limits it; the others were late after a minute."""
    looks = Looks()
    pursuit = looks.pursuits["j#1"] = Pursuit(Action("j", "j#1"), NOTHING_SETTLED, Now(0.0, 0.0))
    pursuit.slots = slots
    assert bool(looks.at(LATE_RUN_S + 1, row("pending")).late) is late


def test_a_holder_that_does_not_renew_is_stuck_and_one_that_does_is_not() -> None:
    looks = Looks()
    for second in range(0, 60, 5):
        assert not looks.at(second, row("started", beat=second)).stuck
    assert not looks.at(70.0, row("started", beat=55)).stuck
    (stuck,) = looks.at(75.0, row("started", beat=55)).stuck
    assert "its holder edge-1.7 has not renewed its lease for 20 s" in stuck.text
    assert not looks.at(76.0, row("started", beat=56)).stuck


def test_a_cancellation_without_effect_is_told() -> None:
    looks = Looks()
    found = Found()
    for second in range(0, 40, 5):
        found = looks.at(second, row("started", beat=second, cancel=1))
    (stuck,) = found.stuck
    assert "its cancellation was requested at least 35 s ago, and it still runs on edge-1.7" in stuck.text


def test_a_job_is_late_without_a_success_in_time() -> None:
    looks = Looks(job("j", expect_within_s=100.0), job("k"))
    assert not looks.at(0.0).late_jobs
    assert not looks.at(100.0).late_jobs
    assert "it never succeeded" in looks.at(101.0).late_jobs["j"]  # counted from its first sight
    looks.last["j"] = (WALL + 50.0, 0.0)
    assert not looks.at(150.0).late_jobs
    assert "since its last success" in looks.at(151.0).late_jobs["j"]
    assert looks.at(151.0).sentence() == "no success in time: j"


def test_a_job_that_ran_before_this_node_saw_it_counts_from_its_oldest_run() -> None:
    looks = Looks(job("j", expect_within_s=100.0))
    looks.last["j"] = (0.0, WALL - 200.0)
    assert looks.at(0.0).late_jobs


def test_a_job_that_nothing_may_launch_is_not_late() -> None:
    """It is held, or its schedule has not begun: then the time counts from there."""
    held = job("held", expect_within_s=100.0, enabled=False)
    begins = job("begins", expect_within_s=100.0, schedule=Schedule("every", every_s=60.0, start=WALL + 500.0))
    also = job("also", expect_within_s=100.0, schedule=begins.schedule)
    looks = Looks(held, begins, also)
    looks.last["also"] = (WALL - 300.0, 0.0)
    assert not looks.at(0.0).late_jobs
    assert not looks.at(499.0).late_jobs
    assert not looks.at(600.0).late_jobs
    found = looks.at(601.0).late_jobs
    assert set(found) == {"begins", "also"}
    assert all(text.endswith("it is 101 s since its start") for text in found.values())
    looks.jobs["held"] = job("held", expect_within_s=100.0)
    assert "held" not in looks.at(700.0).late_jobs
    assert "since it was first seen" in looks.at(801.0).late_jobs["held"]


def test_no_success_is_expected_after_the_end_of_a_schedule() -> None:
    ends = Schedule("every", every_s=60.0, end=WALL + 150.0)
    triggers = (Trigger("http", "http"),)
    looks = Looks(job("j", expect_within_s=100.0, schedule=ends))
    looks.jobs["t"] = job("t", expect_within_s=100.0, schedule=ends, triggers=triggers)
    looks.last["j"] = looks.last["t"] = (WALL, 0.0)
    assert set(looks.at(101.0).late_jobs) == {"j", "t"}, "before its end"
    looks.last["j"] = looks.last["t"] = (WALL + 60.0, 0.0)
    assert set(looks.at(500.0).late_jobs) == {"t"}, "its triggers start it"
    looks = Looks(job("once", expect_within_s=100.0, schedule=Schedule("at", at=WALL + 200.0)))
    assert not looks.at(0.0).late_jobs
    assert not looks.at(300.0).late_jobs
    assert looks.at(301.0).late_jobs
    looks.last["once"] = (WALL + 302.0, 0.0)
    assert not looks.at(500.0).late_jobs


def test_doctor_fails_for_what_blocks_a_job() -> None:
    assert [(one["check"], one["state"]) for one in doctor.trouble_checks(Found())] == [("runs", "ok")]
    many = tuple(Trouble(f"j#{number}", "j", "why") for number in range(8))
    checks = doctor.trouble_checks(Found(many, many[:1], many[:1], {"k": "too long ago"}))
    assert [(one["check"], one["state"]) for one in checks] == [
        ("runs unknown", "fail"),
        ("runs stuck", "warn"),
        ("runs late", "warn"),
        ("job k is late", "fail"),
    ]
    assert checks[0]["text"].endswith("and 3 more")


def a_ledger(*runs: str, every_s: float) -> tuple[MemoryLedger, list[float]]:
    """A ledger with these runs, one after the other, and its clock."""
    at = [WALL]
    ledger = MemoryLedger(clock=lambda: LedgerTime(at[0], 500.0 + at[0] - WALL))
    for run in runs:
        of = Registration(run, "j", "d1", Policy(), at[0], scheduled=False)
        assert ledger.ask(Register(of=of)).word == OK
        at[0] += every_s
    return ledger, at


def test_a_late_run_does_not_hide_behind_newer_ones() -> None:
    """The newest 200 of each state were looked at; the troubled ones are the oldest."""
    ledger, at = a_ledger(*[f"j#{number}" for number in range(ROWS_MAX + 50)], every_s=0.1)
    at[0] = WALL + LATE_RUN_S + 0.15
    looked = read(ledger, [], Successes(), 0.0)
    looks = Looks()
    found = looks.troubles.judge(looked, {}, {}, TERMS, Now(0.0, at[0]))
    assert [late.run for late in found.late] == ["j#0", "j#1"]


def test_a_run_that_has_not_renewed_its_lease_does_not_hide_behind_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"j#{number}" for number in range(4)]
    ledger, _ = a_ledger(*names, every_s=1.0)
    for number, name in enumerate(names):
        claim = Claim(
            of=Registration(name, "j", "d1", Policy(overlap="allow"), WALL, scheduled=False),
            attempt=AttemptNumber(0), nonce=f"n{number}", node="a.1", lease_s=60.0,
        )  # fmt: skip
        answer = ledger.ask(claim)
        assert answer.word == GRANTED
        ledger.ask(Gate(grant=grant_of(name, 0, answer.token, f"n{number}")))
        ledger.ask(Renew(grant=grant_of(name, 0, answer.token, f"n{number}"), lease_s=60.0, launched=True))
    assert {row.state for row in ledger.runs()} == {"started"}
    monkeypatch.setattr(views, "OPEN_MAX", 2)
    monkeypatch.setattr("coordd.core.ledger.requests.OPEN_PAGE", 2)
    looked = read(ledger, [], Successes(), 0.0)
    assert {"j#0", "j#1"} <= {row.run for row in looked.rows}
    assert looked.cut


def test_a_look_that_did_not_see_all_open_runs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, at = a_ledger("j#0", "j#1", "j#2", every_s=1.0)
    whole = read(ledger, [], Successes(), 0.0)
    assert ([row.run for row in whole.rows], whole.cut) == (["j#0", "j#1", "j#2"], False)
    monkeypatch.setattr(views, "ROWS_MAX", 2)
    assert not read(ledger, [], Successes(), 0.0).cut, "a burst: those that are not read are newer, and not late yet"
    at[0] = WALL + LATE_RUN_S + 2.0
    cut = read(ledger, [], Successes(), 0.0)
    assert ([row.run for row in cut.rows], cut.cut) == (["j#0", "j#1"], True)
    found = Looks().troubles.judge(cut, {}, {}, TERMS, Now(0.0, WALL))
    assert found.sentence() == NOT_ALL
    assert [(one["check"], one["state"], one["text"]) for one in doctor.trouble_checks(found)] == [
        ("runs", "warn", NOT_ALL)
    ]


def test_runs_that_wait_their_turn_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, _ = a_ledger("j#0", "j#1", "j#2", every_s=1.0)
    monkeypatch.setattr(views, "ROWS_MAX", 1)
    looked = read(ledger, [], Successes(), 0.0, {"j#0", "j#1"}.__contains__)
    assert ([row.run for row in looked.rows], looked.cut) == (["j#2"], False)


class HangingLedger:
    """A ledger service whose questions are answered too late."""

    error = ""
    asked = 0

    async def query(self, _call: object) -> None:
        self.asked += 1
        await trio.sleep(0.2)
        raise UnavailableError("no answer in time")


def test_a_ledger_that_hangs_is_waited_for_once() -> None:
    ledger = HangingLedger()
    node = Lone(job("j")).ready().node
    troubles = Troubles(SimpleNamespace(node=node, now=lambda: Now(0.0, WALL)), ledger)  # type: ignore[arg-type]  # all that is asked of them

    async def many() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(troubles.look)

    trio.run(many)
    assert ledger.asked == 1
    assert troubles.found == Found()


def test_a_job_that_never_succeeded_counts_from_the_activation_that_the_ledger_keeps() -> None:
    """A restart of the daemon does not restart the count."""
    answer = OpenAnswer([], {}, WALL, current={"j": Current(sequence=1, digest="d", counts_from=WALL - 500.0)})
    ledger = SimpleNamespace(runs=lambda **_wanted: [], ask=lambda _request: answer, succeeded=lambda _jobs: {})
    looks = Looks(job("j", expect_within_s=400.0))
    looks.last = read(ledger, ["j"], Successes(), 0.0).last
    assert "500 s since" in looks.at(0.0).late_jobs["j"]


def test_the_rows_of_a_job_are_searched_seldom_and_the_success_of_an_older_version_is_found_all_the_same() -> None:
    """A thousand jobs would cost the ledger a thousand reads with each look."""
    kept, rows, searched = {"new": WALL}, {"new": WALL + 50.0, "old": WALL - 9.0}, []

    def runs(job: str, **_wanted: Any) -> list[Any]:
        searched.append(job)
        return [row(SUCCESS, ended_at=rows[job])] if job in rows else []

    ledger: Any = SimpleNamespace(runs=runs, succeeded=lambda jobs: {job: kept[job] for job in jobs if job in kept})
    successes = Successes()
    jobs = ["new", "old", "none"]
    assert successes.last(ledger, jobs, 0.0) == {"new": WALL, "old": WALL - 9.0}
    assert searched == ["old", "none"]
    for now in (0.1, 0.2, 0.3):
        assert successes.last(ledger, jobs, now) == {"new": WALL, "old": WALL - 9.0}
    assert searched == ["old", "none"]
    for second in range(int(SEARCH_S) + 1):
        found = successes.last(ledger, jobs, float(second))
    assert found == {"new": WALL + 50.0, "old": WALL - 9.0}
    assert sorted(searched) == ["new", "none", "none", "old", "old"]


class Telling(Looks):
    """A node that also tells which jobs have become late."""

    def __init__(self, *jobs: Job) -> None:
        super().__init__(*jobs)
        self.told: list[JobLate] = []
        self.records: list[dict[str, Any]] = []
        node = SimpleNamespace(stamp=lambda: 7)
        self.troubles._driver = SimpleNamespace(node=node, now=lambda: Now(0.0, WALL), tell=self.told.append)  # type: ignore[assignment]  # all that is asked of it

    def late_at(self, seconds: float) -> None:
        before = self.troubles.found.late_jobs
        self.troubles.found = self.at(seconds)
        self.troubles._tell_late(before)


def test_a_lateness_is_told_once() -> None:
    looks = Telling(job("j", expect_within_s=100.0), job("k", expect_within_s=100.0))
    looks.last["j"] = (WALL, 0.0)
    for seconds in (99.0, 101.0, 102.0, 130.0):
        looks.late_at(seconds)
    first = looks.told[0]
    assert (first.job, first.since, first.clock) == ("j", WALL, 7)
    assert "101 s since its last success" in first.reason
    looks.last["j"] = (WALL + 140.0, 0.0)
    for seconds in (141.0, 239.0, 241.0, 300.0):
        looks.late_at(seconds)

    assert [one.job for one in looks.told] == ["j", "k", "j"]
    assert [(one.job, one.since) for one in looks.told if one.job == "j"] == [("j", WALL), ("j", WALL + 140.0)]


def test_a_restart_does_not_tell_the_same_lateness_again() -> None:
    before, after = (Telling(job("j", expect_within_s=100.0)) for _ in range(2))
    for looks in (before, after):
        looks.last["j"] = (WALL, 0.0)
    before.late_at(150.0)
    head = {"hostname": "edge-1", "pid": 7, "incarnation": "1", "seq": 3, "utcoffset": 0}
    for record in ({"type": "job-late", "job": 5}, {"type": "task-sent"}, flatten(before.told[0], **head)):  # type: ignore[arg-type]  # its head
        after.troubles.recall(record)

    after.late_at(160.0)
    assert after.told == []

    after.last["j"] = (WALL + 200.0, 0.0)
    after.late_at(210.0)
    after.late_at(310.0)
    assert [one.since for one in after.told] == [WALL + 200.0]


@pytest.mark.parametrize(("took_s", "asked"), [(0.01, 5), (0.05, 2), (1.0, 1)])
def test_a_long_look_answers_several_questions(monkeypatch: pytest.MonkeyPatch, took_s: float, asked: int) -> None:
    """With thousands of open runs a look takes 0.1 s, and people ask again and again."""
    present, looks = 1000.0, 0

    async def query(_: Any) -> Looked:
        nonlocal present, looks
        present, looks = present + took_s, looks + 1
        return Looked([], {}, set(), cut=False)

    node = SimpleNamespace(
        jobs={}, settings=Lone().node.ctx.settings, pursuits=SimpleNamespace(pursuits={}), skew_s=lambda _: 0.0
    )
    driver: Any = SimpleNamespace(node=node, now=lambda: Now(present, WALL))
    monkeypatch.setattr(views, "boottime", lambda: present)
    troubles = Troubles(driver, SimpleNamespace(query=query, error=""))  # type: ignore[arg-type]  # all that is asked

    async def asks() -> None:
        nonlocal present
        for _ in range(5):
            await troubles.look()
            present += 1.0

    trio.run(asks)
    assert looks == asked
