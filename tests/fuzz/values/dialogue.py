"""What nodes and people say to a ledger, in order; and what a real Redis answers to it, as raw replies."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from support import servers
from support.ledger_calls import EPOCH, Nodes
from support.stepped_redis import OneClock, SteppedLedger

from coordd.adapters.ledger.redis_ledger import each_of
from coordd.core.checks.state import Standing, pack
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.breaker.text import Rule
from coordd.core.ledger.identity import Known
from coordd.core.ledger.inputs.memory import Seen
from coordd.core.ledger.requests import (
    Activate,
    Claim,
    Keep,
    ListEnded,
    ListOpen,
    Page,
    PassOver,
    PlanBackfill,
    Register,
    Settled,
    Suspend,
)
from coordd.core.ledger.rerun.plan import Item, Runs, text_of
from coordd.core.ledger.revision.text import InForce
from coordd.core.ledger.rows import (
    ALL,
    OF_CHECK,
    OF_INPUT,
    OF_ISOLATED,
    OF_NODE,
    OF_POOL,
    OF_REPORTED,
    OF_RERUN,
    REVISION,
    RUN_COLUMNS,
    Cursor,
)
from coordd.core.ledger.words import RATE, SLOTS, AttemptNumber
from coordd.errors import BadRowError

# The identity of the recorded ledger. A random one would make other inputs of the same seed.
IDENTITY = "1d" * 16

BREAKER = Rule(((1, ("failure",)),), 0, 60_000, 60_000, "fixed", "prevent", True).item()
LIMITS = f"{SLOTS}pool/small=2,{RATE}job/sales=5/60,{BREAKER}"

# What people and nodes keep under a key, as their own encoders write it. A revision in force is for the end of the
# dialogue: it changes what may be activated.
NOTES = {
    OF_NODE + "c": "to be moved",
    OF_POOL + "small": "2",
    OF_CHECK + "disk": pack(Standing("healthy", EPOCH, EPOCH, "fine")),
    OF_REPORTED + "disk": "healthy fine",
    OF_ISOLATED + "tick": "by hand",
    OF_INPUT + "sales:1": Seen(1, 3, "a.csv", "exit 1").text(),
    OF_RERUN + "sales#1": text_of([Item(Runs("tick#9"), "success", any=False, parents=((Runs("sales#1"),),))]),
    REVISION: InForce(1, "r1").text(),
}


def speak(nodes: Nodes) -> None:
    """Every kind of row is written, in many states; every kind of question of a node is asked."""
    hour = 3600.0
    for host in ("b", "c"):  # where nobody was before, both may claim at once
        nodes.ledger.ask(ListOpen(jobs=("sales", "tick"), host=host, silence_s=hour))
    for name in ("sales", "tick"):
        nodes.ask(Activate(job=name, digest="d1", schedule="s1", how="new", by="b.2"))
    begin = nodes.clock.wall
    nodes.ask(PlanBackfill(job="tick", text=Plan("p1", begin - hour, begin + hour).text(), by="ann", uid=1000))
    first, second, third = (nodes.of(f"sales#{number}", limits=LIMITS, overlap="allow") for number in (1, 2, 3))
    for of in (first, second, third):
        nodes.ask(Register(of=of))
    cursor = nodes.opened("sales", "tick").cursor
    grant = nodes.granted(first, nonce="n1", node="b.2")
    nodes.claim(first, nonce="n2", node="c.3")  # held
    nodes.claim(first, 3, node="c.3")  # another attempt than the row's
    nodes.claim(nodes.of("tick@2025-01-29T12:00:00Z", fire_at=EPOCH + 4 * hour), node="b.2")  # early
    _swept(nodes, cursor)
    nodes.gate(grant)
    nodes.renew(grant, "app-1")
    _swept(nodes, cursor)
    lapsed = nodes.lapse(first.run)
    nodes.claim(nodes.of("other#1"), node="z.9")  # a newcomer
    nodes.claim(first, node="b.2", watched=lapsed)  # lost
    nodes.claim(first, 1, node="b.2")  # the next attempt is granted
    nodes.report(nodes.started(second, node="b.2"), "failure", 1)  # it waits for its retry, and the breaker opens
    nodes.claim(third, node="b.2")  # the breaker prevents it
    nodes.report(nodes.started(nodes.of("tick#1"), node="b.2"), "success")
    nodes.claim(nodes.of("tick#1"), node="b.2")  # finished
    nodes.granted(nodes.of("tick#2", overlap="forbid"), node="b.2")
    nodes.claim(nodes.of("tick#3", overlap="forbid"), node="b.2")  # it waits, or is rejected
    nodes.clock.step(60.0)
    at = nodes.clock.wall
    nodes.ask(
        PassOver(
            job="tick", digest="d1", identity_from=0.0, start_within_s=0.0, settled=Settled(at - 1, "missed", 0.0, 1)
        )
    )
    for key, note in NOTES.items():
        nodes.ask(Keep(key=key, held=True, by="ann", uid=1000, note=note))
    nodes.ask(Suspend(job="tick", suspended=True, by="ann", uid=1000, until=at + hour, note="x"))
    nodes.claim(nodes.of("tick#4"), node="b.2")  # suspended
    nodes.ask(Keep(key=ALL, held=True, by="ann", uid=1000, until=at + hour, note="x"))
    nodes.claim(nodes.of("sales#5"), node="b.2")
    _swept(nodes, cursor)


def _swept(nodes: Nodes, cursor: str) -> None:
    """All kinds of sweeps: whole, since a cursor, of two rows, and the ended runs."""
    jobs = ("sales", "tick")
    for request in (
        ListOpen(jobs=jobs, host="b", silence_s=3600.0),
        ListOpen(jobs=jobs, since=cursor, named="sales#1\ngone#1"),
        ListOpen(jobs=jobs, since=cursor, limit=1),
        ListOpen(limit=2),
        Page(after=Cursor(not_before=0.0, run=""), limit=2),
        ListEnded(since=EPOCH, jobs=jobs, limit=2),
    ):
        nodes.ledger.ask(request)


@dataclass
class Recorded:
    """Replies of a real Redis, as they come from its connection."""

    opened: list[Any] = field(default_factory=list)  # to sweeps, their pages, and questions for ended runs
    claimed: list[Any] = field(default_factory=list)
    rows: list[list[bytes | None]] = field(default_factory=list)  # HMGET of a run
    attempts: list[list[bytes]] = field(default_factory=list)  # HGETALL of its attempts


class Recorder(SteppedLedger):
    """Keeps the replies of its scripts."""

    kept: Recorded

    def _steps(self, questions: list[tuple[str, list[bytes]]], deadline: float) -> Generator[Any, list[Any], list[Any]]:
        replies = yield from super()._steps(questions, deadline)
        for one in each_of(questions, replies):
            if one[1] == b"open":
                self.kept.opened.append(one)
            elif questions[0][0] == Claim.op:
                self.kept.claimed.append(one)
        return replies


@cache
def recorded() -> Recorded:
    """What a Redis of its own answers; once per process."""
    kept = Recorded()
    with servers.redis(appendonly="no") as server:
        with contextlib.closing(_ledger(server.url, "spoken", kept)) as ledger:
            nodes = Nodes(ledger, ledger._clock)
            speak(nodes)
            _look(ledger, kept)
            _damaged(nodes)
        with contextlib.closing(_ledger(server.url, "lost", kept, fresh=False)) as ledger:
            nodes = Nodes(ledger, ledger._clock)
            nodes.claim(nodes.of("sales#1"))  # recovering
            _swept(nodes, "")
    return kept


def _ledger(url: str, cluster: str, kept: Recorded, **options: Any) -> Recorder:
    Recorder.kept = kept  # before its first request, which its constructor makes
    known = Known("?" if options else "-", proposal=IDENTITY)
    return Recorder(url, OneClock(), cluster=cluster, known=known, **options)


def _look(ledger: SteppedLedger, kept: Recorded) -> None:
    """As people do."""
    names = [row.run for row in ledger.runs()]
    kept.rows += ledger.read([("HMGET", ledger.key(f"run:{name}"), *RUN_COLUMNS) for name in names])
    kept.attempts += [
        one for one in ledger.read([("HGETALL", ledger.key(f"attempts:{name}")) for name in names]) if one
    ]


def _damaged(nodes: Nodes) -> None:
    """A run and a job whose rows are bad."""
    ledger = nodes.ledger
    assert isinstance(ledger, SteppedLedger)
    of = nodes.of("sales#7")
    nodes.ask(Register(of=of))
    ledger.read([("HSET", ledger.key(f"run:{of.run}"), "not_before", "soon")])
    with contextlib.suppress(BadRowError):
        nodes.ask(Claim(of=of, attempt=AttemptNumber(0), nonce="n", node="b.2", lease_s=60.0))
    ledger.read([("HSET", ledger.key("job:tick"), "horizon", "x")])
    _swept(nodes, "")
