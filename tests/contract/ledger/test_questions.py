"""Every ledger adapter: people's requests, the sweep, retention, and the state after a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_calls import EPOCH, LEASE_S, FakeClock, Nodes, row_of, stands, swept
from support.memory import MemoryLedger

from coordd.core.jobs.job import iso
from coordd.core.ledger.requests import AcceptEpoch, Cancel, ListOpen, Register, Resolve, Revoke, Suspend
from coordd.core.ledger.steps import Life
from coordd.errors import LocalProtocolError, UnavailableError
from coordd.ports import Ledger, Quarantined

RUN = "sales#1"
FIRE = "sales@2025-01-29T08:00:00Z"


# ---- people


def test_a_run_is_revoked_before_it_starts_or_not_at_all(nodes: Nodes) -> None:
    assert nodes.ask(Revoke(run=RUN, by="ann")).word == "ok"  # no node has registered the run yet
    assert nodes.claim(nodes.of()).state == "revoked"
    assert (nodes.ask(Register(of=nodes.of())).word, nodes.ask(Register(of=nodes.of())).state) == ("exists", "revoked")
    grant = nodes.granted(nodes.of("sales#2"))
    assert nodes.ask(Revoke(run="sales#2", by="ann")).word == "ok"
    assert nodes.gate(grant).word == "revoked"
    nodes.started(nodes.of("sales#3"))
    assert nodes.ask(Revoke(run="sales#3", by="ann")).word == "finished"
    assert nodes.state("sales#3") == "started"


def test_a_cancelled_run_hears_of_it_with_its_next_renewal(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of())
    answer = nodes.ask(Cancel(run=RUN, by="ann"))
    assert (answer.word, answer.state, answer.by) == ("ok", "started", "edge-1.10")
    assert (nodes.renew(grant).word, nodes.renew(grant).left_s) == ("cancel", LEASE_S)
    assert nodes.report(grant, "revoked", None).word == "ok"
    assert nodes.ask(Cancel(run=RUN, by="ann")).word == "finished"


def test_a_cancelled_run_is_never_tried_again(nodes: Nodes) -> None:
    of = nodes.of(attempts=3)
    grant = nodes.started(of)
    nodes.ask(Cancel(run=RUN, by="ann"))
    nodes.report(grant, "failure", 143)
    assert nodes.state(RUN) == "failure"
    grant = nodes.started(nodes.of("sales#2"))
    nodes.ask(Cancel(run="sales#2", by="ann"))
    assert nodes.claim(nodes.of("sales#2"), nonce="b", watched=nodes.lapse("sales#2")).state == "revoked"
    nodes.granted(nodes.of("sales#3"))
    nodes.ask(Cancel(run="sales#3", by="ann"))
    assert nodes.claim(nodes.of("sales#3"), nonce="b", watched=nodes.lapse("sales#3")).state == "revoked"


def test_a_cancelled_unknown_run_still_says_why_nobody_knows_its_end(nodes: Nodes) -> None:
    of = nodes.of(on_lost="hold")
    grant = nodes.started(of)
    nodes.claim(of, nonce="b", watched=nodes.lapse(RUN))
    told = "its lease lapsed; last held by edge-1.10; cancelled by ann"
    for by in ("ann", "bob"):
        assert nodes.ask(Cancel(run=RUN, by=by)).state == "unknown"
        assert nodes.reason(RUN) == told
    assert nodes.renew(grant).word == "cancel"  # the holder is back; the ledger still knows who cancelled the run
    assert nodes.report(grant, "revoked", None).word == "ok"
    assert nodes.reason(RUN) == told


def test_a_cancelled_run_that_becomes_unknown_says_both(nodes: Nodes) -> None:
    of = nodes.of(on_lost="hold")
    nodes.started(of)
    nodes.ask(Cancel(run=RUN, by="ann"))
    nodes.claim(of, nonce="b", watched=nodes.lapse(RUN))
    assert nodes.state(RUN) == "unknown"
    assert nodes.reason(RUN) == "its lease lapsed; last held by edge-1.10; cancelled by ann"


def test_a_waiting_run_is_cancelled_at_once(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of()))
    assert nodes.ask(Cancel(run=RUN, by="ann")).state == "revoked"
    assert nodes.ask(Cancel(run="no such run", by="ann")).word == "finished"


@pytest.mark.parametrize(("outcome", "state"), [("success", "success"), ("failed", "failure"), ("relaunch", "retry")])
def test_a_person_resolves_an_unknown_run(nodes: Nodes, outcome: str, state: str) -> None:
    of = nodes.of(on_lost="hold")
    grant = nodes.started(of)
    assert nodes.ask(Resolve(run=RUN, outcome=outcome, by="ann")).word == "finished"  # it is not unknown
    nodes.claim(of, nonce="b", watched=nodes.lapse(RUN))
    nodes.ask(Cancel(run=RUN, by="ann"))
    assert nodes.ask(Resolve(run=RUN, outcome=outcome, by="ann")).state == state
    lapsed = "its lease lapsed; last held by edge-1.10; cancelled by ann"
    assert nodes.reason(RUN) == f"resolved as {outcome} by ann; its own end is not known, because {lapsed}"
    assert nodes.renew(grant).word == "lost"
    if outcome == "relaunch":
        assert nodes.gate(nodes.granted(of, 1, nonce="b")).word == "ok"


def test_suspension_has_a_version_that_only_a_change_raises(nodes: Nodes) -> None:
    said = [nodes.ask(Suspend(job="sales", suspended=on, by="ann")).token for on in (True, True, False, False, True)]
    assert said == [1, 1, 2, 2, 3]


# ---- open, prune, questions


def test_a_run_that_was_revoked_before_anybody_asked_is_not_opened_again_once_it_is_forgotten(nodes: Nodes) -> None:
    """The job's jitter makes the run due later than the time in its id."""
    swept(nodes, "sales")
    fire_at = nodes.clock.wall + 60.0
    run = f"sales@{iso(fire_at)}"
    of = nodes.of(run, fire_at=fire_at, due=fire_at + 30.0)
    assert nodes.ask(Revoke(run=run, by="ann", due=of.due)).word == "ok"
    nodes.clock.step(1000.0)
    assert nodes.ledger.prune(100.0) == 1
    assert nodes.ask(Register(of=of)).state == "settled"
    assert nodes.claim(of).state == "settled"
    assert nodes.ask(Revoke(run=run, by="ann", due=of.due)).state == "settled"


