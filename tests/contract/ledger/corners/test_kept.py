"""The rows that a ledger forgets, the rows that survive a change of rules or a move, and the closing of a ledger."""

from __future__ import annotations

import pytest
from support.ledger_calls import Nodes, grant_of
from support.stepped_redis import SteppedLedger

from contract.ledger.corners.both import A, Both, of
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Activate, Close, ListOpen, NewRules, Register, Revoke, Suspend
from coordd.core.ledger.runner_requests import Gate
from coordd.core.ledger.standing import IDENTITY_AHEAD_S
from coordd.core.ledger.words import NEVER
from coordd.errors import LedgerClosedError


def test_what_is_forgotten_and_what_stays(both: Both, nodes: Nodes) -> None:
    ahead = "sales@2025-01-29T08:00:50Z"
    nodes.ask(Revoke(run=ahead, by="ann", due=0.0))
    nodes.ask(Register(of=of(nodes, A)))
    for number in range(5):
        nodes.report(nodes.started(of(nodes, f"sales#e{number}")), "success")
        nodes.clock.step(10.0)
    nodes.claim(of(nodes, "sales@2025-01-29T08:00:49Z", fire_at=nodes.clock.wall - 1.0))

    assert both.prune(60.0) == 0
    assert both.prune(30.0) == 2  # a run that ended exactly then stays
    assert both.prune(0.0, 0) == 0
    assert both.prune(0.0, 2) == 2
    nodes.clock.step(5.0)
    assert both.prune(5.0) == 1  # a run that was revoked before its time stays as long as if it had run
    assert both.prune(4.5) == 1
    assert both.prune(0.0) == 0
    assert nodes.ask(Register(of=of(nodes, ahead, fire_at=nodes.clock.wall - 5.0))).state == "settled"


def test_many_that_were_revoked_far_ahead_do_not_hide_what_is_to_be_forgotten(both: Both, nodes: Nodes) -> None:
    for day in range(1, 29):
        for hour in range(0, 24, 6):
            both.ledger.ask(Revoke(run=f"sales@2026-01-{day:02}T{hour:02}:00:00Z", by="ann", due=0.0))
    nodes.clock.step(1.0)
    for number in range(3):
        both.ledger.ask(Revoke(run=f"sales#{number}", by="ann", due=0.0))
        nodes.clock.step(1.0)

    assert both.ledger.prune(1.5) == 2
    assert both.ledger.prune(0.5) == 1
    assert both.ledger.prune(0.5) == 0


def test_what_is_forgotten_while_the_clock_is_ahead_is_never_opened_again(both: Both, nodes: Nodes) -> None:
    ahead = float(int(nodes.clock.wall) + 30)
    run = scheduled_run("sales", ahead)
    nodes.ask(Revoke(run=run, by="ann", due=0.0))
    nodes.clock.step(3600.0)
    assert both.prune(60.0) == 1
    nodes.clock.step(-3600.0)

    both.ask(ListOpen(jobs=("sales",)))

    nodes.clock.step(30.0)
    assert nodes.claim(of(nodes, run, fire_at=ahead)).word == "finished"


