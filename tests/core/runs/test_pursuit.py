"""A run that this node is after: when it claims, what makes it wait, and what alone makes it stop."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.small_cluster import EPOCH, SETTINGS, Cluster, Lone, asked_for, job, open_answer, open_run

from coordd.core.context import STAGGER_MIN_S
from coordd.core.jobs.job import Job, Retry, scheduled_run
from coordd.core.ledger.answers import Answer, OpenAnswer, OpenRun
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import (
    DIFFERS,
    EARLY,
    EXISTS,
    FINISHED,
    GRANTED,
    HELD,
    LIMITED,
    LOST,
    MISSED,
    OK,
    PENDING,
    RECEIVED,
    RECOVERING,
    RETRY,
    REVOKED,
    RHO,
    SETTLED,
    STARTED,
    SUCCESS,
    UNAVAILABLE,
    UNKNOWN,
)
from coordd.core.runs import endings, pursuit as pursuing
from coordd.core.runs.pursued import BACKOFF_MAX_S, BACKOFF_MIN_S, Pursuit
from coordd.core.wire.events import (
    Action,
    Candidacy,
    Task,
    TaskFailed,
    TaskReceived,
    TaskRetried,
    TaskSucceeded,
    WorkerElect,
    WorkerHelloReply,
)

RUN = "sales#1"
RENEW_S = SETTINGS.renew_interval_s
LEASE_S = 60.0


def pursued(lone: Lone, run: str = RUN) -> Pursuit:
    return lone.node.pursuits.pursuits[run]


def claims(lone: Lone, run: str = RUN) -> list[Claim]:
    """Every claim so far."""
    return [request.args[0] for request in lone.asked if request.op == "claim" and request.args[0].of.run == run]


def out(lone: Lone, run: str = RUN) -> bool:
    """A claim waits for its answer."""
    return any(request.args[0].of.run == run for request in lone.questions("claim"))


def claiming(*jobs: Job) -> Lone:
    """A node that is alone and has just asked for a triggered run."""
    lone = Lone(*(jobs or (job(),))).ready()
    lone.do(lone.node.trigger, asked_for(RUN, lone.node.ctx.jobs["sales"]), 1)
    lone.answer("register", Answer(OK, state=PENDING))
    return lone


def granted(token: int = 7, left_s: float = LEASE_S, **fields: object) -> Answer:
    return Answer(GRANTED, token=token, left_s=left_s, args="{}", **fields)  # type: ignore[arg-type]


def started(
    beat: int = 1, *, left_s: float = LEASE_S, attempt: int = 0, token: int = 7, state: str = STARTED
) -> OpenRun:
    """The row as the sweep shows it while b holds it."""
    return open_run(RUN, state, attempt=attempt, token=token, nonce="theirs", node="b.1", beat=beat, left_s=left_s)


def sweeps(lone: Lone, seconds: float, *rows: OpenRun) -> None:
    """So long every sweep shows these rows."""
    end = lone.now.mono + seconds
    while lone.now.mono + RENEW_S <= end + 1e-6:
        lone.wait(RENEW_S)
        lone.sweep(*rows)


def hears_an_elect(lone: Lone, run: str = RUN, attempt: int = 0, sender: str = "b.1", clock: int = 0) -> None:
    action = Action("sales", run, attempt, digest="d1")
    view = ("a.1", sender)
    said = WorkerElect(
        id=f"{run}/{attempt}", topic="command", candidacy=Candidacy(0, clock, sender), view=view, action=action
    )
    lone.hear(sender, said)


def of_b(kind: type[Task], *, attempt: int = 0, token: int = 7, run: str = RUN, **fields: object) -> Task:
    return kind(uuid="u", name="sales", run=run, attempt=attempt, token=token, nonce="theirs", node="b.1", **fields)  # type: ignore[arg-type]


# ---- its turn


def test_the_first_of_the_succession_claims_at_once() -> None:
    assert len(claims(claiming())) == 1


def test_the_second_claims_one_stagger_later() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(lone, clock=0)
    assert pursued(lone).rank == 1

    lone.wait(0.9 * lone.node.ctx.stagger_s)
    assert claims(lone) == []
    lone.wait(0.2 * lone.node.ctx.stagger_s)

    assert len(claims(lone)) == 1


def test_the_second_waits_for_the_whole_burst_that_the_first_has_to_claim() -> None:
    lone = Lone(job(overlap="allow"), peers=("b.1",)).ready()
    for number in range(20):
        hears_an_elect(lone, f"sales#{number}", clock=0)
    begun = lone.now.mono

    turns = [pursuit.at - begun - lone.node.ctx.stagger_s for pursuit in lone.node.pursuits.pursuits.values()]

    assert turns == pytest.approx([number * pursuing.CLAIM_COST_S for number in range(20)], abs=1e-9)


def test_a_stagger_is_two_round_trips_of_the_ledger_as_measured() -> None:
    lone = Lone(job()).ready()
    assert lone.node.ctx.stagger_s == STAGGER_MIN_S

    for _ in range(100):
        lone.wait(RENEW_S)
        sent_at = lone.now.mono
        lone.pass_time(0.2)
        lone.answer("open", open_answer(), sent_at=sent_at)

    assert lone.node.ctx.stagger_s == pytest.approx(0.4, rel=0.05)


def test_who_abstained_claims_too_once_the_others_have_had_their_turn() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.ctx.impaired = "the disk is full"
    hears_an_elect(lone)
    lone.node.ctx.impaired = ""

    lone.wait(SETTINGS.election_timeout_s)
    assert claims(lone) == []
    lone.wait(2 * lone.node.ctx.stagger_s)

    assert len(claims(lone)) == 1


def test_who_cannot_take_it_looks_again_and_again() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.ctx.impaired = "the disk is full"
    hears_an_elect(lone)

    lone.wait(60.0)
    assert claims(lone) == []
    assert pursued(lone).why == "this node cannot take it: the disk is full"
    lone.node.ctx.impaired = ""
    lone.wait(SETTINGS.election_timeout_s)

    assert len(claims(lone)) == 1


# ---- what the ledger says


@pytest.mark.parametrize("answer", [Answer(FINISHED, state=SUCCESS), Answer(FINISHED, state=MISSED), Answer(REVOKED)])
def test_only_the_ledger_ends_a_pursuit(answer: Answer) -> None:
    lone = claiming()

    lone.answer("claim", answer)

    assert RUN not in lone.node.pursuits.pursuits
    assert not lone.notices  # the log of the node that decided it tells


def test_an_unanswered_claim_is_repeated_with_the_same_nonce_and_growing_pauses() -> None:
    lone = claiming()
    asked_at = []
    for _ in range(7):
        asked_at.append(lone.now.mono)
        lone.answer("claim", Answer(UNAVAILABLE))
        while not out(lone):
            lone.wait(0.25)

    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert len({claim.nonce for claim in claims(lone)}) == 1  # the grant may be there already, under this nonce


@pytest.mark.parametrize(
    ("answer", "after_s"),
    [
        (Answer(EARLY, in_s=4.0), 4.0),
        (Answer(RECOVERING, left_s=4.0), 4.0),
        (Answer(RECOVERING, left_s=30.0), BACKOFF_MAX_S),  # a person may end it sooner
        (Answer(LIMITED, by="suspended", in_s=5.0), 5.0),
        (Answer(LIMITED, by="overlap with sales#0", in_s=0.1), BACKOFF_MIN_S),
        (Answer(DIFFERS), BACKOFF_MAX_S),
    ],
)
def test_a_claim_that_is_put_off_is_made_again(answer: Answer, after_s: float) -> None:
    lone = claiming()
    lone.answer("claim", answer)

    lone.wait(after_s - 0.01)
    assert not out(lone)
    lone.wait(0.02)

    assert out(lone)


def test_lost_means_the_next_attempt_when_it_is_due() -> None:
    lone = claiming()

    lone.answer("claim", Answer(LOST, attempt=1, in_s=30.0))
    lone.wait(28.9)
    assert not out(lone)
    lone.wait(0.2)  # elected a second ahead

    assert out(lone)
    assert [claim.attempt for claim in claims(lone)] == [0, 1]
    assert claims(lone)[0].nonce != claims(lone)[1].nonce


# ---- granted


def test_the_lease_is_counted_from_when_the_claim_left() -> None:
    lone = claiming()
    sent_at = lone.now.mono
    lone.pass_time(1.5)

    lone.answer("claim", granted(left_s=60.0), sent_at=sent_at)

    (launch,) = lone.launches
    assert launch.deadline == pytest.approx(sent_at + 60.0 * (1 - 2 * RHO))


def test_a_grant_that_comes_too_late_to_start_is_left_to_lapse() -> None:
    lone = claiming()
    sent_at = lone.now.mono
    lone.pass_time(LEASE_S * (1 - 2 * RHO) - SETTINGS.kill_grace_s)

    lone.answer("claim", granted(), sent_at=sent_at)

    assert (lone.launches, lone.node.pursuits.running) == ([], {})
    assert pursued(lone).phase == "held"


def test_a_token_that_others_drew_meanwhile_does_not_spoil_our_grant() -> None:
    lone = claiming()
    lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=9))  # granted after ours, heard of before

    lone.answer("claim", granted(token=8))

    assert [launch.token for launch in lone.launches] == [8]
    assert lone.node.ctx.tokens["sales"] == 9


def test_a_token_below_one_that_was_seen_before_we_asked_is_not_used() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=9))
    hears_an_elect(lone)
    lone.wait(1.0)

    lone.answer("claim", granted(token=8))

    assert lone.launches == []
    assert [notice.event for notice in lone.notices] == ["token.went_back"]


@pytest.mark.parametrize("ledger_known", [False, True])
@pytest.mark.parametrize("word", ["hello-reply", "task"])
def test_a_token_of_the_future_that_a_peer_claims_refuses_no_grant(word: str, ledger_known: bool) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    present = int(EPOCH * 1e6)
    for token in (present + 10_000_000, 2**53 - 1):
        if ledger_known:
            lone.node.ctx.compare_clocks(EPOCH, lone.now.mono, lone.now)
        if word == "task":
            lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=token))
        else:
            lone.hear("b.1", WorkerHelloReply(to="a.1", jobs_digest=lone.node.ctx.jobs_digest, tokens={"sales": token}))
    assert lone.node.ctx.tokens == {"sales": present + 10_000_000}, "a ledger a little ahead is believed"
    hears_an_elect(lone)
    lone.wait(1.0)

    lone.answer("claim", granted(token=present + 20_000_000))

    assert [launch.token for launch in lone.launches] == [present + 20_000_000]
    assert [notice.event for notice in lone.notices] == ["token.not_believed"]


def test_a_repeated_grant_keeps_the_floor_of_its_first_question() -> None:
    lone = claiming()
    lone.answer("claim", Answer(UNAVAILABLE))  # granted, and the reply was lost
    lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=9))
    lone.wait(BACKOFF_MIN_S)

    lone.answer("claim", granted(token=8))

    assert [launch.token for launch in lone.launches] == [8]


# ---- held: watch, and come back


def test_held_is_claimed_again_when_a_whole_lease_was_watched() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, until_token=(7, 1)))

    sweeps(lone, LEASE_S, started(left_s=0.0))
    assert not out(lone)
    sweeps(lone, RENEW_S, started(left_s=-5.0))

    token, beat, seconds = claims(lone)[-1].watched  # type: ignore[misc]
    assert (token, beat) == (7, 1)
    assert seconds >= LEASE_S * (1 + 2 * RHO)


def test_a_holder_that_renews_is_left_alone() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, until_token=(7, 1)))

    for beat in range(2, 60):
        sweeps(lone, RENEW_S, started(beat))

    assert len(claims(lone)) == 1


def test_an_outage_begins_the_watch_anew_however_short() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, until_token=(7, 1)))
    sweeps(lone, 50.0, started())
    lone.do(lone.node.look_again)
    lone.answer("open", Answer(UNAVAILABLE))  # in that moment the holder may have been anything

    sweeps(lone, LEASE_S, started(left_s=0.0))
    assert len(claims(lone)) == 1
    sweeps(lone, 2 * RENEW_S, started(left_s=0.0))

    assert len(claims(lone)) == 2


def test_answers_too_far_apart_begin_the_watch_anew() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, until_token=(7, 1)))
    lone.wait(RENEW_S)
    lone.sweep(started())
    since = pursued(lone).watch.since  # type: ignore[union-attr]
    lone.pass_time(RENEW_S + SETTINGS.ledger_timeout_s + 1.0)  # this node stood still

    lone.sweep(started())

    assert pursued(lone).watch.since > since  # type: ignore[union-attr]


def test_those_who_wait_for_a_lapse_come_one_after_the_other() -> None:
    first, second = claiming(), Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(second, clock=0)
    second.wait(1.0)
    for lone in (first, second):
        lone.answer("claim", Answer(HELD, by="c.1", left_s=10.0, until_token=(7, 1)))

    waits = [pursued(lone).at - lone.now.mono for lone in (first, second)]

    assert waits[1] - waits[0] == pytest.approx(second.node.ctx.stagger_s)


# ---- what peers say


def test_received_postpones_and_never_ends() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(lone)

    lone.hear("b.1", of_b(TaskReceived))
    lone.wait(4.0)
    assert claims(lone) == []
    sweeps(lone, 80.0, started(left_s=0.0))  # and then b is never heard of again

    assert len(claims(lone)) == 1


def test_a_run_that_was_over_before_we_saw_its_row_is_forgotten() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(lone)
    lone.hear("b.1", of_b(TaskReceived))
    lone.hear("b.1", of_b(TaskSucceeded))

    sweeps(lone, 2 * RENEW_S)

    assert lone.node.pursuits.pursuits == {}


@pytest.mark.parametrize(
    ("run", "fire_at", "scheduled", "taken"),
    [
        (scheduled_run("sales", EPOCH + 60.0), EPOCH + 60.0, True, True),
        (scheduled_run("sales", EPOCH + 60.0), EPOCH, True, False),
        (scheduled_run("sales", EPOCH + 60.0), EPOCH + 60.0, False, False),
        ("sales#1", EPOCH, False, True),
        ("sales#1", EPOCH, True, False),
    ],
)
def test_what_a_peer_says_of_a_fire_time_counts_for_nothing_but_its_name(
    run: str, fire_at: float, scheduled: bool, taken: bool
) -> None:
    """Else one lie would launch a run ahead of its time, and then again (simulator, seeds 3396 and 5550)."""
    lone = Lone(job(), peers=("b.1",)).ready()
    action = Action("sales", run, fire_at=fire_at, scheduled=scheduled)
    elect = WorkerElect(id=f"{run}/0", topic="command", candidacy=Candidacy(0, 5, "b.1"), view=("b.1",), action=action)
    lone.hear("b.1", elect)
    assert (run in lone.node.pursuits.pursuits) == taken


def test_what_was_asked_for_is_what_the_ledger_says_and_not_a_peer() -> None:
    """A pursuit that began with a wrong digest would abstain until the run is missed (simulator, seed 27410)."""
    lone = Lone(job(), peers=("b.1",)).ready()
    action = Action("sales", RUN, digest="made up")
    lone.hear("b.1", WorkerElect(id=f"{RUN}/0", topic="command", candidacy=Candidacy(0, 5, "b.1"), action=action))
    lone.wait(1.0)
    assert claims(lone) == []

    sweeps(lone, 3 * RENEW_S, open_run(RUN, state=PENDING))

    assert len(claims(lone)) == 1


def test_a_late_elect_of_an_election_that_is_decided_is_taken_as_it_is() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(lone, attempt=1)
    lone.node.pursuits.pursuits.clear()
    lone.forget()

    hears_an_elect(lone, attempt=1)
    lone.wait(1.0)

    assert len(claims(lone)) == 1


def test_an_end_that_its_holder_cannot_report_is_reported_here() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskSucceeded, exit_code=0, application_id="app-1"))

    sweeps(lone, RENEW_S, started())

    assert [request.args for request in lone.questions("report")] == [
        (RUN, 0, 7, "theirs", "success", 0, "", "app-1", False)
    ]


@pytest.mark.parametrize(("kind", "state"), [(TaskFailed, "failure"), (TaskRetried, "lost")])
def test_each_end_is_reported_as_what_it_was(kind: type[Task], state: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(kind, exit_code=3))

    sweeps(lone, RENEW_S, started())

    assert [request.args[4] for request in lone.questions("report")] == [state]


def test_a_failure_that_must_not_be_tried_again_is_reported_as_such() -> None:
    lone = Lone(job(retry=Retry(attempts=3, never_on_codes=(65,))), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskFailed, exit_code=65))

    sweeps(lone, RENEW_S, started())

    assert [request.args[-1] for request in lone.questions("report")] == [True]


@pytest.mark.parametrize("row", [started(token=9), started(attempt=1, state=RETRY)], ids=["another grant", "told"])
def test_an_end_of_another_grant_or_one_that_is_known_is_not_reported(row: OpenRun) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskSucceeded))

    sweeps(lone, RENEW_S, row)

    assert lone.questions("report") == []


def test_late_news_of_an_earlier_attempt_do_not_hide_the_end_of_a_later_one() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskSucceeded, attempt=1, token=9))
    lone.hear("c.1", of_b(TaskRetried, attempt=0, token=7))

    sweeps(lone, RENEW_S, started(attempt=1, token=9))

    assert [request.args[1:5] for request in lone.questions("report")] == [(1, 9, "theirs", "success")]


# ---- the sweep


@pytest.mark.parametrize("state", [PENDING, RETRY])
def test_a_row_that_nobody_pursues_is_pursued(state: str) -> None:
    lone = Lone(job()).ready()

    lone.sweep(open_run(RUN, state, attempt=2))

    assert [claim.attempt for claim in claims(lone)] == [2]


def test_a_row_that_is_due_later_is_pursued_then() -> None:
    lone = Lone(job()).ready()
    lone.sweep(open_run(RUN, RETRY, attempt=1, due_in_s=20.0))

    lone.wait(18.9)
    assert claims(lone) == []
    lone.wait(0.2)

    assert len(claims(lone)) == 1


def test_a_row_of_a_job_that_is_not_known_here_is_left_to_others() -> None:
    lone = Lone(job()).ready()

    lone.sweep(open_run("other#1"))

    assert lone.node.pursuits.pursuits == {}


def test_an_unknown_run_is_left_to_its_holder_or_a_person() -> None:
    lone = Lone(job()).ready()

    sweeps(lone, 200.0, started(state=UNKNOWN))
    assert claims(lone) == []
    assert "run resolve" in pursued(lone).why
    sweeps(lone, RENEW_S, open_run(RUN, RETRY, attempt=1))  # somebody said: relaunch

    assert [claim.attempt for claim in claims(lone)] == [1]


def test_the_ledger_is_believed_also_where_it_has_gone_back() -> None:
    lone = claiming()
    lone.answer("claim", Answer(LOST, attempt=2, in_s=0.0))
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, until_token=(7, 1)))

    sweeps(lone, RENEW_S, open_run(RUN, RETRY, attempt=1))

    assert claims(lone)[-1].attempt == 1


def test_the_next_attempt_does_not_begin_here_while_the_last_one_still_lives_here() -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted(RUN, "sales", 0, 7, waits=False)  # thawed a moment ago, say: it is about to be ended
    lone.sweep(open_run(RUN, RETRY, attempt=1, token=7))

    lone.wait(4.0)
    assert claims(lone) == []
    lone.do(lone.node.pursuits.gone, RUN, 7)

    assert [claim.attempt for claim in claims(lone)] == [1]


def test_while_our_own_runner_holds_it_we_do_not_watch_ourselves() -> None:
    lone = claiming()
    lone.answer("claim", granted(token=7))

    sweeps(lone, 3 * LEASE_S, open_run(RUN, STARTED, token=7, node="a.1", beat=1))

    assert len(claims(lone)) == 1
    assert pursued(lone).phase == "owned"


def test_a_grant_whose_answer_was_lost_is_not_mistaken_for_anothers() -> None:
    lone = claiming()
    lone.answer("claim", Answer(UNAVAILABLE))

    lone.sweep(open_run(RUN, RECEIVED, token=7, nonce=claims(lone)[0].nonce, node="a.1"))
    lone.wait(BACKOFF_MIN_S)
    lone.answer("claim", granted(token=7))

    assert [launch.token for launch in lone.launches] == [7]


def test_a_failed_attempt_of_ours_is_followed_by_the_next() -> None:
    lone = claiming(job(retry=Retry(attempts=2)))
    lone.answer("claim", granted())
    (launch,) = lone.launches
    lone.do(lone.node.runner_ended, launch, "failure", 1, "exit code 1", "", 1.0)

    sweeps(lone, RENEW_S, open_run(RUN, RETRY, attempt=1, token=7, due_in_s=0.0))

    assert [claim.attempt for claim in claims(lone)] == [0, 1]


# ---- budget


def test_no_more_runs_than_the_budget_and_the_next_as_soon_as_one_ends() -> None:
    lone = Lone(job(overlap="allow"), job("urgent", priority=9)).ready()
    rows = [open_run(f"sales#{number}") for number in range(4)]
    lone.sweep(*rows, open_run("urgent#1"))
    assert len(lone.questions("claim")) == SETTINGS.budget_client

    lone.answer("claim", granted(7))
    lone.answer("claim", granted(8))
    lone.wait(2.0)
    assert lone.questions("claim") == []
    lone.do(lone.node.runner_ended, lone.launches[0], "success", 0, "", "", 1.0)

    assert [request.args[0].of.run for request in lone.questions("claim")] == ["urgent#1"]  # before older ones


@pytest.mark.parametrize(
    "answer", [Answer(UNAVAILABLE), Answer(HELD), Answer(FINISHED, state=SUCCESS), Answer(DIFFERS)]
)
def test_a_claim_that_comes_to_nothing_costs_no_budget(answer: Answer) -> None:
    lone = claiming()

    lone.answer("claim", answer)

    assert (lone.node.pursuits.claiming, lone.node.pursuits.running) == (0, {})


# ---- a queue of runs of one job


def test_the_first_in_the_queue_asks_again_as_soon_as_a_run_has_ended() -> None:
    lone = Lone(job(overlap="queue"), peers=("b.1",)).ready()
    lone.sweep(*[open_run(f"sales#{number}", wall=EPOCH + number) for number in (2, 3)])
    for _ in range(6):  # both have come to look only now and then
        while lone.questions("claim"):
            lone.answer("claim", Answer(LIMITED, by="overlap with sales#1", in_s=1.0))
        lone.wait(10.0)
    while lone.questions("claim"):
        lone.answer("claim", Answer(LIMITED, by="overlap with sales#1", in_s=1.0))

    lone.hear("b.1", of_b(TaskSucceeded, run="sales#1"))
    lone.wait(0.1)

    assert [request.args[0].of.run for request in lone.questions("claim")] == ["sales#2"]


def test_an_end_that_is_heard_while_the_claim_is_out_is_not_lost() -> None:
    lone = claiming(job(overlap="queue"))
    for _ in range(6):
        lone.answer("claim", Answer(LIMITED, by="overlap with sales#0", in_s=1.0))
        lone.wait(10.0)
    assert out(lone)

    lone.hear("b.1", of_b(TaskSucceeded, run="sales#0"))
    lone.answer("claim", Answer(LIMITED, by="overlap with sales#0", in_s=1.0))  # said before it ended
    lone.wait(1.0)

    assert out(lone)


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
    (of,) = [request.args[0] for request in lone.questions("register")]
    assert (of.run, of.scheduled, of.digest) == (run, True, "d1")
    assert claims(lone, run) == []  # it is not for this node to launch

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


# ---- pages of a sweep


def page(*runs: OpenRun, after: tuple[float, str] | None = None) -> OpenAnswer:
    answer = open_answer(*runs)
    answer.after = after
    return answer


def test_a_run_that_is_not_on_the_first_page_is_not_over() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, RENEW_S, started())
    lone.wait(RENEW_S)

    lone.answer("open", page(open_run("sales#0"), after=(EPOCH, "sales#0")))
    assert RUN in lone.node.pursuits.pursuits
    (question,) = lone.questions("page")
    assert question.args == (EPOCH, "sales#0")
    lone.answer("page", page(open_run("sales#2"), after=(EPOCH, "sales#2")))
    assert RUN in lone.node.pursuits.pursuits
    lone.answer("page", page())

    assert RUN not in lone.node.pursuits.pursuits
    assert set(lone.node.pursuits.pursuits) == {"sales#0", "sales#2"}


@pytest.mark.parametrize("epoch", ["", "another"])
def test_of_a_sweep_that_was_cut_off_nothing_is_concluded(epoch: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, RENEW_S, started())
    lone.wait(RENEW_S)
    lone.answer("open", page(open_run("sales#0"), after=(EPOCH, "sales#0")))
    last = page()
    last.epoch = epoch

    lone.answer("page", last if epoch else Answer(UNAVAILABLE))

    assert RUN in lone.node.pursuits.pursuits
    sweeps(lone, RENEW_S)
    assert RUN not in lone.node.pursuits.pursuits


def test_a_draining_node_does_not_ask_however_late_it_is() -> None:
    lone = Lone(job(start_within_s=10.0), peers=("b.1",)).ready()
    lone.do(lone.node.drain, True)

    sweeps(lone, 200.0, open_run(RUN))

    assert claims(lone) == []


# ---- together


def test_when_the_holder_dies_exactly_one_of_the_others_takes_over() -> None:
    cluster = Cluster("a", "b", "c", jobs=[job()])
    cluster.trigger("a", asked_for())
    assert cluster.launches(RUN) == [("a", 0)]
    cluster.wait(20.0)

    cluster.kill("a")
    cluster.wait(LEASE_S)
    assert cluster.launches(RUN) == [("a", 0)]  # not before its lease has been watched to the end
    cluster.wait(2 * RENEW_S + LEASE_S * 0.1)

    assert len(cluster.launches(RUN)) == 2
    assert cluster.launches(RUN)[1][1] == 1


def test_a_late_joiner_takes_over_what_it_never_saw_begin() -> None:
    cluster = Cluster("a", jobs=[job()])
    cluster.trigger("a", asked_for())
    cluster.wait(10.0)
    cluster.boot("b", 1)
    cluster.start("b")
    cluster.kill("a")

    cluster.wait(LEASE_S + 3 * RENEW_S)

    assert cluster.launches(RUN) == [("a", 0), ("b", 1)]


def test_without_a_bus_the_ledger_alone_makes_it_one_launch() -> None:
    cluster = Cluster("a", "b", jobs=[job(every_s=60.0)])
    for shell in cluster.shells.values():
        shell.bus = False

    cluster.wait(70.0)

    assert len(cluster.launches("sales@2025-01-29T08:01:00Z")) == 1


def test_epitaphs_and_ends_are_remembered_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pursuing, "EPITAPHS_MAX", 10)
    monkeypatch.setattr(endings, "EPITAPHS_MAX", 10)
    lone = Lone(job(), peers=("b.1",)).ready()

    for number in range(50):
        run = f"sales#{number}"
        lone.hear("b.1", of_b(TaskSucceeded, run=run))
        hears_an_elect(lone, run)
        lone.wait(1.0)
        while lone.questions("claim"):
            lone.answer("claim", Answer(FINISHED, state=SUCCESS))

    assert len(lone.node.pursuits.endings.finals) <= 10
    assert len(lone.node.pursuits.epitaphs) == 10
    assert lone.node.pursuits.pursuits == {}


# ---- a reload while a claim is under way


def redefined(lone: Lone, **changes: Any) -> None:
    """The job's file is changed, and read again."""
    lone.do(lone.node.set_jobs, {"sales": job(digest="d2", **changes)})


