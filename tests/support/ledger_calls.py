"""Calls to a ledger as nodes make them, under a clock that only moves when told."""

from __future__ import annotations

from typing import Any

from coordd.core.ledger.answers import Answer, OpenAnswer
from coordd.core.ledger.requests import Claim, Registration
from coordd.core.ledger.rows import LedgerTime, Policy
from coordd.ports import Ledger

# 2025-01-29T08:00:00Z; nothing depends on it.
EPOCH = 1_738_137_600.0
LEASE_S = 60.0


class FakeClock:
    """The ledger's clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall = EPOCH
        self.lease = 1000.0
        self.boot = "boot-1"
        self.recovering_s = 0.0

    def __call__(self) -> LedgerTime:
        return LedgerTime(self.wall, self.lease, self.boot, self.recovering_s)

    def step(self, seconds: float) -> None:
        """Time passes, on both clocks."""
        self.wall += seconds
        self.lease += seconds


class Grant:
    """One grant: the first arguments of gate, renew, report and commit."""

    def __init__(self, run: str, answer: Answer, nonce: str) -> None:
        self.run, self.attempt, self.token, self.nonce = run, answer.attempt, answer.token, nonce

    @property
    def key(self) -> tuple[str, int, int, str]:
        return (self.run, self.attempt, self.token, self.nonce)


class Nodes:
    """Calls as nodes make them, over one ledger."""

    def __init__(self, ledger: Ledger, clock: FakeClock) -> None:
        self.ledger = ledger
        self.clock = clock

    def of(self, run: str = "sales#1", **changes: Any) -> Registration:
        """What a node knows of a run: triggered now, unless it is named job@… (then scheduled for now)."""
        policy = Policy(**{name: changes.pop(name) for name in Policy.__slots__ if name in changes})
        job = run.partition("#")[0].partition("@")[0]
        fire_at = changes.pop("fire_at", self.clock.wall)
        digest = changes.pop("digest", "d1")
        return Registration(run, job, digest, policy, fire_at, scheduled="@" in run, **changes)

    def ask(self, op: str, *args: Any) -> Answer:
        answer = self.ledger.call(op, *args)
        assert isinstance(answer, Answer)
        return answer

    def claim(
        self,
        of: Registration,
        attempt: int = 0,
        *,
        nonce: str = "n1",
        node: str = "edge-1.10",
        watched: tuple[int, int, float] | None = None,
        settled_to: float = 0.0,
    ) -> Answer:
        return self.ask("claim", Claim(of, attempt, nonce, node, LEASE_S, watched, settled_to))

    def granted(self, of: Registration, attempt: int = 0, *, nonce: str = "n1", **more: Any) -> Grant:
        answer = self.claim(of, attempt, nonce=nonce, **more)
        assert answer.word == "granted", answer
        return Grant(of.run, answer, nonce)

    def started(self, of: Registration, attempt: int = 0, *, nonce: str = "n1", **more: Any) -> Grant:
        grant = self.granted(of, attempt, nonce=nonce, **more)
        assert self.gate(grant).word == "ok"
        return grant

    def opened(self, *jobs: str) -> OpenAnswer:
        """What a sweep of these jobs finds."""
        answer = self.ledger.call("open", jobs)
        assert isinstance(answer, OpenAnswer)
        return answer

    def gate(self, grant: Grant) -> Answer:
        return self.ask("gate", *grant.key)

    def renew(self, grant: Grant, application_id: str = "") -> Answer:
        return self.ask("renew", *grant.key, LEASE_S, application_id, False)

    def report(
        self, grant: Grant, state: str = "success", exit_code: int | None = 0, *, reason: str = "", final: bool = False
    ) -> Answer:
        return self.ask("report", *grant.key, state, exit_code, reason, "", final)

    def commit(self, grant: Grant) -> Answer:
        return self.ask("commit", *grant.key)

    def lapse(self, run: str) -> tuple[int, int, float]:
        """Let a whole lease pass; what a node has then watched."""
        row = self.ledger.run(run)
        assert row is not None
        self.clock.step(LEASE_S * 1.03)
        return (row.token, row.beat, LEASE_S * 1.03)

    def state(self, run: str) -> str:
        row = self.ledger.run(run)
        return row.state if row else ""

    def reason(self, run: str) -> str:
        row = self.ledger.run(run)
        return row.reason if row else ""
