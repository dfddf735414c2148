"""A job changes while runs of it are open, and while a claim is under way."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import grant_of
from support.small_cluster import Lone, job, open_run

from coordd.core.context import PAST_MAX
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Register
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import (
    DIFFERS,
    EXISTS,
    LOST,
    MISSED,
    OK,
    PENDING,
    RECOVERING,
    RETRY,
    RHO,
    SETTLED,
    UNAVAILABLE,
    AttemptNumber,
)
from coordd.core.runs.pursued import BACKOFF_MAX_S
from coordd.core.wire.events import Action, Task
from core.runs.claims import LEASE_S, RUN, claiming, claims, granted, pursued, sweeps

# ---- jobs that change while runs are open


def test_a_job_that_is_gone_takes_its_pursuits_with_it_and_the_sweep_brings_them_back() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.ctx.impaired = "the disk is full"
    lone.sweep(open_run(RUN))

    lone.do(lone.node.set_jobs, {})
    lone.wait(5.0)
    assert lone.node.pursuits.pursuits == {}
    lone.node.ctx.impaired = ""
    while lone.questions("open"):
        lone.answer("open", Answer(UNAVAILABLE))
    lone.do(lone.node.set_jobs, {"sales": job()})
    lone.sweep(open_run(RUN))
    lone.wait(2.0)

    assert len(claims(lone)) == 1


def test_a_scheduled_run_without_a_row_is_opened_anew_under_the_new_definition() -> None:
    lone = Lone(job(every_s=60.0), peers=("b.1",)).ready()
    lone.node.ctx.impaired = "the disk is full"
    lone.wait(60.0)
    (run,) = lone.node.pursuits.pursuits
    lone.sweep()

    lone.do(lone.node.set_jobs, {"sales": job(every_s=60.0, digest="d2")})
    lone.sweep()

    assert pursued(lone, run).action.digest == "d2"


def test_a_scheduled_run_that_nobody_takes_is_recorded_in_the_end_so_that_its_absence_is_explained() -> None:
    lone = Lone(job(every_s=3600.0, tags=("gpu",), start_within_s=100.0), peers=("b.1",)).ready()
    lone.wait(3600.0)
    lone.sweep()
    (run,) = lone.node.pursuits.pursuits
    sweeps(lone, 95.0)
    assert lone.questions("register") == []

    sweeps(lone, 10.0)
    (of,) = [register.of for register in lone.waiting(Register)]
    assert (of.run, of.scheduled, of.digest) == (run, True, "d1")
    assert claims(lone, run) == []  # this node may not launch it

    lone.answer("register", Answer(OK, state=PENDING))
    sweeps(lone, 10.0, open_run(run))
    assert lone.questions("register") == []


@pytest.mark.parametrize("state", [SETTLED, MISSED])
def test_a_run_that_was_to_be_recorded_and_is_over_ends_its_pursuit(state: str) -> None:
    lone = Lone(job(every_s=3600.0, tags=("gpu",), start_within_s=1.0), peers=("b.1",)).ready()
    lone.wait(3600.0)
    lone.sweep()
    sweeps(lone, 10.0)

    lone.answer("register", Answer(EXISTS, state=state))

    assert lone.node.pursuits.pursuits == {}


# ---- a reload while a claim is under way


def redefined(lone: Lone, **changes: Any) -> None:
    """Change the job's file and read it again."""
    lone.do(lone.node.set_jobs, {"sales": job(digest="d2", **changes)})


def test_a_grant_whose_job_was_removed_meanwhile_is_given_back_and_not_launched() -> None:
    lone = claiming()
    (claim,) = claims(lone)
    lone.do(lone.node.set_jobs, {})

    lone.answer("claim", granted())

    assert lone.launches == []
    assert lone.node.pursuits.running == {}
    why = "given back: the definition was changed or removed while it was claimed"
    assert lone.requests(Report) == [Report(grant=grant_of(RUN, 0, 7, claim.nonce), state=RETRY, reason=why)]


@pytest.mark.parametrize("word", [UNAVAILABLE, RECOVERING])
def test_a_claim_of_a_fire_time_is_not_repeated_if_its_job_was_removed_meanwhile(word: str) -> None:
    """The job may come back later, and then counts from its return."""
    lone = Lone(job(every_s=60.0)).ready()
    lone.wait(60.0)
    (run,) = lone.node.pursuits.pursuits
    lone.do(lone.node.set_jobs, {})

    lone.answer("claim", Answer(word))
    lone.wait(BACKOFF_MAX_S)

    assert lone.node.pursuits.pursuits == {}
    assert len(claims(lone, run)) == 1


