"""One node, input by input: its messages, its requests and its launches."""

from __future__ import annotations

import pytest
from support.small_cluster import SETTINGS, Cluster, Lone, asked_for, job, open_answer, open_run

from coordd.core.clock import CLOCK_JUMP_MAX
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import GRANTED, OK, STARTED, UNAVAILABLE
from coordd.core.runs import sweep
from coordd.core.wire.events import (
    Candidacy,
    ControlCancel,
    ControlRevoke,
    Event,
    Task,
    TaskFailed,
    TaskReceived,
    TaskSucceeded,
    WorkerElectAck,
    WorkerHeartbeat,
    WorkerHello,
    WorkerHelloReply,
    WorkerOffline,
    WorkerOnline,
    event_type,
)
from core.node.says import LAUNCH, STANDS, elect, types

# ---- the logical clock


@pytest.mark.parametrize(
    "event",
    [
        elect(),
        WorkerElectAck(id="sales#1/0", candidacy=STANDS),
        WorkerHeartbeat(),
        WorkerOnline(),
        WorkerOffline(),
        WorkerHello(),
        WorkerHelloReply(to="a.1"),
        TaskReceived(uuid="u", run="sales#1", name="sales"),
        TaskSucceeded(uuid="u", run="sales#1", name="sales"),
        ControlCancel(run="sales#1"),
        ControlRevoke(run="sales#1"),
    ],
    ids=event_type,
)
def test_every_message_moves_the_clock(event: Event) -> None:
    lone = Lone(job()).ready()
    event.clock = 500

    lone.hear("b.1", event)

    assert lone.node.ctx.clock.value > 500


def test_what_is_said_is_stamped_in_order_and_above_what_was_heard() -> None:
    lone = Lone(job()).ready()

    lone.hear("b.1", elect(), clock=500)
    lone.wait(SETTINGS.heartbeat_interval_s)

    clocks = [event.clock for event in lone.said]
    assert clocks == sorted(set(clocks))
    assert clocks[0] > 500


def test_an_absurd_clock_is_refused_and_what_came_with_it_is_not_done() -> None:
    lone = Lone(job()).ready()
    before = lone.node.ctx.clock.value

    for number in range(1, 10):
        lone.hear("b.1", elect(f"sales#{number}"), clock=before + CLOCK_JUMP_MAX + 1000)

    assert lone.node.ctx.clock.value == before
    assert lone.heard_said("worker-elect-ack") == []
    refused = [notice.fields["count"] for notice in lone.notices if notice.event == "clock.jump_refused"]
    assert refused == [1, 2, 4, 8]  # one line for many messages, not one for each


def test_a_mark_is_handed_out_before_any_stamp_that_it_covers() -> None:
    lone = Lone(job())

    lone.node.start((), lone.now)
    first = lone.node.ready()

    assert first.clock_mark is not None
    assert first.clock_mark > max(event.clock for event in first.messages)


# ---- elections (the rest is in test_elections.py)


def test_a_node_that_has_not_mingled_abstains() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("b.1",))
    lone.forget()

    lone.hear("b.1", elect())

    (ack,) = lone.heard_said("worker-elect-ack")
    assert isinstance(ack, WorkerElectAck)
    assert ack.candidacy.abstains == "not mingled"


@pytest.mark.parametrize(("clock", "elected"), [(100, ["drill-1"]), (1, [])], ids=["first", "second"])
def test_the_handler_of_a_topic_acts_where_the_node_is_first(clock: int, elected: list[str]) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.topics.add("drill")

    lone.do(lone.node.open_election, "drill-1", "drill", None)
    lone.hear("b.1", WorkerElectAck(id="drill-1", candidacy=Candidacy(0, clock, "b.1")))

    assert lone.elected == elected


def test_the_elected_is_told_so_once() -> None:
    lone = Lone(job()).ready()
    lone.node.topics.add("drill")

    lone.do(lone.node.open_election, "drill-1", "drill", None)
    lone.do(lone.node.open_election, "drill-1", "drill", None)

    assert lone.elected == ["drill-1"]


# ---- the sweep


def test_a_node_sweeps_every_renew_interval() -> None:
    lone = Lone(job()).ready()

    for count in (1, 2, 3):
        lone.wait(SETTINGS.renew_interval_s)
        lone.answer("open", open_answer())
        assert len(lone.asked) == count


def test_one_sweep_is_out_at_a_time_and_what_changed_meanwhile_brings_another() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.look_again)

    lone.do(lone.node.look_again)
    assert len(lone.questions("open")) == 1
    lone.answer("open", open_answer())
    assert lone.questions("open") == []
    lone.wait(sweep.SWEEP_APART_S)

    assert len(lone.questions("open")) == 1


def test_many_hints_make_one_sweep() -> None:
    lone = Lone(job()).ready()

    for number in range(50):
        lone.hear("b.1", TaskSucceeded(uuid="u", run=f"sales#{number}", name="sales"))
        lone.hear("b.1", ControlRevoke(run=f"sales#{number}"))
    lone.wait(sweep.SWEEP_APART_S)

    assert [one.request.op for one in lone.asked] == ["open"]
    assert len(lone.node.ctx.timers) < 10


