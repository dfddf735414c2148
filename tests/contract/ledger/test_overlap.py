"""Every ledger adapter: a job's overlap policy."""

from __future__ import annotations

import pytest
from support.ledger_calls import Nodes

from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.requests import Register

FIRST, SECOND = "sales#1", "sales#2"


@pytest.mark.parametrize("overlap", ["queue", "replace"])
def test_a_run_that_was_not_registered_waits_where_people_and_the_sweep_see_it(nodes: Nodes, overlap: str) -> None:
    nodes.ask(Register(of=nodes.of(FIRST, overlap=overlap)))
    if overlap == "replace":
        nodes.started(nodes.of(FIRST, overlap=overlap))
    nodes.clock.step(1.0)

    assert nodes.claim(nodes.of(SECOND, overlap=overlap)).word == "limited"

    assert nodes.state(SECOND) == "pending"
    assert [run.run for run in nodes.ledger.runs(state="pending") if run.run == SECOND] == [SECOND]


def test_an_older_run_never_replaces_a_newer_one(nodes: Nodes) -> None:
    """Several wait for their turn (missed fire times), and are claimed in any order."""
    dues = [nodes.clock.wall + at for at in (0.0, 1.0, 2.0)]
    oldest, older, newest = [
        nodes.of(scheduled_run("sales", due), overlap="replace", fire_at=due, due=due) for due in dues
    ]
    for of in (oldest, older, newest):
        nodes.ask(Register(of=of))
    nodes.clock.step(10.0)
    grant = nodes.started(older)

    refused = nodes.claim(oldest)
    assert (refused.word, refused.state) == ("finished", "revoked")
    assert (nodes.state(oldest.run), nodes.reason(oldest.run)) == ("revoked", f"replaced by {older.run}")
    assert nodes.renew(grant).word == "ok"

    assert nodes.claim(newest).word == "limited"
    assert nodes.renew(grant).word == "cancel"
    nodes.report(grant, "revoked")
    assert nodes.claim(newest).word == "granted"


def test_two_runs_of_one_instant_replace_each_other_as_they_come(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of(FIRST, overlap="replace"))
    assert nodes.claim(nodes.of(SECOND, overlap="replace")).word == "limited"
    assert nodes.renew(grant).word == "cancel"


def test_a_retry_waits_for_another_run_that_a_ledger_that_went_back_has_admitted(nodes: Nodes) -> None:
    """The other run has a policy of its own, and that policy admits it."""
    first, second = nodes.of(FIRST, overlap="queue", attempts=2), nodes.of(SECOND, overlap="allow")
    nodes.report(nodes.started(first), "failure", exit_code=1)
    other = nodes.started(second)
    nodes.clock.step(60.0)

    refused = nodes.claim(first, 1)
    nodes.report(other)

    assert (refused.word, refused.by) == ("limited", f"overlap with {SECOND}")
    assert nodes.claim(first, 1).word == "granted"


def test_of_two_retries_that_both_were_admitted_one_goes_first(nodes: Nodes) -> None:
    first, second = nodes.of(FIRST, overlap="queue", attempts=2), nodes.of(SECOND, overlap="allow", attempts=2)
    for of in (first, second):
        nodes.report(nodes.started(of), "failure", exit_code=1)
    nodes.clock.step(60.0)

    assert nodes.claim(first, 1).word == "granted"
