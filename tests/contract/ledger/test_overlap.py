"""Every ledger adapter: what a job's overlap policy says of its other runs."""

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