def test_an_outage_of_the_ledger_is_noted_once_and_so_is_its_end() -> None:
    lone = Lone(job()).ready()
    for answer in (Answer(UNAVAILABLE), Answer(UNAVAILABLE), open_answer(), open_answer()):
        lone.wait(SETTINGS.renew_interval_s)
        lone.answer("open", answer)

    assert [notice.event for notice in lone.notices] == ["ledger.lost", "ledger.restored"]


# ---- members


def test_a_heartbeat_leaves_every_interval_also_while_draining() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.drain, True)
    lone.forget()

    lone.wait(3 * SETTINGS.heartbeat_interval_s)

    assert [event.state for event in lone.said if isinstance(event, WorkerHeartbeat)] == ["draining"] * 3


def test_a_silent_member_is_lost_and_heard_again_it_is_back() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    lone.wait(3.1 * SETTINGS.heartbeat_interval_s)
    lone.hear("b.1", TaskSucceeded(uuid="u"))

    assert [notice.event for notice in lone.notices] == ["node.lost", "node.joined"]


def test_a_member_with_other_jobs_is_noted_once_per_change() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    for digest in ("other", "other", "third"):
        lone.hear("b.1", WorkerHeartbeat(jobs_digest=digest))

    assert [notice.fields["theirs"] for notice in lone.notices] == ["other", "third"]


def test_a_restart_with_the_same_pid_is_a_new_member() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    lone.hear("b.1", WorkerOnline(), incarnation="2-b")

    assert [notice.event for notice in lone.notices] == ["node.lost", "node.joined"]
    assert lone.node.ctx.membership.view() == ("a.1", "b.1")


# ---- commands


def test_a_cancellation_reaches_the_runner_where_it_is() -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    lone.hear("b.1", ControlCancel(run="sales#1", reason="by ann"), ControlCancel(run="sales#2", reason="by ann"))

    assert lone.cancels == [("sales#1", "by ann")]


def test_a_cancellation_that_is_hurried_goes_everywhere() -> None:
    lone = Lone(job()).ready()

    lone.do(lone.node.hurry_cancel, "sales#1", "by ann", 2)

    assert lone.cancels == [("sales#1", "by ann")]
    assert types(lone.said) == types(lone.journal) == ["control-cancel"]
    assert [event.attempt for event in lone.said if isinstance(event, ControlCancel)] == [2]


@pytest.mark.parametrize(("attempt", "told"), [(0, False), (1, True), (2, False), (-1, True)])
def test_a_late_cancellation_ends_the_attempt_that_it_names_and_no_later_one(attempt: int, told: bool) -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted("sales#1", "sales", 1, 7, waits=False)

    lone.hear("b.1", ControlCancel(run="sales#1", reason="by ann", attempt=attempt))

    assert bool(lone.cancels) == told


def test_a_draining_node_abstains_and_a_resumed_one_stands() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.do(lone.node.drain, True)
    lone.do(lone.node.drain, True)
    lone.hear("b.1", elect("sales#1"))
    lone.do(lone.node.drain, False)
    lone.hear("b.1", elect("sales#2"))

    abstains = [event.candidacy.abstains for event in lone.said if isinstance(event, WorkerElectAck)]
    assert abstains == ["draining", ""]
    assert [event.state for event in lone.said if isinstance(event, WorkerHeartbeat)] == ["draining", "ready"]


def test_a_stopping_node_says_good_bye_and_takes_no_part_any_more() -> None:
    lone = Lone(job(every_s=60.0), peers=("b.1",)).ready()

    ready = lone.do(lone.node.stop)
    assert types(lone.said) == ["worker-offline"]
    assert ready.journal_sync
    lone.forget()
    lone.hear("b.1", elect())
    lone.do(lone.node.look_again)
    lone.wait(120.0)

    assert (lone.said, lone.asked) == ([], [])


def test_a_node_that_stops_while_a_claim_is_out_elects_nobody() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.sweep(open_run("sales#1", due_in_s=2.0))
    lone.do(lone.node.stop)
    lone.forget()

    lone.wait(30.0)

    assert lone.said == []


# ---- runners


def test_a_granted_attempt_is_journalled_before_it_is_launched() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 1)
    lone.answer("register", Answer(OK, state="pending"))

    ready = lone.answer("claim", Answer(GRANTED, token=7, left_s=60.0, args="{}"))

    assert types(ready.journal) == ["task-received"]
    assert ready.journal_sync
    assert [launch.token for launch in ready.launches] == [7]


@pytest.mark.parametrize(
    ("state", "said"),
    [("success", "task-succeeded"), ("failure", "task-failed"), ("revoked", "task-revoked"), ("lost", "task-retried")],
)
def test_the_end_of_an_attempt_is_told_and_looked_after(state: str, said: str) -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    ready = lone.do(lone.node.runner_ended, LAUNCH, state, 3, "why", "app-1", 1.5)

    (event,) = ready.journal
    assert isinstance(event, Task)
    assert event_type(event) == said
    assert (event.run, event.token, event.exit_code, event.application_id, event.runtime) == (
        "sales#1",
        7,
        3,
        "app-1",
        1.5,
    )
    assert event.result == state  # the journal shows a lost attempt and one that was given back as retried
    assert ready.journal_sync
    assert lone.node.pursuits.running == {}
    lone.wait(sweep.SWEEP_APART_S)
    assert len(lone.questions("open")) == 1