def test_the_sweep_sees_every_row_that_is_not_over(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of("a#1")))
    nodes.clock.step(1.0)
    held = nodes.started(nodes.of("b#1"))
    nodes.report(nodes.started(nodes.of("c#1")))
    nodes.report(nodes.started(nodes.of("d#1")), "lost")
    nodes.clock.step(1.0)
    answer = swept(nodes, "b", "never seen")
    assert [(row.run, row.state, row.attempt) for row in answer.runs] == [
        ("a#1", "pending", 0),
        ("b#1", "started", 0),
        ("d#1", "retry", 1),
    ]
    row = answer.runs[1]
    assert (row.token, row.beat, row.left_s, answer.runs[0].left_s) == (held.token, 1, LEASE_S - 1.0, 0.0)
    assert answer.jobs["b"] == stands(EPOCH + 1.0, held.token)
    assert answer.jobs["never seen"] == stands(EPOCH + 2.0, 0)
    nodes.clock.step(50.0)
    assert swept(nodes, "never seen").jobs["never seen"].horizon == EPOCH + 2.0


def test_the_newest_fire_time_leaves_out_runs_revoked_ahead(nodes: Nodes) -> None:
    nodes.granted(nodes.of(FIRE, fire_at=EPOCH + 1.0, overlap="allow"))
    nodes.ask(Revoke(run="sales@2030-01-01T00:00:00Z", by="ann"))
    assert swept(nodes, "sales").jobs["sales"].last_fire_at == EPOCH + 1.0
    assert nodes.claim(nodes.of("sales@2030-01-01T00:00:00Z", fire_at=EPOCH)).state == "revoked"


def test_pruning_forgets_what_is_over_and_never_opens_it_again(nodes: Nodes) -> None:
    swept(nodes, "sales")
    nodes.clock.step(10.0)
    old = nodes.of(FIRE, fire_at=nodes.clock.wall, overlap="allow")
    nodes.report(nodes.started(old))
    nodes.started(nodes.of("sales#open"))
    nodes.ask(Revoke(run="sales@2030-01-01T00:00:00Z", by="ann"))
    nodes.clock.step(100.0)
    later = nodes.of("sales@later", fire_at=nodes.clock.wall, overlap="allow")
    nodes.report(nodes.started(later))
    prune = nodes.ledger.prune
    assert prune(0.0, 100) == 1
    assert nodes.ledger.run(FIRE) is None
    assert nodes.ledger.attempts(FIRE) == []
    assert {row.run for row in nodes.ledger.runs()} == {"sales#open", "sales@2030-01-01T00:00:00Z", "sales@later"}
    job = swept(nodes, "sales").jobs["sales"]
    assert (job.horizon, job.last_fire_at) == (old.fire_at, later.fire_at)
    assert nodes.claim(old).word == "finished"
    nodes.clock.step(1.0)
    assert prune(0.0, 0) == 0
    assert prune(0.0, 100) == 1
    job = swept(nodes, "sales").jobs["sales"]
    assert (job.horizon, job.last_fire_at) == (later.fire_at, 0.0)


