"""News for a pursuit: peers' messages about its run, and the ledger's rows, page by page."""

from __future__ import annotations

import pytest
from support.ledger_calls import grant_of, held_of
from support.small_cluster import EPOCH, Lone, job, open_answer, open_run

from coordd.core.jobs.job import Retry, scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer, OpenRun
from coordd.core.ledger.requests import Page
from coordd.core.ledger.rows import Cursor
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import EARLY, HELD, LIMITED, LOST, PENDING, RECEIVED, RETRY, STARTED, UNAVAILABLE, UNKNOWN
from coordd.core.runs.pursued import BACKOFF_MAX_S, BACKOFF_MIN_S
from coordd.core.wire.events import (
    Action,
    Candidacy,
    Task,
    TaskFailed,
    TaskReceived,
    TaskRetried,
    TaskSucceeded,
    WorkerElect,
)
from core.runs.claims import (
    LEASE_S,
    RENEW_S,
    RUN,
    claiming,
    claims,
    granted,
    hears_an_elect,
    of_b,
    pursued,
    started,
    sweeps,
)

# ---- news from peers


def test_received_postpones_and_never_ends() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(lone)

    lone.hear("b.1", of_b(TaskReceived))
    lone.wait(4.0)
    assert claims(lone) == []
    sweeps(lone, 80.0, started(left_s=0.0))  # after that, b is never heard again

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
    """Otherwise one false message would launch a run too early, and then again (simulator, seeds 3396 and 5550)."""
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

    grant = grant_of(RUN, 0, 7, "theirs")
    assert lone.waiting(Report) == [Report(grant=grant, state="success", exit_code=0, application_id="app-1")]


@pytest.mark.parametrize(("kind", "state"), [(TaskFailed, "failure"), (TaskRetried, "lost")])
def test_each_end_is_reported_as_what_it_was(kind: type[Task], state: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(kind, exit_code=3))

    sweeps(lone, RENEW_S, started())

    assert [report.state for report in lone.waiting(Report)] == [state]


def test_a_failure_that_must_not_be_tried_again_is_reported_as_such() -> None:
    lone = Lone(job(retry=Retry(attempts=3, never_on_codes=(65,))), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskFailed, exit_code=65))

    sweeps(lone, RENEW_S, started())

    assert [report.final for report in lone.waiting(Report)] == [True]


@pytest.mark.parametrize("row", [started(token=9), started(attempt=1, state=RETRY)], ids=["another grant", "told"])
def test_an_end_of_another_grant_or_one_that_is_known_is_not_reported(row: OpenRun) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskSucceeded))

    sweeps(lone, RENEW_S, row)

    assert lone.questions("report") == []


@pytest.mark.parametrize(("kind", "told"), [(TaskRetried, []), (TaskSucceeded, ["success"]), (TaskFailed, ["failure"])])
def test_of_a_run_that_waits_for_a_person_only_a_known_end_is_reported(kind: type[Task], told: list[str]) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(kind, exit_code=3))

    sweeps(lone, RENEW_S, started(state=UNKNOWN))

    assert [report.state for report in lone.waiting(Report)] == told


def test_late_news_of_an_earlier_attempt_do_not_hide_the_end_of_a_later_one() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskSucceeded, attempt=1, token=9))
    lone.hear("c.1", of_b(TaskRetried, attempt=0, token=7))

    sweeps(lone, RENEW_S, started(attempt=1, token=9))

    (report,) = lone.waiting(Report)
    assert (report.grant, report.state) == (grant_of(RUN, 1, 9, "theirs"), "success")


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


@pytest.mark.parametrize(
    ("in_s", "after_s", "asked"), [(0.0, 0.5, 1), (10.0, 10.5, 1), (49.5, 40.0, 0), (60.0, 40.0, 0)]
)
def test_a_turn_that_comes_sooner_by_the_ledgers_clock_is_not_waited_for_as_before(
    in_s: float, after_s: float, asked: int
) -> None:
    """That clock was minutes behind when the attempt ended, and has been set right."""
    lone = Lone(job()).ready()
    lone.sweep(open_run(RUN, RETRY, attempt=1, due_in_s=50.0))
    lone.sweep(open_run(RUN, RETRY, attempt=1, due_in_s=in_s))

    lone.wait(after_s)

    assert len(claims(lone)) == asked


@pytest.mark.parametrize(
    ("in_s", "after_s", "asked"), [(0.0, 0.1, 2), (30.0, 28.0, 1), (30.0, 29.1, 2), (244.0, 40.0, 1)]
)
def test_a_run_that_was_not_due_is_asked_for_when_the_ledgers_clock_has_been_set_right(
    in_s: float, after_s: float, asked: int
) -> None:
    """That clock was minutes behind when it answered."""
    run = scheduled_run("sales", EPOCH)
    lone = Lone(job()).ready()
    lone.sweep(open_run(run))
    lone.answer("claim", Answer(EARLY, in_s=240.0))
    lone.sweep(open_run(run, due_in_s=in_s, fire_at=EPOCH + in_s))

    lone.wait(after_s)

    assert len(claims(lone, run)) == asked