def test_a_start_is_told() -> None:
    lone = Lone(job()).ready()

    lone.do(lone.node.runner_started, LAUNCH)

    assert types(lone.said) == types(lone.journal) == ["task-started"]


def test_a_runner_that_dies_without_a_word_is_not_spoken_for() -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    lone.do(lone.node.runner_gone, LAUNCH)

    assert (lone.said, lone.node.pursuits.running) == ([], {})


def test_a_failed_launch_is_given_back_and_this_node_leaves_the_job_to_others() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    lone.do(lone.node.launch_failed, LAUNCH, "no space left")
    assert lone.waiting(Report) == [Report(grant=LAUNCH.grant, state="retry", reason="no space left")]
    lone.hear("b.1", elect("sales#2"))
    lone.node.ctx.launch_problems = {}  # the check ran again: there is space now
    lone.hear("b.1", elect("sales#3"))

    abstains = [event.candidacy.abstains for event in lone.said if isinstance(event, WorkerElectAck)]
    assert abstains == ["no space left", ""]


def test_a_launch_of_a_definition_that_was_changed_is_given_back_and_is_no_problem_of_the_new_one() -> None:
    lone = Lone(job(digest="d2"), peers=("b.1",)).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    lone.do(lone.node.launch_failed, LAUNCH, "the definition was changed")

    assert [report.state for report in lone.waiting(Report)] == ["retry"]
    assert lone.node.ctx.launch_problems == {}


def test_a_run_whose_arguments_do_not_fit_has_failed_and_the_job_goes_on() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    lone.do(lone.node.launch_refused, LAUNCH, "too long when filled")

    why = "too long when filled"
    assert lone.waiting(Report) == [Report(grant=LAUNCH.grant, state="failure", reason=why, final=True)]
    (event,) = [event for event in lone.journal if isinstance(event, TaskFailed)]
    assert (event.run, event.token, event.exception) == ("sales#1", 7, "too long when filled")
    assert lone.node.pursuits.running == {}
    lone.hear("b.1", elect("sales#2"))
    assert [event.candidacy.abstains for event in lone.said if isinstance(event, WorkerElectAck)] == [""]


@pytest.mark.parametrize(("told", "state", "tries"), [("launch_refused", "failure", 1), ("launch_failed", "retry", 3)])
def test_who_cannot_start_a_run_says_whether_another_could(
    told: str, state: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("a", "b", "c", jobs=[job()])
    monkeypatch.setattr(
        cluster, "launched", lambda shell, launch: shell.do(getattr(shell.node, told), launch, "does not fit")
    )
    cluster.trigger("a", asked_for("sales#1"))
    cluster.wait(10.0)
    assert cluster.state("sales#1") == state
    assert sum(len(shell.launches) for shell in cluster.shells.values()) == tries

    monkeypatch.undo()
    cluster.trigger("a", asked_for("sales#2"))
    cluster.wait(1.0)
    assert (cluster.state("sales#2") == "started") == (told == "launch_refused"), "the job itself can still run"


# ---- a node that runs for months


def test_a_job_that_is_changed_again_and_again_leaves_no_timers_behind() -> None:
    lone = Lone(job(every_s=3600.0)).ready()

    for number in range(50):
        lone.do(lone.node.set_jobs, {"sales": job(every_s=3600.0, digest=f"d{number}")})
        lone.sweep()
        lone.wait(1.0)

    assert len(lone.node.ctx.timers) < 20


def test_a_busy_day_leaves_nothing_behind() -> None:
    cluster = Cluster("a", "b", "c", jobs=[job("quick", every_s=10.0, overlap="allow")])

    cluster.wait(5.0)
    for _ in range(30):
        cluster.wait(10.0)
        for name, shell in cluster.shells.items():
            for run in list(shell.renew_at):
                cluster.end(name, run)
    cluster.wait(10.0)

    for shell in cluster.shells.values():
        node = shell.node
        open_now = {run for run in node.pursuits.pursuits if cluster.state(run) != "success"}
        assert set(node.pursuits.pursuits) == open_now
        assert len(node.pursuits.pursuits) <= 1
        assert (node.ctx._waiting, node.pursuits.open_claims) == ({}, [])
        assert len(node.ctx.timers) < 30
        assert len(node.elections.open_ids) <= 1
    assert len(cluster.ledger.runs(state="success")) >= 29


def test_a_row_that_is_started_elsewhere_is_watched_though_an_old_runner_of_it_lives_here() -> None:
    lone = Lone(job()).ready()
    lone.node.runner_adopted("sales#1", "sales", 0, 7, waits=False)

    lone.sweep(open_run("sales#1", STARTED, attempt=1, token=9, node="b.1"))

    assert lone.node.pursuits.pursuits["sales#1"].phase == "held"
