"""Calls to a ledger as nodes make them, under a clock that only moves when a test moves it."""

from __future__ import annotations

from typing import Any

from coordd.core.ledger.answers import Answer, Ended, Held
from coordd.core.ledger.open_answer import JobState, OpenAnswer
from coordd.core.ledger.requests import NOTHING_SETTLED, Claim, ListOpen, Settled, Watched
from coordd.core.ledger.rows import LedgerTime
from coordd.core.ledger.runner_requests import Commit, Gate, Grant, Registration, Renew, Report, Request
from coordd.core.ledger.words import AttemptNumber, Policy, Token
from coordd.ports import Ledger

# 2025-01-29T08:00:00Z. No test depends on this date.
EPOCH = 1_738_137_600.0
LEASE_S = 60.0


class FakeClock:
    """The ledger's clocks, which a test moves by hand."""

    def __init__(self) -> None:
        self.wall = EPOCH
        self.lease = 1000.0
        self.boot = "boot-1"
        self.recovering_s = 0.0

    def __call__(self) -> LedgerTime:
        return LedgerTime(self.wall, self.lease, self.boot, self.recovering_s)

    def step(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.wall += seconds
        self.lease += seconds


def granted_as(run: str, answer: Answer, nonce: str) -> Grant:
    """The grant that an answer contains."""
    return Grant(run=run, attempt=answer.attempt, token=answer.token, nonce=nonce)


def grant_of(run: str, attempt: int, token: int, nonce: str) -> Grant:
    """A grant, from plain values."""
    return Grant(run=run, attempt=AttemptNumber(attempt), token=Token(token), nonce=nonce)


def watched_of(token: int, beat: int, unchanged_s: float) -> Watched:
    """An observation, from plain values."""
    return Watched(token=Token(token), beat=beat, unchanged_s=unchanged_s)


def ended_of(
    attempt: int, token: int, nonce: str, node: str, reason: str, *, policy: str = "", lease_s: float = 0.0
) -> Ended:
    """An attempt that an operation has ended, from the fields of an answer."""
    return Ended(
        attempt=AttemptNumber(attempt),
        token=Token(token),
        nonce=nonce,
        node=node,
        reason=reason,
        digest="d1",
        policy=policy,
        lease_s=lease_s,
    )


def held_of(token: int, beat: int) -> Held:
    """The holder of an attempt, from the fields of an answer."""
    return Held(token=Token(token), beat=beat)


def stands(horizon: float, fence: int, *, last_fire_at: float = 0.0, suspended: bool = False) -> JobState:
    """The state of a job."""
    return JobState(horizon=horizon, last_fire_at=last_fire_at, suspended=suspended, fence=fence)


def run_of(request: Request[Any]) -> str:
    """The run of an operation; "" if the operation is about a job or about the whole ledger."""
    about: tuple[Any, ...] = (getattr(request, "of", None), getattr(request, "grant", None), request)
    return next((str(one.run) for one in about if hasattr(one, "run")), "")


class Nodes:
    """Calls as nodes make them, over one ledger."""

    def __init__(self, ledger: Ledger, clock: FakeClock) -> None:
        self.ledger = ledger
        self.clock = clock

    def of(self, run: str = "sales#1", **changes: Any) -> Registration:
        """A node's knowledge of a run: triggered now, or scheduled for now if its name is job@…."""
        policy = Policy(**{name: changes.pop(name) for name in Policy.__slots__ if name in changes})
        job = run.partition("#")[0].partition("@")[0]
        fire_at = changes.pop("fire_at", self.clock.wall)
        digest = changes.pop("digest", "d1")
        return Registration(run, job, digest, policy, fire_at, scheduled="@" in run, **changes)

    def ask(self, request: Request[Answer]) -> Answer:
        return self.ledger.ask(request)

    def claim(
        self,
        of: Registration,
        attempt: int = 0,
        *,
        nonce: str = "n1",
        node: str = "edge-1.10",
        watched: Watched | None = None,
        settled: Settled = NOTHING_SETTLED,
        opens: bool = True,
    ) -> Answer:
        return self.ask(
            Claim(
                of=of,
                attempt=AttemptNumber(attempt),
                nonce=nonce,
                node=node,
                lease_s=LEASE_S,
                watched=watched,
                settled=settled,
                opens=opens,
            )
        )

    def granted(self, of: Registration, attempt: int = 0, *, nonce: str = "n1", **more: Any) -> Grant:
        answer = self.claim(of, attempt, nonce=nonce, **more)
        assert answer.word == "granted", answer
        return granted_as(of.run, answer, nonce)

    def started(self, of: Registration, attempt: int = 0, *, nonce: str = "n1", **more: Any) -> Grant:
        grant = self.granted(of, attempt, nonce=nonce, **more)
        assert self.gate(grant).word == "ok"
        return grant

    def opened(self, *jobs: str) -> OpenAnswer:
        """The result of a sweep of these jobs."""
        answer = self.ledger.ask(ListOpen(jobs=jobs))
        assert isinstance(answer, OpenAnswer)
        return answer

    def gate(self, grant: Grant, ahead_s: float = 0.0) -> Answer:
        return self.ask(Gate(grant=grant, ahead_s=ahead_s))

    def renew(self, grant: Grant, application_id: str = "") -> Answer:
        return self.ask(Renew(grant=grant, lease_s=LEASE_S, application_id=application_id, launched=False))

    def report(
        self, grant: Grant, state: str = "success", exit_code: int | None = 0, *, reason: str = "", final: bool = False
    ) -> Answer:
        return self.ask(Report(grant=grant, state=state, exit_code=exit_code, reason=reason, final=final))

    def commit(self, grant: Grant) -> Answer:
        return self.ask(Commit(grant=grant))

    def lapse(self, run: str) -> Watched:
        """Let a whole lease pass; returns the observation that a node then has."""
        row = self.ledger.run(run)
        assert row is not None
        self.clock.step(LEASE_S * 1.03)
        return Watched(token=row.token, beat=row.beat, unchanged_s=LEASE_S * 1.03)

    def state(self, run: str) -> str:
        row = self.ledger.run(run)
        return row.state if row else ""

    def reason(self, run: str) -> str:
        row = self.ledger.run(run)
        return row.reason if row else ""


def swept(nodes: Nodes, *jobs: str) -> OpenAnswer:
    """The first page of the open rows, with the states of these jobs."""
    return nodes.ledger.ask(ListOpen(jobs=jobs))


def row_of(nodes: Nodes, run: str = "sales#1") -> dict[str, Any]:
    """The columns of a run in the ledger."""
    row = nodes.ledger.run(run)
    assert row is not None
    return dict(zip(row.__slots__, row.values(), strict=True))
