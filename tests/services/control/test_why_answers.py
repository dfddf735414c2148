"""`why` for each thing that can become of a run: the whole sentence, and the timeline."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_cluster import Lone, job

from coordd.core.election import Election
from coordd.core.jobs.job import pinned
from coordd.core.ledger.breaker.text import PREVENTED_BY
from coordd.core.ledger.fires import HELD_BY_OTHERS, HELD_BY_SUSPENSION
from coordd.core.ledger.rows import AttemptRow, Hold, Row
from coordd.core.ledger.words import ABSENT, AttemptNumber, Policy
from coordd.core.wire.events import Candidacy
from coordd.services.views import timeline
from coordd.services.views.fires import Fire
from coordd.services.views.objects import Stop
from coordd.services.views.why import Obstacles, Surroundings, why_job, why_run
from coordd.services.waiting.absent import Absent

DUE = 1_800_000_000.0  # 2027-01-15T08:00:00Z
RUN = "sales@2027-01-15T08:00:00Z"
HOUR_S = 3600.0
WAITS = f"{RUN} waits to be launched (due 2027-01-15T08:00:00Z, given up 3600 s later)"
HOLD = Hold(by="ann", uid=1001, at=DUE - HOUR_S, until=DUE + HOUR_S, note="the table moves")
HELD_BY = "until 2027-01-15T09:00:00Z by ann, uid 1001, since 2027-01-15T07:00:00Z (the table moves)"


def row(state: str, **changes: Any) -> Row:
    made = Row.__new__(Row)
    empty: dict[type, Any] = {str: "", int: 0, float: 0.0}
    for column, kind in Row.__annotations__.items():
        setattr(made, column, empty.get(kind))
    told = {
        "run": RUN,
        "job": "sales",
        "digest": "d",
        "policy": Policy().pack(),
        "scheduled": 1,
        "args": "{}",
        "fire_at": DUE,
        "due": DUE,
        "not_before": DUE,
        "created_at": DUE - 1.0,
        "state": state,
        **changes,
    }
    for column, value in told.items():
        setattr(made, column, value)
    return made


def attempt(number: int, node: str, state: str, *, ended_at: float = 0.0, reason: str = "") -> AttemptRow:
    began = DUE + 100.0 * number
    values = (RUN, number, 7 + number, "n", node, state, began, began + 1.0, ended_at, None, "", reason)
    return AttemptRow(values)


def abstaining(**why: str) -> Election:
    election = Election(f"{RUN}/0", "spark", None, "edge-1.10", (), 0.0)
    for name, reason in why.items():
        full = f"{name.replace('_', '-')}.10"
        election.state(full, Candidacy(0, 1, full, reason))
    election.decide(0.0)
    return election


def said(found: Row | None, attempts: list[AttemptRow] | None = None, **more: Any) -> str:
    around, election = more.pop("around", Surroundings()), more.pop("election", None)
    return why_run(RUN, found, attempts or [], None, election, around, **more)


def test_it_ran() -> None:
    ran = row("success", node="edge-1.10", started_at=DUE + 1.0, ended_at=DUE + 61.5)
    assert said(ran) == f"{RUN} succeeded on edge-1 at 2027-01-15T08:01:01Z after 60.5 s."


def test_it_overlapped() -> None:
    found = row("rejected", reason="overlap: sales#1 is started on edge-1.10", ended_at=DUE)
    assert said(found, [attempt(0, "edge-1.10", "lost")]).startswith(
        f"{RUN} was not launched: overlap: sales#1 is started on edge-1"
    )


def test_its_job_is_suspended_by_whom_why_and_until_when() -> None:
    told = f"sales is suspended {HELD_BY}; `coordctl job resume sales` lets it run again."
    assert said(row("pending"), obstacles=Obstacles(stop=Stop(HOLD))) == f"{WAITS}. {told}"
    absent = Absent(True, DUE, True, DUE + HOUR_S, DUE - HOUR_S, now=DUE + 1.0)
    assert said(None, absent=absent, obstacles=Obstacles(stop=Stop(HOLD))).endswith(
        f"no node has claimed it yet. {told}"
    )
    known = Lone(job("sales")).ready().node
    of_job = why_job(job("sales"), Stop(HOLD), DUE, None, "", known)
    assert told in of_job
    assert "starts only if the suspension ends before that" in of_job


def test_all_jobs_are_suspended() -> None:
    found = said(row("retry", attempt=1), obstacles=Obstacles(stop=Stop(HOLD, common=True)))
    assert f"All jobs are suspended {HELD_BY}; `coordctl job resume --all` lets them run again." in found


def test_an_older_version_suspended_it() -> None:
    found = said(row("pending"), obstacles=Obstacles(stop=Stop(None)))
    assert found == f"{WAITS}. sales is suspended; `coordctl job resume sales` lets it run again."


def test_its_nodes_are_drained_by_whom_why_and_until_when() -> None:
    found = said(row("pending"), election=abstaining(edge_1="draining"), obstacles=Obstacles(drained={"edge-1": HOLD}))
    assert found == (
        f"{WAITS}. No node can take it: edge-1 (draining). edge-1 is drained {HELD_BY}, and takes no new runs; "
        "`coordctl node resume edge-1` ends that."
    )


def test_no_node_is_eligible() -> None:
    found = said(row("pending"), election=abstaining(edge_1="tags do not match", edge_2="no budget"))
    assert found == f"{WAITS}. At its election no node could take it: edge-1 (tags do not match); edge-2 (no budget)."
    found = said(row("pending"), election=abstaining(edge_1="tags do not match", edge_2="no journal"))
    assert found == f"{WAITS}. No node can take it: edge-1 (tags do not match); edge-2 (no journal)."


@pytest.mark.parametrize(("only_is", "more"), [("lost", "; edge-9 is lost."), ("", ".")])
def test_only_one_node_may_launch_it(only_is: str, more: str) -> None:
    found = said(row("pending", digest=pinned("d", "edge-9")), obstacles=Obstacles(only_is=only_is))
    assert found == f"{WAITS}. Only edge-9 may launch it, as `run trigger --node` asked{more}"


def test_it_was_missed() -> None:
    found = row("missed", reason="no node could launch it within 60 s of its time (75 s late)", ended_at=DUE + 75.0)
    assert said(found) == f"{RUN} was not launched: no node could launch it within 60 s of its time (75 s late)."


@pytest.mark.parametrize(("word", "misfire"), [("coalesced", "once"), ("skipped", "skip")])
def test_it_was_passed_over(word: str, misfire: str) -> None:
    absent = Absent(True, DUE, True, DUE + HOUR_S, DUE + 2 * HOUR_S, word, misfire, DUE + 3 * HOUR_S)
    assert said(None, absent=absent) == (
        f"The ledger has no run '{RUN}': it was due, and was {word}: nobody was there to launch it, and the job says "
        f"misfire = {misfire}."
    )


@pytest.mark.parametrize(
    ("decision", "reason", "into"),
    [
        ("coalesced", "misfire = once: sales@2027-01-15T11:00:00Z stands for it", "sales@2027-01-15T11:00:00Z"),
        ("skipped", "misfire = skip: no node launched it at its time", ""),
        ("skipped", "the job was edited, held or removed before a node launched it", ""),
        ("missed", "no node launched it within start_within of its time", ""),
        ("suspended", "the job was suspended until its start_within had passed", ""),
    ],
)
def test_the_ledger_has_decided_about_a_fire_time_without_a_row(decision: str, reason: str, into: str) -> None:
    fire = Fire(DUE, DUE, decision, reason, into)
    named = f" into {into}" if into else ""
    told = (
        f"The ledger has no run '{RUN}': it was a fire time of the job, due 2027-01-15T08:00:00Z, and was "
        f"{decision}{named}: {reason}."
    )
    absent = Absent(True, DUE, True, DUE + HOUR_S, now=DUE + 3 * HOUR_S, fire=fire)
    # Its schedule may have been changed since, and its job suspended: what is decided stays as it is.
    for about in (absent, absent._replace(is_fire_time=False, passed_over="coalesced", misfire="once")):
        assert said(None, absent=about, obstacles=Obstacles(stop=Stop(HOLD))) == told


def test_nothing_is_decided_or_recorded_about_it() -> None:
    fire = Fire(DUE, DUE, "", "not decided yet: it was due 1 s ago, and no node has claimed it")
    absent = Absent(True, DUE, True, DUE + HOUR_S, DUE - HOUR_S, now=DUE + 1.0, fire=fire)
    assert said(None, absent=absent).endswith("it was due, and no node has claimed it yet.")


def test_it_waited_for_another_run_or_for_its_job_until_it_was_too_late() -> None:
    late = "no node could launch it within 60 s of its time (75 s late)"
    for held_up in (HELD_BY_SUSPENSION, f"{HELD_BY_OTHERS}sales#1"):
        assert said(row("missed", reason=late + held_up)) == f"{RUN} was not launched: {late}{held_up}."


def test_it_lies_in_a_blackout() -> None:
    absent = Absent(True, DUE, False, DUE + HOUR_S, now=DUE + 10.0, blacked_out=True)
    assert said(None, absent=absent) == (
        f"The ledger has no run '{RUN}': its time lies in a blackout of the job, and nothing fires then; the next time "
        "is 2027-01-15T09:00:00Z."
    )


def test_it_was_revoked() -> None:
    found = row("revoked", reason="revoked by ann", ended_at=DUE)
    assert said(found) == f"{RUN} was revoked at 2027-01-15T08:00:00Z: revoked by ann."


def test_the_ledger_is_down() -> None:
    around = Surroundings(ledger_error="Connection refused")
    told = "Nothing new starts: the ledger does not answer (Connection refused)."
    assert said(None, around=around) == f"Nobody can launch {RUN} now. {told}"
    assert said(row("pending"), around=around) == f"{WAITS}. {told}"


def test_the_ledger_is_in_quarantine() -> None:
    found = said(row("pending"), around=Surroundings(recovering_s=42.0))
    assert found == (
        f"{WAITS}. The ledger went back or was replaced: nothing new launches for 42 s, while the nodes put back what "
        "it forgot."
    )


def test_it_was_lost_and_retried() -> None:
    why = "its lease lapsed; last held by edge-1.10"
    lost = attempt(0, "edge-1.10", "lost", ended_at=DUE + 90.0, reason=why)
    before = "Before that: attempt 0 on edge-1 was lost (its lease lapsed; last held by edge-1)."
    waits = row("retry", attempt=AttemptNumber(1), not_before=DUE + 95.0, reason=why)
    again = f"{RUN} is due again as attempt 1 at 2027-01-15T08:01:35Z"
    assert said(waits, [lost]) == f"{again}, because: its lease lapsed; last held by edge-1. {before}"
    won = row("success", attempt=1, node="edge-2.20", started_at=DUE + 101.0, ended_at=DUE + 111.0)
    assert said(won, [lost]) == f"{RUN} succeeded on edge-2 at 2027-01-15T08:01:51Z after 10.0 s. {before}"


def test_it_was_never_due() -> None:
    absent = Absent(True, DUE, False, DUE + HOUR_S, now=DUE + 10.0)
    assert said(None, absent=absent) == (
        f"The ledger has no run '{RUN}': it was never due: the job's schedule, as it is now, has no such time; the "
        "next one after it is 2027-01-15T09:00:00Z."
    )


# ---- the timeline


def steps(found: Row | None, attempts: list[AttemptRow], stop: Stop | None = None) -> list[tuple[Any, ...]]:
    told = timeline.shown(timeline.of_run(found, attempts, stop))
    assert all(set(step) == {"at", "node", "what", "detail"} for step in told)
    return [(step["at"][11:19], step["node"], step["what"], step["detail"]) for step in told]


def test_the_timeline_of_a_run_that_was_lost_and_retried() -> None:
    lost = attempt(0, "edge-1.10", "lost", ended_at=DUE + 90.0, reason="its lease lapsed")
    won = attempt(1, "edge-2.20", "success", ended_at=DUE + 111.0)
    found = row("success", attempt=AttemptNumber(1), node="edge-2.20", ended_at=DUE + 111.0)
    assert steps(found, [lost, won]) == [
        ("07:59:59", None, "registered", "by its schedule"),
        ("08:00:00", None, "due", None),
        ("08:00:00", "edge-1.10", "granted", "attempt 0"),
        ("08:00:01", "edge-1.10", "started", "attempt 0"),
        ("08:01:30", "edge-1.10", "lost", "its lease lapsed"),
        ("08:01:40", "edge-2.20", "granted", "attempt 1"),
        ("08:01:41", "edge-2.20", "started", "attempt 1"),
        ("08:01:51", "edge-2.20", "success", None),
    ]


def test_the_timeline_of_a_run_that_never_began() -> None:
    found = row("missed", by="ann", ended_at=DUE + 75.0, reason="too late")
    assert steps(found, [], Stop(HOLD)) == [
        ("07:59:59", None, "registered", "by ann"),
        ("08:00:00", None, "due", None),
        ("08:01:15", None, "missed", "too late"),
    ]
    waits = row("retry", attempt=AttemptNumber(1), not_before=DUE + 30.0)
    assert steps(waits, [], Stop(HOLD))[-2:] == [
        ("08:00:30", None, "due again", "attempt 1"),
        ("09:00:00", None, "suspension ends", None),
    ]
    assert steps(None, [], Stop(HOLD, common=True))[0] == (
        "07:00:00",
        None,
        "all jobs suspended",
        "by ann: the table moves",
    )


def test_the_timeline_of_a_run_whose_parents_are_absent() -> None:
    """It began with "registered by its parents were awaited"."""
    told = [one.detail for one in timeline.of_run(row("missed", by=ABSENT + "pa, pb (failure)"), [])]
    assert "without its parents: pa, pb (failure)" in told


def test_a_bad_row_has_no_timeline() -> None:
    assert steps(row("nonsense"), []) == []
    assert steps(None, []) == []


def test_a_run_that_the_breaker_of_its_job_prevented() -> None:
    prevented = row("rejected", reason=PREVENTED_BY)
    launched = f"{RUN} was not launched: the breaker of its job was open then."
    assert said(prevented) == f"{launched} It is closed now."
    still = "The breaker of sales is open since 2027-01-15T08:00:00Z."
    assert said(prevented, obstacles=Obstacles(breaker=still)) == f"{launched} {still}"
    assert said(prevented, obstacles=Obstacles(breaker_told=True)) == launched, "the sentence about its job says it"


def test_a_group_is_told_by_its_members() -> None:
    """It said first that the ledger has no such run."""
    stop = Obstacles(stop=Stop(HOLD))
    waits = Absent(True, DUE, group=f"{RUN} is a group of 2 runs: 2 pending.")
    assert said(None, absent=waits) == waits.group
    resume = "`coordctl job resume sales` lets it run again."
    assert said(None, absent=waits, obstacles=stop) == f"{waits.group} sales is suspended {HELD_BY}; {resume}"
    assert said(None, absent=waits._replace(group_ended=True), obstacles=stop) == waits.group


def test_a_run_of_a_backfill_that_never_ran_is_not_due_again() -> None:
    mark = "backfill ab12 by root"
    first = row("retry", attempt=1, by=mark, reason=f"opened by {mark}")
    assert said(first).startswith(f"{RUN} waits to be launched for the first time (attempt 1, due ")
    assert said(row("retry", attempt=1, by=mark, token=7)).startswith(f"{RUN} is due again as attempt 1 at ")
