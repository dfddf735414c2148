"""Every ledger adapter: a job's overlap policy."""

from __future__ import annotations

import pytest
from support.ledger_calls import Nodes

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