def test_a_job_of_an_older_version_through_the_change_of_rules(both: Both, nodes: Nodes) -> None:
    both.older_row("sales", 7, nodes.clock.wall - 60.0, 0, 3, "bob")
    both.older_row("other", 8, nodes.clock.wall + 60.0, 1, 3, "bob")
    due = nodes.clock.wall + 3.0

    def claims(run: str, begin: float) -> Answer:
        nodes.ask(Register(of=nodes.of(run + "r", overlap="allow", fire_at=due, identity_from=begin)))
        return nodes.claim(nodes.of(run, overlap="allow", fire_at=due, identity_from=begin))

    nodes.ledger.ask(ListOpen(jobs=("sales", "other", "third")))
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    claims("sales@a", 0.0)
    waits = claims("sales@b", NEVER)
    assert waits.word == "granted"
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    nodes.ask(Suspend(job="sales", suspended=False, by="ann"))
    assert nodes.ask(NewRules(known=-1.0)).in_s == IDENTITY_AHEAD_S
    begin = nodes.clock.wall + IDENTITY_AHEAD_S
    assert nodes.ask(NewRules(known=-1.0)).in_s == 0.0
    claims("sales@c", begin)
    claims("other@c", begin)
    for _ in range(2):
        nodes.ledger.ask(ListOpen(jobs=("sales", "other")))
        both.older_row("sales", 2_000_000, 3.2e10, 0, 4, "ann")  # an older node resumes the job
        both.older_row("fourth", 9, nodes.clock.wall, 0, 1, "ann")  # and creates another job
        nodes.ledger.ask(ListOpen(jobs=("sales", "other", "third", "fourth")))
        nodes.clock.step(3.0)
        nodes.ask(Gate(grant=grant_of("sales@b", 0, waits.token, "n1")))
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    nodes.ask(Activate(job="fourth", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    nodes.clock.step(10.0)
    due = nodes.clock.wall + 3.0
    claims("sales@d", begin)
    claims("fourth@d", begin)
    nodes.ask(Suspend(job="other", suspended=False, by="ann"))
    nodes.ledger.ask(ListOpen(jobs=("sales", "other", "third", "fourth")))


def test_a_job_that_was_first_heard_of_by_a_clock_that_was_ahead(nodes: Nodes) -> None:
    nodes.ledger.ask(ListOpen(jobs=("sales", "other")))
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    nodes.granted(of(nodes, "third#1"))
    nodes.ask(Activate(job="third", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    nodes.ledger.ask(ListOpen(jobs=("sales", "other", "third")))
    nodes.clock.step(-600.0)

    for _ in range(2):
        nodes.ledger.ask(ListOpen(jobs=("sales", "other", "third")))
        nodes.clock.step(1.0)


def test_what_was_exported_without_its_past_remembers_the_definition_that_counts(both: Both) -> None:
    both.ledger.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    both.ledger.ask(ListOpen(jobs=("other",)))
    rows = [dict(row) for row in both.ledger.export()]
    for row in rows:
        row.pop("activations", None)
    both.ledger.import_(rows, replace=True)
    if isinstance(both.ledger, SteppedLedger):
        both.ledger.accept_epoch()

    def activates(job: str, digest: str, how: str) -> str:
        word: str = both.ledger.ask(
            Activate(job=job, digest=digest, schedule="s1", how=how, by="ann", sequence=0, counts_from=0.0)
        ).word
        return word

    assert activates("sales", "d2", "changed") == "ok"
    assert activates("sales", "d1", "new") == "differs"
    assert activates("other", "", "new") == "ok"


def test_an_import_remembers_the_definitions_of_the_export(both: Both) -> None:
    for digest in ("d1", "d2"):
        activate = Activate(job="sales", digest=digest, schedule="s1", how="changed", by="ann")
        both.ledger.ask(activate)
    rows = [dict(row) for row in both.ledger.export()]
    both.ledger.import_(rows, replace=True)
    if isinstance(both.ledger, SteppedLedger):
        both.ledger.accept_epoch()

    assert [dict(row) for row in both.ledger.export()] == rows
    assert both.ledger.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann")).word == "differs"


def test_a_ledger_is_closed_only_when_nobody_holds_a_lease(both: Both, nodes: Nodes) -> None:
    nodes.ask(Register(of=of(nodes, "sales#0")))
    last = nodes.granted(of(nodes, "sales#99", age_s=60.0))
    assert nodes.ask(Close(force=False, by="ann")).by == last.run
    grants = [nodes.granted(of(nodes, f"sales#{number:02}")) for number in reversed(range(1, 12))]
    nodes.gate(grants[0])
    assert nodes.ask(Close(force=False, by="ann")).by.endswith(" and 2 more")
    for grant in grants[:2]:
        nodes.ask(Revoke(run=grant.run, by="ann", due=0.0))
        nodes.report(grant, "failure", 3)
    assert nodes.ask(Close(force=False, by="ann")).by.endswith("sales#99")
    for grant in (*grants[2:], last):
        nodes.report(grant, "retry", None)

    assert both.ledger.ask(Close(force=False, by="ann")).word == "ok"
    with pytest.raises(LedgerClosedError):
        both.ledger.ask(ListOpen(jobs=()))
