"""`why --what-if-without`: who would try then, and what becomes of the run that the node has."""

from __future__ import annotations

from typing import Any

import pytest

from coordd.core.election import Election
from coordd.core.ledger.rows import RUN_COLUMNS, Row
from coordd.core.ledger.words import Policy
from coordd.core.wire.events import Candidacy
from coordd.services.views.whatif import without

RUN = "etl#1"


def row(state: str, **changes: Any) -> Row:
    columns = {
        **dict.fromkeys(Row.__slots__, 0),
        "run": RUN,
        "state": state,
        "node": "" if state == "pending" else "a.1",
        "policy": Policy().pack(),
        **changes,
    }
    return Row([columns[name] for name in RUN_COLUMNS])


def election(*names: str, abstain: str = "") -> Election:
    made = Election(f"{RUN}/0", "command", None, "a.1", (), 0.0)
    for number, name in enumerate(names):
        made.state(f"{name}.1", Candidacy(number, 1, f"{name}.1"))
    if abstain:
        made.state("z.1", Candidacy(0, 1, "z.1", abstain))
    made.decide(1.0)
    return made


def said(node: str, state: str | None, of: Election | None = None, **changes: Any) -> str:
    return without(node, RUN, row(state, **changes) if state else None, 42.0, of, ["b", "c"])


def test_the_next_of_the_succession_would_try() -> None:
    assert said("a", "pending", election("a", "b", "c")) == (
        "Without a: b would try first, then c (by the statements in etl#1/0)."
    )


def test_nothing_changes_without_one_that_does_not_try_first() -> None:
    assert said("c", "pending", election("a", "b", "c")).endswith("c is not the one that tries first.")


def test_a_run_is_taken_over_once_its_lease_has_ended() -> None:
    assert said("a", "started", election("a", "b")) == (
        "If a went away now: its lease ends in at most 42 s, and etl#1 is taken over as attempt 1."
        " b would try first (by the statements in etl#1/0)."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": Policy(on_lost="hold").pack()}, "is unknown until a person resolves it"),
        ({"cancel": 1}, "is cancelled, so it ends with its lease"),
        ({"relaunches": 5}, "may be no more, so it ends as lost"),
    ],
)
def test_a_run_that_nobody_takes_over_says_why(changes: dict[str, Any], words: str) -> None:
    told = said("a", "started", election("a", "b"), **changes)
    assert words in told
    assert "taken over" not in told


def test_a_run_on_another_node_is_not_touched() -> None:
    assert said("b", "started", election("a", "b")).startswith("Without b nothing changes now: a has it.")


def test_an_unknown_run_waits_for_a_person_all_the_same() -> None:
    assert "`coordctl run resolve etl#1`" in said("a", "unknown", election("a", "b"))


def test_of_a_run_that_is_over_it_tells_what_would_have_been() -> None:
    assert said("a", "success", election("a", "b")) == (
        "If a had been away: b would have tried first (by the statements in etl#1/0)."
    )


def test_if_nobody_else_stood_it_names_why() -> None:
    told = said("a", "pending", election("a", abstain="tags do not match"))
    assert told == "Without a: no other node stood: z (tags do not match). It would wait for one."
    assert "no other node stood in its election." in said("z", "pending", election(abstain="no budget"))
    told = said("a", "success", election("a", abstain="no budget"))
    assert told.endswith("It would have waited for one.")


def test_without_an_election_it_says_that_it_does_not_know() -> None:
    assert "is not known. Alive beside it: b, c." in said("a", "pending", None)
    assert "No other node is known to be alive." in without("a", RUN, None, 0.0, None, [])