def reports(lone: Lone) -> list[tuple[object, ...]]:
    return [request.args for request in lone.asked if request.op == "report"]


@pytest.mark.parametrize("removed", [False, True])
def test_a_grant_whose_definition_was_changed_meanwhile_is_given_back_and_not_launched(removed: bool) -> None:
    lone = claiming()
    (claim,) = claims(lone)
    if removed:
        lone.do(lone.node.set_jobs, {})
    else:
        redefined(lone, on_lost="hold")

    lone.answer("claim", granted())

    assert lone.launches == []
    assert lone.node.pursuits.running == {}
    why = "given back: the definition was changed or removed while it was claimed"
    assert reports(lone) == [(RUN, 0, 7, claim.nonce, RETRY, None, why, "", False)]


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
    lone.answer("claim", granted())  # the first one's

    assert lone.launches == []
    assert lone.node.pursuits.running == {}
    why = "given back: the definition was changed or removed while it was claimed"
    assert reports(lone) == [(run, 0, 7, claim.nonce, RETRY, None, why, "", False)]
    assert lone.node.pursuits.claiming == (1 if claimed_again else 0)

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
    assert lone.launches == []
    assert [args[4] for args in reports(lone)] == [RETRY]


def test_a_claim_that_was_refused_is_made_again_with_the_definition_as_it_is_now() -> None:
    lone = claiming()
    lone.answer("claim", Answer(LIMITED, by="suspended", in_s=5.0))
    pursued(lone).action = Action("sales", RUN)  # of a peer that does not say which definition
    redefined(lone)
    lone.wait(6.0)

    first, again = claims(lone)
    assert again.of.digest == "d2"
    assert again.nonce != first.nonce


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
