"""The record of fire times without a row (core/ledger/fires.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_calls import EPOCH, Nodes, swept
from support.stepped_redis import QUARANTINE_S

from contract.ledger.corners.both import Both
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.fires import HELD_BY_OTHERS
from coordd.core.ledger.requests import Activate, PassOver, Register, Settled, Suspend
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import ABSENT, OPENED

MINUTE_S = 60.0


def activate(nodes: Nodes, digest: str, schedule: str) -> str:
    return nodes.ask(Activate(job="sales", digest=digest, schedule=schedule, how="changed", by="a")).word


@pytest.fixture(autouse=True)
def known(nodes: Nodes) -> None:
    swept(nodes, "sales")
    assert activate(nodes, "d1", "s1") == "ok"


def of(nodes: Nodes, minute: float) -> Registration:
    at = EPOCH + minute * MINUTE_S
    return nodes.of(scheduled_run("sales", at), fire_at=at, due=at, overlap="allow", start_within_s=MINUTE_S)


def passed(nodes: Nodes, minute: float, after: float = -1.0, count: int = -1, word: str = "missed") -> str:
    settled = Settled(EPOCH + minute * MINUTE_S, word, after, count)
    return nodes.ask(
        PassOver(job="sales", digest="d1", identity_from=0.0, start_within_s=MINUTE_S, settled=settled)
    ).word


def told(nodes: Nodes) -> list[tuple[float, float, str]]:
    """The stretches, in minutes since the beginning."""
    kept = nodes.ledger.fires("sales").stretches
    return [((one.after - EPOCH) / MINUTE_S, (one.upto - EPOCH) / MINUTE_S, one.decision) for one in kept]


@pytest.mark.parametrize("back", [4.0, 10.0, 12.0])
def test_what_a_clock_settled_that_was_ahead_is_settled_no_further_than_it_is(nodes: Nodes, back: float) -> None:
    nodes.clock.step(2 * MINUTE_S)
    activate(nodes, "d2", "s2")
    nodes.clock.step(8 * MINUTE_S)
    activate(nodes, "d3", "s3")
    assert told(nodes) == [(0.0, 10.0, "changed")]

    nodes.clock.step(-back * MINUTE_S)
    swept(nodes, "sales")

    assert told(nodes) == ([(0.0, 6.0, "changed")] if back == 4.0 else [])


@pytest.mark.parametrize("line", ["0 x missed", "x 60 missed", "missed", "0 60", ""])
def test_a_damaged_line_is_left_out(nodes: Nodes, line: str) -> None:
    both = nodes.ledger
    assert isinstance(both, Both)
    nodes.clock.step(9 * MINUTE_S)
    both.put_text("fires", "sales", f"{line}\n{EPOCH!r} {EPOCH + 60.0!r} skipped")

    assert passed(nodes, 2.0) == "ok"

    assert told(nodes) == [(0.0, 1.0, "skipped"), (1.0, 2.0, "missed")]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ({3.0: "skipped", 5.0: "missed"}, [(0.0, 3.0, "skipped"), (3.0, 5.0, "missed")]),
        ({5.0: "missed"}, [(0.0, 5.0, "missed")]),
    ],
    ids=["the first is forgotten", "a single one is shortened"],
)
def test_what_is_due_up_to_a_forgotten_run_is_forgotten(
    nodes: Nodes, words: dict[float, str], kept: list[tuple[float, float, str]]
) -> None:
    both = nodes.ledger
    assert isinstance(both, Both)
    nodes.clock.step(3 * MINUTE_S)
    nodes.report(nodes.started(of(nodes, 3.0)))
    nodes.clock.step(6 * MINUTE_S)
    for minute, word in words.items():
        passed(nodes, minute, word=word)
    assert told(nodes) == kept
    nodes.clock.step(10 * MINUTE_S)

    assert both.prune(MINUTE_S) == 1

    assert told(nodes) == [(3.0, 5.0, "missed")]


@pytest.mark.parametrize("op", ["claim", "register"])
def test_only_an_overdue_fire_time_is_given_up_while_its_job_is_suspended(nodes: Nodes, op: str) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    nodes.clock.step(2 * MINUTE_S)
    for one in (of(nodes, 2.0), nodes.of("sales#1", fire_at=EPOCH, start_within_s=MINUTE_S)):
        answer = nodes.claim(one) if op == "claim" else nodes.ask(Register(of=one))
        assert answer.state != "settled"

    assert told(nodes) == []


@pytest.mark.parametrize("by", [OPENED + "etl@2026-01-01T00:00:00Z", ABSENT + "etl"])
def test_the_run_of_a_child_has_its_row_while_its_job_is_suspended(nodes: Nodes, by: str) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    nodes.clock.step(5 * MINUTE_S)
    child = of(nodes, 2.0)
    child.by = by

    assert nodes.ask(Register(of=child)).word == "ok"

    assert told(nodes) == []
    assert nodes.claim(child).state == "missed"
    assert (ABSENT in nodes.reason(child.run)) is (ABSENT in by)


def test_nothing_is_given_up_in_a_quarantine(nodes: Nodes, back: Callable[..., None]) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    nodes.clock.step(5 * MINUTE_S)
    back(QUARANTINE_S - 0.5)

    assert nodes.ask(Register(of=of(nodes, 1.0))).word == "ok"

    assert told(nodes) == []


@pytest.mark.parametrize("overlap", ["allow", "forbid"])
def test_a_missed_run_that_no_other_run_holds_up_waited_for_none(nodes: Nodes, overlap: str) -> None:
    nodes.clock.step(MINUTE_S)
    nodes.granted(of(nodes, 1.0))
    nodes.ask(Register(of=nodes.of("sales#1", overlap=overlap, start_within_s=MINUTE_S)))
    nodes.clock.step(2 * MINUTE_S)

    assert nodes.claim(nodes.of("sales#1", overlap=overlap)).state == "missed"

    assert HELD_BY_OTHERS not in nodes.reason("sales#1")
