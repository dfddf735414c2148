"""A damaged row, in SQLite and in Redis: the ledger names it and does not use it. Everything else continues."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ledger_calls import FakeClock, Nodes
from support.stepped_redis import SteppedLedger

from contract.ledger.corners.both import Both
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import (
    Activate,
    Adopt,
    Cancel,
    Claim,
    ListOpen,
    NewRules,
    Page,
    Register,
    Revoke,
    Suspend,
)
from coordd.core.ledger.revision.text import GONE
from coordd.core.ledger.rows import REVISION, RUN_COLUMNS
from coordd.core.ledger.runner_requests import Grant, Renew, Request
from coordd.core.ledger.standing import BARRIER_BY
from coordd.core.ledger.words import BAD, GRANTED, NEVER, OK, REVOKED, AttemptNumber
from coordd.core.ready import LedgerRequest
from coordd.errors import BadRowError, UnavailableError
from coordd.services.ledger import LedgerService
from coordd.services.views.objects import attempt_view, run_view
from coordd.services.views.why import why_run

RUN = "sales#1"
OTHER = "sales#2"

# (column, value): a type, a size or a range that no node writes.
SPOILT: list[tuple[str, Any]] = [
    ("fire_at", 1e308), ("fire_at", float("inf")), ("fire_at", -5.0), ("fire_at", "never"), ("not_before", "1e999"),
    ("not_before", b"\xff\xfe"), ("created_at", 1e300), ("attempt", 10**18), ("attempt", "two"), ("attempt", -1),
    ("attempt", 0.5), ("failures", "x"), ("token", "y"), ("token", 2**62), ("state", "resting"), ("state", b"\x80"),
    ("policy", "no policy at all"), ("policy", ""), ("policy", "a b 1 2 3 d nan"), ("args", "{}\0"), ("job", "sa\0les"),
    ("policy", "relaunch forbid 1 5 30.0 fixed"), ("policy", "relaunch forbid 1 5 30.0 fixed 3600.0 more"),
    ("policy", "relaunch forbid 2000000 5 30.0 fixed 3600.0"), ("policy", "hold allow 1 -1 30.0 fixed 3600.0"),
    ("policy", "hold queue 1 5 1e300 fixed 3600.0"), ("policy", "never forbid 1 5 30.0 fixed 3600.0"),
    ("node", b"\xc3\x28"), ("reason", "x" * 300_000), ("nonce", "n" * 5000), ("digest", b"\xff"), ("lease", "z"),
    ("until", "nan"), ("beat", "1.5.2"), ("cancel", 2), ("scheduled", 2), ("scheduled", "maybe"), ("exit_code", "ok"),
]  # fmt: skip
IDS = [f"{column}={value!r:.20}" for column, value in SPOILT]


@pytest.fixture(params=["sqlite", "redis"])
def nodes(request: pytest.FixtureRequest, make_ledger: Callable[[str], Any], clock: FakeClock) -> Nodes:
    return Nodes(make_ledger(request.param), clock)


def spoil(nodes: Nodes, run: str, column: str, value: Any, table: str = "run") -> None:
    """Write a value into a row, as anybody with access to the ledger can do."""
    ledger = nodes.ledger
    if isinstance(ledger, RedisLedger):
        raw = value if isinstance(value, bytes) else str(value).encode()
        ledger.read([("HSET", ledger.key(f"{table}:{run}"), column, raw)])
        return
    assert isinstance(ledger, SqliteLedger)
    db = sqlite3.connect(ledger.path)
    name = "job" if table in ("job", "standing") else "run"
    table = table if table == "standing" else f"{table}s"
    with db:  # write bytes as text that is not UTF-8, as in a damaged page
        mark = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        db.execute(f'UPDATE {table} SET "{column}" = {mark} WHERE {name} = ?', (value, run))  # noqa: S608 - our words
    db.close()


def allowing(nodes: Nodes, run: str) -> Any:
    return nodes.of(run, overlap="allow")


@pytest.mark.parametrize(("column", "value"), SPOILT, ids=IDS)
def test_one_bad_row_spoils_nothing_else(nodes: Nodes, column: str, value: Any) -> None:
    nodes.ask(Register(of=allowing(nodes, RUN)))
    nodes.ask(Register(of=allowing(nodes, OTHER)))
    spoil(nodes, RUN, column, value)

    shown = {view["id"]: view for view in (run_view(row, redacted=False) for row in nodes.ledger.runs())}
    assert shown[OTHER]["state"] == "pending"
    [bad] = [view for name, view in shown.items() if name != OTHER]
    assert bad["state"] == "bad"
    assert column in bad["reason"]

    row = nodes.ledger.run(RUN)
    assert "bad" in why_run(RUN, row, nodes.ledger.attempts(RUN), None, None)
    assert column in why_run(RUN, row, nodes.ledger.attempts(RUN), None, None)

    swept = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(swept, OpenAnswer)
    assert OTHER in [each.run for each in swept.runs]
    # a sweep does not contain these columns
    if column not in ("policy", "reason", "created_at", "failures", "cancel", "exit_code"):
        assert [why for name, why in swept.bad.items() if name.startswith("sales") and column in why]
        assert RUN not in [each.run for each in swept.runs]

    if isinstance(nodes.ledger, RedisLedger) and column in ("node", "digest", "exit_code"):
        nodes.claim(allowing(nodes, RUN))  # a script compares bytes, so it accepts text that is not UTF-8
    else:
        with pytest.raises(BadRowError, match=column):
            nodes.claim(allowing(nodes, RUN))
        with pytest.raises(BadRowError, match=column):
            nodes.ask(Cancel(run=RUN, by="ann"))
    assert nodes.claim(allowing(nodes, OTHER)).word == GRANTED


def test_a_run_that_waits_for_its_retry_without_an_attempt_is_bad(nodes: Nodes) -> None:
    nodes.ask(Register(of=allowing(nodes, RUN)))
    spoil(nodes, RUN, "state", "retry")

    with pytest.raises(BadRowError, match="attempt"):
        nodes.claim(allowing(nodes, RUN))


def test_a_row_under_another_name_is_bad(nodes: Nodes) -> None:
    nodes.ask(Register(of=allowing(nodes, RUN)))
    if isinstance(nodes.ledger, RedisLedger):  # a file's rows have their names from the same column
        spoil(nodes, RUN, "run", OTHER)
        with pytest.raises(BadRowError, match=f"run: expected its own name, found {OTHER}"):
            nodes.claim(allowing(nodes, RUN))


def test_questions_in_one_round_trip_are_answered_each_by_its_own_row(nodes: Nodes) -> None:
    for run in (RUN, OTHER):
        nodes.ask(Register(of=allowing(nodes, run)))
    spoil(nodes, RUN, "not_before", "soon")
    claims = [
        Claim(of=allowing(nodes, run), attempt=AttemptNumber(0), nonce="n1", node="edge-1.10", lease_s=60.0)
        for run in (RUN, OTHER)
    ]
    questions: list[Request[Any]] = [*claims, *claims, ListOpen(jobs=("sales",))]
    asked = [LedgerRequest(number, request) for number, request in enumerate(questions)]
    service = LedgerService(lambda: nodes.ledger, 5.0)
    results: list[Any] = []
    assert service._perform(asked, results) == "", "nothing is wrong with the ledger itself"
    assert [answer.word for _, answer, _ in results] == [BAD, GRANTED, BAD, GRANTED, OK]


def test_a_sweep_goes_on_after_a_run_whose_name_is_no_text(nodes: Nodes) -> None:
    for run in (RUN, OTHER):
        nodes.ask(Register(of=allowing(nodes, run)))
    _rename(nodes, RUN, b"sales#1\xff")

    first = nodes.ledger.ask(ListOpen(jobs=("sales",), limit=1))
    assert isinstance(first, OpenAnswer)
    assert (first.runs, len(first.bad)) == ([], 1)
    assert first.after is not None
    second = nodes.ledger.ask(Page(after=first.after, limit=1))
    assert isinstance(second, OpenAnswer)
    assert [each.run for each in second.runs] == [OTHER]


def _rename(nodes: Nodes, run: str, name: bytes) -> None:
    """Give an open row another name."""
    ledger = nodes.ledger
    if isinstance(ledger, RedisLedger):
        score, values = ledger.read([
            ("ZSCORE", ledger.key("open"), run), ("HMGET", ledger.key(f"run:{run}"), *RUN_COLUMNS),
        ])  # fmt: skip
        fields = [part for pair in zip(RUN_COLUMNS, values, strict=True) if pair[1] is not None for part in pair]
        ledger.read([
            ("HSET", ledger.prefix.encode() + b"run:" + name, *fields, "run", name),
            ("ZREM", ledger.key("open"), run), ("ZADD", ledger.key("open"), score, name),
        ])  # fmt: skip
        return
    assert isinstance(ledger, SqliteLedger)
    with sqlite3.connect(ledger.path) as db:
        db.execute("UPDATE runs SET run = CAST(? AS TEXT) WHERE run = ?", (name, run))
    db.close()


@pytest.mark.parametrize("ask", [Nodes.gate, Nodes.renew, Nodes.report, Nodes.commit])
def test_a_holder_whose_row_is_bad_gets_no_answer(nodes: Nodes, ask: Callable[[Nodes, Grant], Answer]) -> None:
    grant = nodes.granted(nodes.of(RUN))
    spoil(nodes, RUN, "not_before", "x")
    with pytest.raises(UnavailableError, match="not_before"):
        ask(nodes, grant)


def test_beside_a_bad_row_that_may_be_running_nothing_starts(nodes: Nodes) -> None:
    nodes.claim(nodes.of(RUN))
    spoil(nodes, RUN, "lease", "x")
    with pytest.raises(BadRowError, match=RUN):
        nodes.claim(nodes.of(OTHER))


def test_a_bad_row_at_the_head_of_a_queue_does_not_hold_it_up(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(RUN, overlap="queue")))
    nodes.clock.step(1.0)
    nodes.ask(Register(of=nodes.of(OTHER, overlap="queue")))
    spoil(nodes, RUN, "policy", "x")
    assert nodes.claim(nodes.of(OTHER, overlap="queue")).word == GRANTED


@pytest.mark.parametrize(("column", "value"), [("state", "resting"), ("policy", "x"), ("fire_at", 1e308)])
def test_a_person_ends_a_bad_row_by_revoking_it(nodes: Nodes, column: str, value: Any) -> None:
    nodes.ask(Register(of=nodes.of(RUN)))
    spoil(nodes, RUN, column, value)
    assert nodes.ask(Revoke(run=RUN, by="ann")).word == OK
    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.reason.startswith("revoked by ann"), column in row.reason) == (REVOKED, True, True)
    swept = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(swept, OpenAnswer)
    assert (swept.runs, swept.bad) == ([], {})
    assert [each.run for each in nodes.ledger.runs()] == [RUN]
    assert nodes.claim(nodes.of(RUN)).word == "finished"
    if isinstance(nodes.ledger, SteppedLedger):
        nodes.ledger.check_sets("sales")


@pytest.mark.parametrize("state", ["received", "retry", "success", "unknown"])
def test_nothing_is_left_of_a_bad_row_that_was_revoked(nodes: Nodes, state: str) -> None:
    grant = nodes.granted(nodes.of(RUN, attempts=2, on_lost="hold"))
    if state != "received":
        nodes.gate(grant)
        nodes.report(grant, {"retry": "failure", "unknown": "lost"}.get(state, state), 3)
    spoil(nodes, RUN, "beat", "x")

    assert nodes.ask(Revoke(run=RUN, by="ann", due=0.0)).word == OK

    assert nodes.state(RUN) == REVOKED
    assert nodes.ledger.attempts(RUN) == []
    if isinstance(nodes.ledger, SteppedLedger):
        nodes.ledger.check_sets("sales")
    assert nodes.claim(nodes.of(OTHER)).word == GRANTED


@pytest.mark.parametrize("overlap", ["forbid", "replace"])
@pytest.mark.parametrize("order", [(RUN, OTHER), (OTHER, RUN)], ids=["first", "last"])
def test_one_bad_row_among_several_that_may_be_running_holds_up_a_run(
    nodes: Nodes, overlap: str, order: tuple[str, str]
) -> None:
    for run in order:
        nodes.started(nodes.of(run, overlap="allow"))
    spoil(nodes, order[0], "lease", "x")

    with pytest.raises(BadRowError, match=order[0]):
        nodes.claim(nodes.of("sales#3", overlap=overlap))


@pytest.mark.parametrize("bad", [1, 2])
def test_bad_rows_at_the_head_of_a_queue_are_passed_over_one_by_one(nodes: Nodes, bad: int) -> None:
    runs = [f"sales#{number}" for number in range(4)]
    for run in runs:
        nodes.ask(Register(of=nodes.of(run, overlap="queue")))
        nodes.clock.step(1.0)
    for run in runs[:bad]:
        spoil(nodes, run, "policy", "x")

    assert nodes.claim(nodes.of(runs[3], overlap="queue")).by == f"queue: {runs[bad]} is first"
    assert nodes.claim(nodes.of(runs[bad], overlap="queue")).word == GRANTED


def test_a_mended_job_of_which_nothing_runs_goes_on_above_its_tokens(nodes: Nodes) -> None:
    before = nodes.started(nodes.of(RUN))
    nodes.report(before)
    spoil(nodes, "sales", "fence", "x", table="job")

    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))

    for _ in range(2):  # before a sweep, and after it
        if isinstance(nodes.ledger, SteppedLedger):  # older versions are still kept out
            (read,) = nodes.ledger.read([("HMGET", nodes.ledger.key("job:sales"), "suspended", "changed_by")])
            assert read == [b"1", BARRIER_BY.encode()]
        assert nodes.opened("sales").jobs["sales"].fence >= before.token


def test_a_bad_row_of_a_job_is_mended_under_the_old_rules_too(nodes: Nodes) -> None:
    Both(nodes.ledger, nodes.clock).older_row("sales", 7, nodes.clock.wall - 60.0, 0, 3, "bob")
    assert nodes.opened("sales").identity_from == NEVER
    spoil(nodes, "sales", "version", "x", table="job")

    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))

    swept = nodes.opened("sales")
    assert (swept.bad, swept.identity_from, swept.jobs["sales"].suspended) == ({}, NEVER, True)


def test_the_new_rules_leave_a_bad_row_of_a_job_as_it_is(nodes: Nodes) -> None:
    Both(nodes.ledger, nodes.clock).older_row("sales", 7, nodes.clock.wall - 60.0, 0, 3, "bob")
    spoil(nodes, "sales", "version", "x", table="job")

    assert nodes.ask(NewRules(known=-1.0)).word == OK

    assert "version" in nodes.opened("sales").bad["sales"]
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    assert nodes.opened("sales").jobs["sales"].horizon == nodes.clock.wall, "nothing was kept of a bad row"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("horizon", "x"), ("horizon", 1e300), ("horizon", 1e14), ("horizon", -5.0), ("fence", "many"), ("fence", -1),
        ("fence", 2**53 - 5),
    ],
)  # fmt: skip
def test_a_bad_row_of_a_job_stops_that_job_alone(nodes: Nodes, column: str, value: Any) -> None:
    nodes.ledger.ask(ListOpen(jobs=("sales", "other")))
    spoil(nodes, "sales", column, value, table="job")
    swept = nodes.ledger.ask(ListOpen(jobs=("sales", "other")))
    assert isinstance(swept, OpenAnswer)
    assert list(swept.jobs) == ["other"]
    assert column in swept.bad["sales"]


@pytest.mark.parametrize("table", ["job", "standing"])
@pytest.mark.parametrize(("column", "value"), [("horizon", "x"), ("fence", "many"), ("fence", 2**60), ("version", "x")])
def test_a_person_mends_a_bad_row_of_a_job_by_suspending_it(nodes: Nodes, table: str, column: str, value: Any) -> None:
    """Without any valid row the job begins now. Its active runs continue, and tokens still increase."""
    if (table, column) == ("standing", "fence"):
        column = "sequence"
    before = nodes.granted(nodes.of(RUN, overlap="allow"))
    nodes.clock.wall -= 5.0  # the clock is set back: tokens must still be larger than all earlier ones
    spoil(nodes, "sales", column, value, table=table)
    with pytest.raises(BadRowError, match=column):
        nodes.claim(allowing(nodes, OTHER))

    assert nodes.ask(Suspend(job="sales", suspended=True, by="ann")).word == OK

    swept = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(swept, OpenAnswer)
    assert swept.bad == {}
    job = swept.jobs["sales"]
    assert (job.suspended, job.fence >= before.token) == (True, True)
    assert nodes.claim(allowing(nodes, OTHER)).by == "suspended"
    nodes.ask(Suspend(job="sales", suspended=False, by="ann"))
    after = nodes.claim(allowing(nodes, OTHER))
    assert (after.word, after.token > before.token) == (GRANTED, True)
    assert nodes.ledger.ask(Renew(grant=before, lease_s=60.0, launched=True)).word == OK


@pytest.mark.parametrize("bad", [2**53 - 5, "x"])  # too large: no token can follow it
@pytest.mark.parametrize("order", [(RUN, OTHER), (OTHER, RUN)], ids=["up", "down"])
def test_a_mended_job_goes_on_above_all_tokens_with_the_definition_that_was_activated_last(
    nodes: Nodes, order: tuple[str, str], bad: Any
) -> None:
    for number in (1, 2):
        nodes.ask(Activate(job="sales", digest=f"d{number}", schedule=f"s{number}", how="new", by="ann"))
        nodes.clock.step(1.0)
    for run in order:
        nodes.granted(nodes.of(run, overlap="allow", digest="d2"))
        nodes.clock.step(1.0)
    nodes.granted(nodes.of("sales#3", overlap="allow", digest="d2"))
    highest = nodes.ledger.run(order[1]).token  # type: ignore[union-attr]  # the row exists
    spoil(nodes, "sales#3", "token", bad)
    nodes.clock.wall -= 60.0
    for table in ("job", "standing"):
        spoil(nodes, "sales", "version", "x", table=table)

    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))

    swept = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(swept, OpenAnswer)
    assert highest <= swept.jobs["sales"].fence < 2**52
    current = swept.current["sales"]
    assert (current.sequence, current.digest) == (2, "d2")


def test_a_fire_time_in_the_far_future_does_not_put_a_schedule_off_for_ever(nodes: Nodes) -> None:
    run = "sales@2026-01-01T00:00:00Z"
    nodes.ask(Register(of=nodes.of(run)))
    spoil(nodes, run, "fire_at", 1e308)
    if isinstance(nodes.ledger, RedisLedger):
        nodes.ledger.read([("ZADD", nodes.ledger.key("fired:sales"), "1e308", run)])
    swept = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(swept, OpenAnswer)
    assert swept.jobs["sales"].last_fire_at < 1e12


def test_attempts_that_cannot_be_read_are_shown_as_bad(nodes: Nodes) -> None:
    nodes.claim(nodes.of(RUN))
    if isinstance(nodes.ledger, RedisLedger):
        nodes.ledger.read(
            [("HSET", nodes.ledger.key(f"attempts:{RUN}"), "0:started_at", "x", "x:y", "z", "\u00b2:a", "b")]
        )
    else:
        spoil(nodes, RUN, "started_at", "x", table="attempt")
    [shown] = [attempt_view(row) for row in nodes.ledger.attempts(RUN)]
    assert (shown["attempt"], shown["state"]) == (0, "bad")


def test_a_file_whose_columns_take_anything(tmp_path: Path, clock: FakeClock) -> None:
    """Another program may have made the tables without our NOT NULL."""
    ledger = SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", clock=clock)
    nodes = Nodes(ledger, clock)
    nodes.ask(Register(of=nodes.of(RUN)))
    ledger.close()
    db = sqlite3.connect(f"{tmp_path}/ledger.db")
    with db:
        db.execute("CREATE TABLE loose AS SELECT * FROM runs")
        db.execute("DROP TABLE runs")
        db.execute("ALTER TABLE loose RENAME TO runs")
        db.execute("CREATE INDEX runs_ended ON runs (ended_at, run)")
        db.execute("UPDATE runs SET fire_at = NULL, policy = NULL, attempt = x'00ff'")
    db.close()
    ledger = SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", clock=clock)
    [view] = [run_view(row, redacted=False) for row in ledger.runs()]
    assert view["state"] == "bad"
    swept = ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(swept, OpenAnswer)
    assert list(swept.bad) == [RUN]
    ledger.close()


@pytest.mark.parametrize("table", ["job", "standing"])
def test_a_bad_row_of_a_job_that_a_revision_lacks_does_not_refuse_it(nodes: Nodes, table: str) -> None:
    """Rows of jobs are kept: this one may have been withdrawn years ago."""

    def adopt(number: int, jobs: tuple[str, ...]) -> Answer:
        text = "\n".join([f"{job} d{number} s{number}" for job in jobs])
        return nodes.ask(Adopt(number=number, digest=f"r{number}", replaces=number - 1, by="ann", jobs=text))

    assert adopt(1, ("other", "sales", "third")).word == OK
    spoil(nodes, "sales", "version", "x", table=table)

    assert adopt(2, ("other",)).word == OK
    swept = nodes.ledger.ask(ListOpen(jobs=("other", "third")))
    assert {name: one.digest for name, one in swept.current.items()} == {"other": "d2", "third": GONE}


def test_a_bad_row_refuses_a_whole_revision(nodes: Nodes) -> None:
    """The jobs before the bad one keep their definitions too."""

    def adopt(number: int) -> Answer:
        text = "\n".join([f"{job} d{number} s{number}" for job in ("other", "sales", "third")])
        return nodes.ask(Adopt(number=number, digest=f"r{number}", replaces=number - 1, by="ann", jobs=text))

    assert adopt(1).word == OK
    for table in ("job", "standing"):
        spoil(nodes, "sales", "version", "x", table=table)

    with pytest.raises(BadRowError, match="version"):
        adopt(2)

    swept = nodes.ledger.ask(ListOpen(jobs=("other", "third")))
    assert {name: one.digest for name, one in swept.current.items()} == {"other": "d1", "third": "d1"}
    assert swept.holds[REVISION].note == "1 r1"