def test_how_long_ago_a_run_ended_after_which_some_others_did(nodes: Nodes) -> None:
    """For retention by number. A server's clock is the real one here, and its rows have the stepped clock's times."""
    assert nodes.ledger.ended_ago(0) is None
    for number in range(3):
        nodes.report(nodes.started(nodes.of(f"sales#{number}")))
        nodes.clock.step(10.0)
    nodes.started(nodes.of("sales#open"))
    first, second, third = (nodes.ledger.ended_ago(rank) for rank in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert second - first == pytest.approx(10.0, abs=1.0)
    assert third - second == pytest.approx(10.0, abs=1.0)
    assert nodes.ledger.ended_ago(3) is None


def test_which_of_many_runs_are_there_is_one_question(nodes: Nodes) -> None:
    for run in ("a#1", "b#1"):
        nodes.ask(Register(of=nodes.of(run)))
    assert nodes.ledger.recorded(["a#1", "a#2", "b#1"]) == {"a#1", "b#1"}
    assert nodes.ledger.recorded([]) == set()


def test_people_list_runs_newest_first(nodes: Nodes) -> None:
    for run in ("a#1", "b#1", "a#2"):
        nodes.ask(Register(of=nodes.of(run)))
        nodes.clock.step(1.0)
    nodes.report(nodes.started(nodes.of("a#2")))
    assert [row.run for row in nodes.ledger.runs()] == ["a#2", "b#1", "a#1"]
    assert [row.run for row in nodes.ledger.runs(limit=2)] == ["a#2", "b#1"]
    assert [row.run for row in nodes.ledger.runs(job="a")] == ["a#2", "a#1"]
    assert [row.run for row in nodes.ledger.runs(job="a", state="pending")] == ["a#1"]
    assert nodes.ledger.status()["runs"] == {"pending": 2, "success": 1}


def test_what_was_read_is_nobodys_but_the_readers(nodes: Nodes) -> None:
    nodes.granted(nodes.of())
    row, attempt = nodes.ledger.run(RUN), nodes.ledger.attempts(RUN)[0]
    assert row is not None
    row.state = attempt.state = "success"
    nodes.ledger.runs()[0].state = "success"
    assert nodes.state(RUN) == "received"
    assert nodes.ledger.attempts(RUN)[0].state == "received"


@pytest.mark.parametrize("nodes", ["memory", "sqlite"], indirect=True)  # Redis has its own rules
def test_an_operation_that_breaks_leaves_nothing_behind(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    grant = nodes.started(nodes.of())
    before, jobs = row_of(nodes), swept(nodes, "sales").jobs
    with pytest.raises(AssertionError):
        nodes.report(grant, "no such state")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Life, "_record", broken)  # the last step: by then the rows of the job and of the run are written
        with pytest.raises(ZeroDivisionError):
            nodes.claim(nodes.of("sales#2", overlap="allow"))
        with pytest.raises(ZeroDivisionError):
            nodes.report(grant)
    assert (row_of(nodes), swept(nodes, "sales").jobs) == (before, jobs)
    assert nodes.ledger.status()["runs"] == {"started": 1}
    assert [row.run for row in swept(nodes).runs] == [RUN]
    assert nodes.report(grant).word == "ok"


def test_only_a_ledger_with_a_quarantine_ends_one(nodes: Nodes) -> None:
    if isinstance(nodes.ledger, Quarantined):
        assert nodes.ask(AcceptEpoch()).left_s == 0.0
    else:
        with pytest.raises(LocalProtocolError, match="no operation 'accept_epoch'"):
            nodes.ask(AcceptEpoch())


def test_a_closed_ledger_is_unavailable(nodes: Nodes) -> None:
    nodes.ledger.close()
    nodes.ledger.close()
    with pytest.raises(UnavailableError, match="closed"):
        nodes.ledger.ask(ListOpen())


# ---- memory alone


def test_a_snapshot_does_not_live_on(make_ledger: Callable[[str], Ledger], clock: FakeClock) -> None:
    ledger = make_ledger("memory")
    assert isinstance(ledger, MemoryLedger)
    nodes = Nodes(ledger, clock)
    grant = nodes.started(nodes.of())
    snapshot = ledger.snapshot()
    for _ in range(2):
        nodes.report(grant)
        nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
        ledger.restore(snapshot)
        assert (nodes.state(RUN), swept(nodes, "sales").jobs["sales"].suspended) == ("started", False)
    ledger.reachable = False
    with pytest.raises(UnavailableError):
        nodes.state(RUN)