@pytest.mark.parametrize(("behind_s", "asked"), [(300.0, 1), (0.0, 2)])
def test_a_fire_time_that_was_not_due_is_asked_for_when_the_ledgers_clock_has_been_set_right(
    behind_s: float, asked: int
) -> None:
    """It has no row yet: no claim was granted."""
    run = scheduled_run("sales", EPOCH + 10.0)
    lone = Lone(job(every_s=10.0)).ready()
    lone.wait(9.5)
    lone.answer("claim", Answer(EARLY, in_s=295.5))
    lone.do(lone.node.look_again)
    answer = open_answer()
    answer.wall = EPOCH + 9.5 - behind_s
    lone.answer("open", answer)

    lone.wait(0.1)

    assert len(claims(lone, run)) == asked


def test_a_run_that_waits_for_a_rate_is_not_asked_for_at_each_sweep() -> None:
    lone = claiming()
    lone.answer("claim", Answer(LIMITED, by="rate: 1 started within 3600 s", in_s=1800.0))

    sweeps(lone, 20.0, open_run(RUN))

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
    sweeps(lone, RENEW_S, open_run(RUN, RETRY, attempt=1))  # a person has decided: relaunch

    assert [claim.attempt for claim in claims(lone)] == [1]


def test_the_ledger_is_believed_also_where_it_has_gone_back() -> None:
    lone = claiming()
    lone.answer("claim", Answer(LOST, attempt=2, in_s=0.0))
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, held=held_of(7, 1)))

    sweeps(lone, RENEW_S, open_run(RUN, RETRY, attempt=1))

    assert claims(lone)[-1].attempt == 1


def test_the_next_attempt_does_not_begin_here_while_the_last_one_still_lives_here() -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted(
        RUN, "sales", 0, 7, waits=False
    )  # for example, the runner has just thawed and is about to be ended
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


# ---- pages of a sweep


def page(*runs: OpenRun, after: Cursor | None = None) -> OpenAnswer:
    answer = open_answer(*runs)
    answer.after = after
    return answer


def test_a_run_that_is_not_on_the_first_page_is_not_over() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, RENEW_S, started())
    lone.wait(RENEW_S)

    lone.answer("open", page(open_run("sales#0"), after=Cursor(not_before=EPOCH, run="sales#0")))
    assert RUN in lone.node.pursuits.pursuits
    assert lone.waiting(Page) == [Page(after=Cursor(not_before=EPOCH, run="sales#0"))]
    lone.answer("page", page(open_run("sales#2"), after=Cursor(not_before=EPOCH, run="sales#2")))
    assert RUN in lone.node.pursuits.pursuits
    lone.answer("page", page())

    assert RUN not in lone.node.pursuits.pursuits
    assert set(lone.node.pursuits.pursuits) == {"sales#0", "sales#2"}


@pytest.mark.parametrize("epoch", ["", "another"])
def test_of_a_sweep_that_was_cut_off_nothing_is_concluded(epoch: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, RENEW_S, started())
    lone.wait(RENEW_S)
    lone.answer("open", page(open_run("sales#0"), after=Cursor(not_before=EPOCH, run="sales#0")))
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


# ---- a suspended job


def swept(lone: Lone, *, suspended: bool) -> None:
    """A sweep shows the run, and whether its job is suspended."""
    answer = open_answer(open_run(RUN, PENDING, attempt=0))
    answer.jobs["sales"].suspended = suspended
    if not lone.questions("open"):
        lone.do(lone.node.look_again)
    lone.answer("open", answer)


def test_a_run_of_a_suspended_job_asks_once_and_again_when_the_sweeps_say_that_it_is_resumed() -> None:
    lone = claiming()
    swept(lone, suspended=True)
    lone.answer("claim", Answer(LIMITED, by="suspended", in_s=5.0))
    for _ in range(20):
        lone.wait(RENEW_S)
        swept(lone, suspended=True)
    assert len(claims(lone)) == 1

    swept(lone, suspended=False)
    lone.wait(BACKOFF_MAX_S)
    assert len(claims(lone)) == 2


def test_a_run_of_a_suspended_job_that_is_late_asks_all_the_same_so_that_the_ledger_ends_it() -> None:
    lone = claiming(job(start_within_s=60.0))
    swept(lone, suspended=True)
    lone.answer("claim", Answer(LIMITED, by="suspended", in_s=5.0))
    lone.wait(50.0)
    assert len(claims(lone)) == 1
    lone.wait(10.0 + BACKOFF_MAX_S)
    assert len(claims(lone)) == 2


def test_a_run_that_was_limited_by_something_else_asks_although_its_job_is_suspended_now() -> None:
    lone = claiming()
    swept(lone, suspended=True)
    lone.answer("claim", Answer(LIMITED, by="drained", in_s=5.0))
    lone.wait(BACKOFF_MAX_S)
    assert len(claims(lone)) == 2
