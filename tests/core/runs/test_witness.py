"""Witnesses tell a ledger that lost writes what it forgot. Late news launches nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import ended_of, grant_of
from support.small_cluster import EPOCH, MONO, Lone, asked_for, job, open_answer, open_run

from coordd.core.jobs.job import Job, Retry
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.identity import Heard
from coordd.core.ledger.requests import Claim, Vouch
from coordd.core.ledger.runner_requests import Report, Restore
from coordd.core.ledger.words import MARKS, OK, RECOVERING, STALE, UNAVAILABLE, AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.core.runs import witness as module
from coordd.core.wire.events import (
    PROTOCOL_MAJOR,
    Action,
    Candidacy,
    ControlRevoke,
    Event,
    Packet,
    Task,
    TaskFailed,
    TaskReceived,
    TaskRejected,
    TaskRetried,
    TaskStarted,
    TaskSucceeded,
    WorkerElect,
    WorkerHeartbeat,
    WorkerOffline,
    flatten,
    task_of,
)

LAUNCH = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0)


def news(kind: type[Task], run: str = "sales#1", *, token: int = 7, attempt: int = 0, **fields: Any) -> Task:
    return kind(
        uuid="u",
        name="sales",
        run=run,
        token=token,
        nonce=f"n{token}",
        attempt=attempt,
        node="b.1",
        **{"fire_at": EPOCH, **fields},
    )


def quarantine(lone: Lone, left_s: float = 40.0, epoch: str = "1") -> None:
    """The next sweep finds the ledger in the quarantine of that epoch; with 0.0 it finds no quarantine."""
    if not lone.questions("open"):
        lone.do(lone.node.look_again)
    answer = open_answer(jobs=lone.node.ctx.jobs)
    answer.recovering_s, answer.epoch = left_s, epoch
    lone.answer("open", answer)


def restored(lone: Lone) -> list[tuple[str, int, int, str]]:
    return [(one.of.run, one.attempt, one.token, one.state) for one in lone.requests(Restore)]


def test_what_was_heard_and_what_runs_here_is_put_back_what_may_run_first() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskReceived, "sales#2", token=5, kwargs='{"day": "1"}'))
    lone.hear("b.1", news(TaskSucceeded, "sales#2", token=5, exit_code=0, application_id="app-1"))
    lone.do(lone.node.runner_started, LAUNCH)

    quarantine(lone)

    assert restored(lone) == [("sales#1", 0, 7, "started"), ("sales#2", 0, 5, "success")]
    restore = lone.waiting(Restore)[1]
    of = restore.of
    assert (of.job, of.digest, of.scheduled, of.args, of.fire_at) == ("sales", "d1", False, '{"day": "1"}', EPOCH)
    assert (restore.grant, restore.node, restore.lease_s) == (grant_of("sales#2", 0, 5, "n5"), "b.1", 60.0)
    assert (restore.state, restore.exit_code, restore.reason) == ("success", 0, "")
    assert (restore.application_id, restore.final) == ("app-1", False)


def test_a_scheduled_run_is_put_back_as_one() -> None:
    lone = Lone(job(every_s=3600.0)).ready()
    lone.hear("b.1", news(TaskStarted, "sales@2025-01-29T08:00:00Z"))

    quarantine(lone)

    assert lone.waiting(Restore)[0].of.scheduled is True


def test_nothing_is_put_back_into_a_ledger_that_forgot_nothing() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskStarted))

    quarantine(lone, 0.0, epoch="")  # as before

    assert restored(lone) == []


def test_a_node_that_comes_after_the_others_have_ended_the_quarantine_puts_back_what_it_knows() -> None:
    lone = Lone(job()).ready()
    for number in (1, 2, 3):
        lone.hear("b.1", news(TaskStarted, f"sales#{number}", token=number))

    quarantine(lone, 0.0)

    assert restored(lone) == [("sales#3", 0, 3, "started")]  # the answer tells whether restorations are still taken
    lone.answer("restore", Answer(STALE, state="success"))  # they are
    assert restored(lone)[1:] == [("sales#2", 0, 2, "started"), ("sales#1", 0, 1, "started")]


def test_once_the_whole_quarantine_is_over_nothing_more_is_put_back() -> None:
    lone = Lone(job()).ready()
    for number in (1, 2):
        lone.hear("b.1", news(TaskStarted, f"sales#{number}", token=number))
    quarantine(lone, 0.0)

    lone.answer("restore", Answer(STALE))
    quarantine(lone, 0.0)
    lone.hear("b.1", news(TaskStarted, "sales#3", token=3))
    quarantine(lone, 0.0)

    assert len(restored(lone)) == 1


def test_news_that_comes_after_a_quarantine_was_ended_early_is_put_back_too() -> None:
    lone = Lone(job()).ready()
    quarantine(lone)
    quarantine(lone, 0.0)

    lone.hear("b.1", news(TaskStarted))
    quarantine(lone, 0.0)

    assert restored(lone) == [("sales#1", 0, 7, "started")]


@pytest.mark.parametrize("answer", [Answer(OK), Answer(STALE, state="success")])
def test_what_the_ledger_has_taken_is_not_told_again_until_there_is_news(answer: Answer) -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskStarted))
    quarantine(lone)
    lone.answer("restore", answer)

    quarantine(lone, 35.0)
    assert len(restored(lone)) == 1
    lone.hear("b.1", news(TaskFailed, exit_code=3))
    quarantine(lone, 30.0)

    assert restored(lone)[1:] == [("sales#1", 0, 7, "failure")]


def test_what_was_not_answered_is_told_again_and_the_next_quarantine_begins_anew() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskStarted))
    quarantine(lone)
    lone.answer("restore", Answer(UNAVAILABLE))
    quarantine(lone, 35.0)
    lone.answer("restore", Answer(OK))
    assert len(restored(lone)) == 2

    quarantine(lone, 0.0)
    quarantine(lone, 40.0, "2")

    assert len(restored(lone)) == 3


def test_late_news_of_an_attempt_does_not_take_its_end_back() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskFailed, exit_code=3))
    lone.hear("b.1", news(TaskReceived), news(TaskStarted))

    quarantine(lone)

    assert restored(lone) == [("sales#1", 0, 7, "failure")]


def test_who_was_never_granted_anything_and_jobs_that_are_not_here_are_left_out() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskRejected), news(TaskStarted, "other#1"))
    unknown = news(TaskStarted, "gone#1")
    unknown.name = "gone"
    lone.hear("b.1", unknown)

    quarantine(lone)

    assert restored(lone) == [("other#1", 0, 7, "started")]


def test_only_so_many_are_remembered_and_asked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEEN_MAX", 10)
    monkeypatch.setattr(module, "AT_A_TIME", 3)
    lone = Lone(job()).ready()
    for number in range(1, 21):
        lone.hear("b.1", news(TaskStarted, f"sales#{number}", token=number))

    quarantine(lone)
    assert len(lone.questions("restore")) == 3
    while lone.questions("restore"):
        lone.answer("restore", Answer(OK))

    assert sorted(token for _, _, token, _ in restored(lone)) == list(range(11, 21))
    assert lone.node.witness.asked == set()


# ---- messages that waited at their sender


@pytest.mark.parametrize("how", ["receive", "receive_late"])
def test_a_backlog_that_is_replayed_launches_and_claims_nothing(how: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    told: list[Event] = [
        news(kind, f"sales#{number}", token=number, attempt=number % 3)
        for number, kind in enumerate((TaskReceived, TaskStarted, TaskRetried, TaskFailed, TaskSucceeded), 1)
    ]
    told.append(ControlRevoke(run="sales#9"))
    for event in told:
        event.clock = 5
    packet = Packet(PROTOCOL_MAJOR, "default", "b", 1, "1-b", 0, 0, told)  # type: ignore[arg-type]  # each Event is one of AnyEvent

    lone.do(getattr(lone.node, how), packet)
    lone.wait(1.0)
    lone.sweep(open_run("sales#8", "started", token=99, nonce="n99", node="b.1"))
    lone.wait(10.0)

    assert lone.launches == []
    assert lone.requests(Claim) + lone.requests(Report) == []


def test_late_facts_are_no_sign_of_life() -> None:
    lone = Lone(job()).ready()
    packet = Packet(PROTOCOL_MAJOR, "default", "b", 1, "1-b", 0, 0, [news(TaskSucceeded)])  # type: ignore[list-item]  # each Event is one of AnyEvent

    lone.do(lone.node.receive_late, packet)

    assert lone.node.ctx.membership.members == {}
    assert ("sales#1", 0, 7) in lone.node.witness.seen


def test_late_facts_of_an_earlier_life_of_a_node_are_remembered_and_nothing_else_of_it() -> None:
    """A successor of the sender is alive, so the packet is late."""
    lone = Lone(job(), peers=("b.2",)).ready()
    successor = lone.node.ctx.membership.members["b"].incarnation
    view = ("b.1", lone.node.ctx.full_hostname)
    elect = WorkerElect(id="sales#2/0", topic="run", candidacy=Candidacy(0, 1, "b.1"), view=view)

    lone.hear("b.1", news(TaskSucceeded), elect, incarnation="0-earlier")

    assert ("sales#1", 0, 7) in lone.node.witness.seen
    assert lone.node.elections.by_id == {}
    assert lone.node.ctx.membership.members["b"].incarnation == successor


def test_a_ledger_that_goes_back_once_more_is_told_everything_again() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskStarted))
    quarantine(lone, 40.0)
    lone.answer("restore", Answer(OK))

    quarantine(lone, 35.0)
    assert len(restored(lone)) == 1, "it has taken that over"

    quarantine(lone, 35.0, "2")
    assert len(restored(lone)) == 2


def test_what_it_took_before_it_went_back_once_more_counts_for_nothing() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", news(TaskStarted))
    quarantine(lone)
    quarantine(lone, 40.0, "2")
    assert len(restored(lone)) == 2, "the second is asked although the first has no answer yet"

    lone.answer("restore", Answer(OK))  # the answer to the first request
    assert lone.node.witness.seen["sales#1", 0, 7].restored == "", "nobody has told the ledger of now"

    lone.answer("restore", Answer(OK))
    assert lone.node.witness.seen["sales#1", 0, 7].restored == "started"


def test_what_a_journal_holds_is_seen_again() -> None:
    said = news(TaskStarted, attempt=2, token=9)
    record = flatten(said, hostname="b", pid=1, incarnation="1-b", seq=4, utcoffset=0)

    assert task_of(record) == said
    assert task_of({**record, "type": "worker-heartbeat"}) is None
    assert task_of({**record, "token": "of another version"}) is None


def test_a_failure_that_was_final_stays_so() -> None:
    lone = Lone(job(retry=Retry(attempts=3, never_on_codes=(7,)))).ready()
    lone.hear("b.1", news(TaskFailed, "sales#1", token=5, exit_code=7))
    lone.hear("b.1", news(TaskFailed, "sales#2", token=6, exit_code=1))

    quarantine(lone)

    assert {restore.of.run: restore.final for restore in lone.waiting(Restore)} == {"sales#1": True, "sales#2": False}


def test_a_run_that_the_ledger_forgot_before_it_was_granted_is_claimed_once_it_has_recovered() -> None:
    """The trigger was acknowledged, so the claim writes the row of the run again."""
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.do(lone.node.trigger, asked_for(), 1)
    lone.answer("register", Answer(OK, state="pending"))
    lone.wait(0.001)

    quarantine(lone)
    quarantine(lone, 0.0)
    lone.wait(20.0)

    assert "sales#1" in {claim.of.run for claim in lone.requests(Claim)}


def test_every_event_of_an_attempt_carries_its_arguments() -> None:
    lone = Lone(job()).ready()
    launch = LAUNCH._replace(args='{"day": "1"}')

    lone.do(lone.node.runner_ended, launch, "failure", 1, "", "", 1.0)

    assert lone.node.witness.seen["sales#1", 0, 7].args == '{"day": "1"}'


GRANTED: dict[str, Any] = {"digest": "d1", "policy": job(on_lost="hold").policy().pack(), "lease": 90.0}


@pytest.mark.parametrize("jobs", [(job(digest="d2"),), (job("other"),)], ids=["changed", "removed"])
def test_what_was_granted_is_put_back_whatever_the_job_is_today(jobs: tuple[Job, ...]) -> None:
    lone = Lone(*jobs).ready()
    lone.hear("b.1", news(TaskReceived, **GRANTED))
    lone.hear("b.1", news(TaskStarted))  # from a node that does not send it again

    quarantine(lone)

    (restore,) = lone.waiting(Restore)
    assert (restore.of.digest, restore.of.policy.pack(), restore.lease_s) == ("d1", GRANTED["policy"], 90.0)


def test_what_an_older_version_says_is_put_back_with_the_job_as_it_is_here() -> None:
    lone = Lone(job(digest="d2", lease_s=45.0)).ready()
    lone.hear("b.1", news(TaskStarted))

    quarantine(lone)

    (restore,) = lone.waiting(Restore)
    assert (restore.of.digest, restore.lease_s) == ("d2", 45.0)


@pytest.mark.parametrize("policy", ["", "hold", "hold forbid x y z fixed w", "hold forbid 1 5 nan fixed"])
def test_a_policy_that_is_none_ends_no_daemon(policy: str) -> None:
    lone = Lone(job(digest="d2")).ready()
    lone.hear("b.1", news(TaskStarted, digest="d1", policy=policy))

    quarantine(lone)

    assert lone.waiting(Restore)[0].of.digest == "d1"


def test_an_end_that_another_made_is_put_back_with_the_definition_that_had_run() -> None:
    """A node that ends a lapsed attempt takes the definition from the ledger: by now all nodes may have another one."""
    teller = Lone(job(digest="d2", on_lost="hold")).ready()
    ended = ended_of(0, 7, "n7", "b.1", "its lease lapsed", policy=job().policy().pack(), lease_s=60.0)
    answer = Answer("lost", attempt=1, ended=ended)
    teller.node.pursuits.endings.tell(Action("sales", "sales#1", digest="d1"), answer, teller.now)
    (told,) = [event for event in teller.node.ready().messages if isinstance(event, TaskRetried)]
    lone = Lone(job(digest="d2", on_lost="hold")).ready()
    lone.hear("b.1", told)

    quarantine(lone)

    of = lone.waiting(Restore)[0].of
    assert (of.digest, of.policy.pack()) == ("d1", job().policy().pack())


def test_an_exit_code_is_final_only_by_the_definition_that_ran() -> None:
    lone = Lone(job(retry=Retry(never_on_codes=(3,)))).ready()
    lone.hear("b.1", news(TaskFailed, exit_code=3, **{**GRANTED, "digest": "d0"}))
    lone.hear("b.1", news(TaskFailed, "sales#2", exit_code=3, **GRANTED))

    quarantine(lone)

    assert [restore.final for restore in lone.waiting(Restore)] == [False, True]


# ---- how a node vouches for the ledger


def told_of_life(lone: Lone, life: str, grants: int) -> None:
    lone.node.heard.hear(life, grants)


def test_a_node_vouches_once_the_ledger_has_answered_for_all_it_knows() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.runner_started, LAUNCH)
    told_of_life(lone, "1", 5)
    told_of_life(lone, "2", 5)
    quarantine(lone, epoch="2")
    lone.wait(1.0)
    assert lone.waiting(Vouch) == [], "its grant is not restored yet"

    lone.answer("restore", Answer(OK, state="started"))
    lone.wait(0.3)
    (vouch,) = lone.waiting(Vouch)
    assert (vouch.host, vouch.life, vouch.grants) == ("a", "1", 5)

    lone.answer("vouch", Answer(RECOVERING, left_s=40.0, in_s=40.0))
    lone.wait(0.3)
    asked = len(lone.questions("open"))
    lone.answer("vouch", Answer(OK))
    assert len(lone.questions("open")) == asked + 1, "the sweep tells the rest of the node"


def test_a_node_that_was_told_nothing_by_the_life_before_has_no_mark() -> None:
    lone = Lone(job()).ready()
    told_of_life(lone, "2", 5)
    quarantine(lone, epoch="2")

    (vouch,) = lone.waiting(Vouch)
    assert (vouch.life, vouch.grants) == ("", 0)


def test_a_quarantine_that_lasts_its_whole_time_is_not_asked_about_again() -> None:
    lone = Lone(job()).ready()
    told_of_life(lone, "1", 5)
    told_of_life(lone, "2", 5)
    quarantine(lone, epoch="2")
    lone.answer("vouch", Answer(STALE, left_s=40.0))
    lone.wait(1.0)
    assert lone.waiting(Vouch) == []

    told_of_life(lone, "3", 5)
    quarantine(lone, epoch="3")
    (vouch,) = lone.waiting(Vouch)
    assert vouch.life == "2", "it went back again"


@pytest.mark.parametrize(("rules", "vouches"), [(MARKS, 1), (MARKS - 1, 0)])
def test_nobody_vouches_while_a_member_counts_no_grants(rules: int, vouches: int) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=rules))
    lone.hear("b.1", WorkerOffline(clock=2))
    told_of_life(lone, "1", 5)
    told_of_life(lone, "2", 5)
    quarantine(lone, epoch="2")

    assert len(lone.waiting(Vouch)) == vouches


def test_a_claim_that_waits_for_a_quarantine_is_asked_again_as_soon_as_that_is_over() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.pursuits.begin, Action("sales", "sales#1", fire_at=EPOCH, digest="d1"))
    lone.wait(2.0)
    for _ in range(2):
        if lone.questions("open"):
            lone.sweep()
    lone.answer("claim", Answer(RECOVERING, left_s=40.0, in_s=40.0))
    lone.wait(0.2)
    assert lone.questions("open"), "it did not know of the quarantine"
    quarantine(lone, epoch="2")
    lone.answer("vouch", Answer(OK))
    assert not lone.questions("claim")

    quarantine(lone, 0.0, epoch="2")
    lone.wait(0.1)
    assert len(lone.questions("claim")) == 1


def test_the_mark_is_that_of_the_life_before_also_for_an_answer_that_is_read_late() -> None:
    heard = Heard()
    for life, grants in (("1", 3), ("1", 2), ("2", 3), ("1", 4), ("2", 7), ("", 9)):
        heard.hear(life, grants)

    assert (heard.before, heard.mark, heard.life, heard.grants) == ("1", 4, "2", 7)
