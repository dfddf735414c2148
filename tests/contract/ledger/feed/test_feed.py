"""Every ledger adapter: which changes an answer to a cursor tells, and which cursors are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_calls import FakeClock, Nodes
from support.stepped_redis import SteppedLedger

from coordd.adapters.ledger import sqlite_rows
from coordd.core.ledger.feed import rule
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Activate, ListOpen, Prune, Register, Revoke, Suspend
from coordd.core.ledger.rows import FEED_MAX
from coordd.history.replay import store
from coordd.ports import Ledger

HOUR_S = 3600.0


def whole(nodes: Nodes, *jobs: str) -> OpenAnswer:
    """A whole pass."""
    answer = nodes.ledger.ask(ListOpen(jobs=jobs))
    assert answer.whole
    return answer


def since(nodes: Nodes, cursor: str, *named: str, jobs: tuple[str, ...] = (), limit: int = 0) -> OpenAnswer:
    return nodes.ledger.ask(ListOpen(since=cursor, named="\n".join(named), jobs=jobs, limit=limit))


def runs(answer: OpenAnswer) -> list[str]:
    assert not answer.whole
    return [row.run for row in answer.runs]


def test_a_new_row_a_grant_and_an_end_are_told_and_a_renewal_is_not(nodes: Nodes) -> None:
    cursor = whole(nodes).cursor
    nodes.ask(Register(of=nodes.of("a#1")))
    told = since(nodes, cursor)
    assert (runs(told), told.gone, told.more) == (["a#1"], [], False)

    grant = nodes.started(nodes.of("a#1"))
    told = since(nodes, told.cursor)
    assert [(row.run, row.token) for row in told.runs] == [("a#1", grant.token)]

    nodes.renew(grant)
    told = since(nodes, told.cursor)
    assert (runs(told), told.gone) == ([], [])

    nodes.report(grant, "success")
    told = since(nodes, told.cursor)
    assert (runs(told), told.gone) == ([], ["a#1"])
    assert since(nodes, cursor).gone == ["a#1"]  # the older cursor tells it too


def test_named_runs_are_told_also_where_nothing_has_changed(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of("b#é")))
    nodes.ask(Register(of=nodes.of("over#1")))
    nodes.ask(Revoke(run="over#1", by="ann"))
    cursor = whole(nodes).cursor

    told = since(nodes, cursor, "b#é", "over#1", "never#1")

    assert (runs(told), told.gone) == (["b#é"], ["over#1", "never#1"])


def test_what_is_named_and_has_changed_is_told_once(nodes: Nodes) -> None:
    whole(nodes, "a")
    cursor = whole(nodes, "a").cursor
    nodes.ask(Register(of=nodes.of("a#1")))
    nodes.ask(Revoke(run="a#2", by="ann"))
    nodes.ask(Suspend(job="a", suspended=True, by="ann"))

    told = since(nodes, cursor, "a#1", "a#2", jobs=("a",))

    assert (runs(told), told.gone, list(told.jobs)) == (["a#1"], ["a#2"], ["a"])


def test_more_changes_than_the_limit_come_in_their_order_and_each_with_its_newest_number(nodes: Nodes) -> None:
    whole(nodes, "a")  # the job has its row
    cursor = whole(nodes).cursor
    for number in range(3):
        nodes.ask(Register(of=nodes.of(f"a#{number}")))
    first = since(nodes, cursor, limit=2)
    nodes.ask(Revoke(run="a#0", by="ann"))
    second = since(nodes, first.cursor, limit=2)

    assert (first.more, second.more) == (True, True)
    assert (runs(first), runs(second), second.gone) == (["a#0", "a#1"], ["a#2"], ["a#0"])
    assert not since(nodes, second.cursor, limit=2).more


def test_the_state_of_a_job_is_told_when_it_changes_or_is_asked_for(nodes: Nodes) -> None:
    whole(nodes, "sales", "other")
    cursor = whole(nodes, "sales", "other").cursor
    assert since(nodes, cursor).jobs == {}
    assert list(since(nodes, cursor, jobs=("other",)).jobs) == ["other"]

    nodes.ask(Suspend(job="sales", suspended=True, by="ann", until=nodes.clock.wall + HOUR_S))
    told = since(nodes, cursor)
    assert told.jobs["sales"].suspended
    assert told.holds["job:sales"].by == "ann"

    nodes.ask(Suspend(job="sales", suspended=False, by="ann"))
    assert not since(nodes, told.cursor).jobs["sales"].suspended


def test_a_definition_and_the_row_of_a_fire_time_change_their_job(nodes: Nodes) -> None:
    whole(nodes, "sales")
    cursor = whole(nodes, "sales").cursor
    activate = Activate(
        job="sales", digest="d1", schedule="s", how="new", by="ann", sequence=0, counts_from=0.0, before=""
    )
    nodes.ask(activate)
    told = since(nodes, cursor)
    assert told.current["sales"].digest == "d1"

    nodes.clock.step(1.0)
    due = nodes.clock.wall
    nodes.ask(Register(of=nodes.of("sales@now", fire_at=due, due=due, digest="d1")))
    assert since(nodes, told.cursor).jobs["sales"].last_fire_at == due


def test_a_scheduled_run_and_its_end_by_retention_change_its_job(nodes: Nodes) -> None:
    due = nodes.clock.wall
    whole(nodes, "sales")
    cursor = whole(nodes, "sales").cursor
    nodes.clock.step(1.0)
    grant = nodes.started(nodes.of("sales@now", fire_at=due + 0.5, due=due + 0.5))
    told = since(nodes, cursor)
    assert told.jobs["sales"].last_fire_at == due + 0.5

    nodes.report(grant, "success")
    nodes.clock.step(HOUR_S)
    cursor = since(nodes, told.cursor).cursor
    nodes.ask(Prune(keep_s=60.0, limit=10))
    assert since(nodes, cursor).jobs["sales"].horizon == due + 0.5


@pytest.mark.parametrize("cursor", ["", "x", "another 1", "{life} 10000000", "{life} -1", "{life} ²", "{life}"])
def test_a_cursor_that_the_ledger_cannot_serve_is_answered_with_everything(nodes: Nodes, cursor: str) -> None:
    nodes.ask(Register(of=nodes.of("a#1")))
    life = whole(nodes).cursor.rpartition(" ")[0]

    answer = since(nodes, cursor.replace("{life}", life))

    assert (answer.whole, [row.run for row in answer.runs], answer.gone) == (True, ["a#1"], [])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_cursor_is_served_as_long_as_all_changes_since_are_remembered(
    kind: str, make_ledger: Callable[[str], Ledger], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rule, store, sqlite_rows):
        monkeypatch.setattr(module, "FEED_MAX", 2)
    nodes = Nodes(make_ledger(kind), clock)
    cursors = []
    for number in range(4):
        cursors.append(whole(nodes).cursor)
        nodes.ask(Register(of=nodes.of(f"a#{number}")))

    assert since(nodes, cursors[1]).whole
    assert runs(since(nodes, cursors[2])) == ["a#2", "a#3"]


@pytest.mark.parametrize("kind", ["redis"])
def test_a_cursor_is_served_from_the_first_change_that_a_server_remembers(
    kind: str, make_ledger: Callable[[str], Ledger], clock: FakeClock
) -> None:
    ledger = make_ledger(kind)
    nodes = Nodes(ledger, clock)
    assert isinstance(ledger, SteppedLedger)
    nodes.ask(Register(of=nodes.of("a#1")))
    life = whole(nodes).cursor.rpartition(" ")[0]
    ledger.read([("HSET", ledger.key("meta"), "changes", FEED_MAX + 6)])

    nodes.ask(Register(of=nodes.of("a#2")))

    assert runs(since(nodes, f"{life} 7")) == ["a#2"]
    assert since(nodes, f"{life} 6").whole
    assert ledger.read([("ZRANGE", ledger.key("changed"), 0, -1)]) == [[b"run:a#2"]]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_no_cursor_of_before_an_import_is_served(
    kind: str, make_ledger: Callable[[str], Ledger], clock: FakeClock
) -> None:
    ledger = make_ledger(kind)
    nodes = Nodes(ledger, clock)
    nodes.ask(Register(of=nodes.of("a#1")))
    cursor = whole(nodes).cursor
    rows = list(ledger.export())  # type: ignore[attr-defined]  # both kinds can do this
    ledger.import_(rows, replace=True)  # type: ignore[attr-defined]  # both kinds can do this

    answer = since(nodes, cursor)

    assert (answer.whole, [row.run for row in answer.runs]) == (True, ["a#1"])