@pytest.mark.parametrize("claimed_again", [False, True])
def test_a_grant_of_a_run_that_was_begun_again_under_the_new_definition_is_given_back(claimed_again: bool) -> None:
    lone = Lone(job(every_s=60.0)).ready()
    lone.wait(60.0)
    (run,) = lone.node.pursuits.pursuits
    (claim,) = claims(lone, run)
    first = pursued(lone, run)

    redefined(lone, schedule=lone.node.ctx.jobs["sales"].schedule)
    if not claimed_again:
        lone.node.ctx.impaired = "the disk is full"
    lone.sweep()
    assert pursued(lone, run) is not first
    assert len(claims(lone, run)) == (2 if claimed_again else 1)
    lone.answer("claim", granted())  # the answer to the first claim

    assert lone.launches == []
    assert lone.node.pursuits.running == {}
    why = "given back: the definition was changed or removed while it was claimed"
    assert lone.requests(Report) == [Report(grant=grant_of(run, 0, 7, claim.nonce), state=RETRY, reason=why)]
    assert len(lone.node.pursuits.open_claims) == (1 if claimed_again else 0)

    if claimed_again:
        again = claims(lone, run)[1]
        assert (again.of.digest, again.nonce != claim.nonce) == ("d2", True)
        lone.answer("claim", granted(token=8))
        assert [(launch.digest, launch.nonce) for launch in lone.launches] == [("d2", again.nonce)]


def test_a_claim_that_was_not_answered_is_repeated_with_the_definition_it_was_made_with() -> None:
    lone = claiming()
    lone.answer("claim", Answer(UNAVAILABLE))
    redefined(lone)
    lone.wait(BACKOFF_MAX_S)

    first, again = claims(lone)
    assert (again.of.digest, again.nonce) == (first.of.digest, first.nonce) == ("d1", first.nonce)
    lone.answer("claim", granted())
    assert [launch.digest for launch in lone.launches] == ["d1"]


def test_a_claim_whose_definition_is_not_that_of_the_row_is_made_again_with_the_present_one() -> None:
    lone = claiming()
    pursued(lone).action = Action("sales", RUN)  # as from a peer that does not name the definition
    redefined(lone)
    lone.answer("claim", Answer(DIFFERS))
    lone.wait(BACKOFF_MAX_S + 1.0)

    first, again = claims(lone)
    assert again.of.digest == "d2"
    assert again.nonce != first.nonce


# ---- earlier definitions


def test_a_run_of_an_earlier_definition_is_taken_over_with_that_one() -> None:
    """The file is changed on all nodes while the run is active. Then the run's node dies."""
    lone = Lone(job(lease_s=20.0), peers=("b.1",)).ready()
    held = open_run(RUN, "started", token=5, nonce="n5", node="b.1", lease=20.0)
    lone.sweep(held)
    redefined(lone, lease_s=20.0, on_lost="hold")
    lone.sweep(held)

    sweeps(lone, 30.0, held)
    claim = claims(lone)[-1]
    lone.answer("claim", Answer(LOST, attempt=AttemptNumber(1)))
    lone.wait(2.0)
    again = claims(lone)[-1]
    lone.answer("claim", granted(attempt=1))

    assert [(one.of.digest, one.of.policy.on_lost, one.attempt) for one in (claim, again)] == [
        ("d1", "relaunch", 0),
        ("d1", "relaunch", 1),
    ]
    assert [(launch.digest, launch.policy) for launch in lone.launches] == [("d1", job().policy().pack())]


def test_a_trigger_that_waits_is_launched_by_the_definition_that_it_was_asked_for_with() -> None:
    lone = Lone(job()).ready()
    redefined(lone)

    lone.sweep(open_run(RUN))
    lone.wait(2.0)

    assert [claim.of.digest for claim in claims(lone)] == ["d1"]


def test_only_the_last_earlier_definitions_are_kept_and_none_of_a_job_that_was_removed() -> None:
    lone = Lone(job()).ready()
    node = lone.node
    for number in range(2, PAST_MAX + 4):
        lone.do(node.set_jobs, {"sales": job(digest=f"d{number}")})

    assert node.ctx.definition("sales", "d1") is None
    kept = [past.digest for past in node.ctx.past["sales"]]
    assert kept == [f"d{number}" for number in range(3, PAST_MAX + 3)]

    lone.do(node.set_jobs, {})
    lone.do(node.set_jobs, {"sales": job()})
    assert node.ctx.past == {}


def test_a_definition_that_comes_back_is_the_present_one_and_not_an_earlier_one() -> None:
    lone = Lone(job()).ready()
    for digest in ("d2", "d1", "d2"):
        lone.do(lone.node.set_jobs, {"sales": job(digest=digest)})

    assert [past.digest for past in lone.node.ctx.past["sales"]] == ["d1"]


def test_a_grant_is_not_believed_to_last_longer_than_the_lease_that_was_asked_for() -> None:
    lone = claiming()
    lone.answer("claim", granted(left_s=LEASE_S + 60.0))

    assert lone.launches[0].deadline == lone.now.mono + LEASE_S * (1 - 2 * RHO)


def test_a_launch_and_its_events_name_the_definition_the_policy_and_the_lease_that_were_granted() -> None:
    lone = claiming(job(on_lost="hold", lease_s=90.0))
    lone.answer("claim", granted(left_s=90.0))
    (launch,) = lone.launches
    lone.do(lone.node.runner_started, launch)
    redefined(lone)
    lone.do(lone.node.runner_ended, launch, "success", 0, "", "", 1.0)

    policy = job(on_lost="hold").policy().pack()
    assert (launch.digest, launch.policy, launch.lease_s) == ("d1", policy, 90.0)
    events = [event for event in lone.journal if isinstance(event, Task) and event.token]
    assert [(e.digest, e.policy, e.lease) for e in events] == [("d1", policy, 90.0)] * 3
