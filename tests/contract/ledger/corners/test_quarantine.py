"""Answers and restorations during a quarantine: the ledger may have lost its last writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.ledger_calls import LEASE_S, Nodes, grant_of
from support.stepped_redis import QUARANTINE_S

from contract.ledger.corners.both import A, B, C, D, of, restore
from coordd.core.ledger.requests import (
    Activate,
    Adopt,
    Cancel,
    Close,
    ListOpen,
    NewRules,
    PassOver,
    Register,
    Replay,
    Rerun,
    Settle,
    Settled,
)
from coordd.core.ledger.revision.text import definitions
from coordd.core.ledger.runner_requests import Commit, Renew, Restore
from coordd.core.ledger.words import AttemptNumber


def test_the_last_half_second_of_a_quarantine_is_one(nodes: Nodes, back: Callable[..., None]) -> None:
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    received, started = nodes.granted(of(nodes, A)), nodes.started(of(nodes, B))
    nodes.ask(Register(of=of(nodes, C)))
    newer = int((nodes.clock.wall + 1) * 1e6)
    nodes.ledger.ask(ListOpen(jobs=("other",)))
    nodes.clock.step(-100.0)
    back(QUARANTINE_S - 0.5)
    nodes.ledger.ask(ListOpen(jobs=("other",)))  # the ledger first hears of this job while its clock is ahead

    assert nodes.claim(of(nodes, D)).word == "recovering"
    assert nodes.ask(Settle(run=C, attempt=AttemptNumber(0), watched=None)).word == "recovering"
    assert nodes.ask(NewRules(known=-1.0)).word == "recovering"
    assert (
        nodes.ask(
            Activate(job="sales", digest="d2", schedule="s2", how="changed", by="ann", sequence=0, counts_from=0.0)
        ).word
        == "recovering"
    )
    adopted = Adopt(number=1, digest="r1", replaces=0, by="ann", jobs=definitions({"sales": ("d2", "s2")}))
    assert nodes.ask(adopted).word == "recovering"
    passed = PassOver(job="sales", digest="d1", identity_from=0.0, start_within_s=1.0, settled=Settled(1.0, "missed"))
    assert nodes.ask(passed).word == "recovering"
    replay = Replay(run=A, attempt=AttemptNumber(0), digest="d1", policy=of(nodes, A).policy.pack(), by="ann")
    assert nodes.ask(replay).word == "recovering"
    assert nodes.ask(Rerun(root=A, of=of(nodes, B))).word == "recovering"
    assert nodes.gate(started).word == "early"
    assert nodes.renew(received).word == "ok"
    assert nodes.gate(received).word == "early"
    assert nodes.ask(Renew(grant=grant_of(C, 0, newer, "w"), lease_s=LEASE_S, launched=False)).word == "recovering"
    assert nodes.ask(Commit(grant=grant_of("sales#9", 0, newer, "w"))).word == "recovering"
    nodes.ask(Register(of=nodes.of("sales@2025-01-29T07:00:00Z", digest="d1", due=nodes.clock.wall - 3600.0)))
    assert nodes.ask(Close(force=False, by="ann")).word == "recovering"
    assert restore(nodes, D, 0, newer).word == "ok"
    assert nodes.report(started).left_s == pytest.approx(0.5)


def test_a_claim_that_is_asked_again_in_a_quarantine_has_its_grant(nodes: Nodes, back: Callable[..., None]) -> None:
    nodes.granted(of(nodes, A))
    nodes.granted(of(nodes, B))
    back(1.0)

    assert nodes.claim(of(nodes, A)).word == "granted"
    assert nodes.claim(of(nodes, A), nonce="other").word == "recovering"
    assert nodes.claim(of(nodes, A), node="edge-9.9").word == "recovering"
    assert nodes.claim(of(nodes, A), 1).word == "recovering"
    assert nodes.claim(of(nodes, B, digest="d2")).word == "differs"


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_forgotten_tries_count_as_failures_first_and_never_more_than_there_were(
    nodes: Nodes, back: Callable[..., None], attempts: int
) -> None:
    policy: dict[str, Any] = {"attempts": attempts, "relaunches": 5, "delay_s": 0.0}
    grant = nodes.started(of(nodes, A, **policy))
    nodes.report(grant, "lost", reason="boom")
    second = nodes.started(of(nodes, A, **policy), 1, nonce="b")
    nodes.report(second, "failure", 3, reason="bang")
    newer = int((nodes.clock.wall + 10) * 1e6)
    back(1.0)

    restore(nodes, A, 4, newer, **policy)
    restore(nodes, B, 3, newer, **policy)
    restore(nodes, C, 0, newer, **policy)


def test_what_is_put_back_over_an_older_row_is_what_was_granted(nodes: Nodes, back: Callable[..., None]) -> None:
    nodes.ask(Register(of=of(nodes, A, digest="old", args='{"a": 1}')))
    held = nodes.started(of(nodes, B, attempts=3, delay_s=0.0))
    waits = nodes.started(of(nodes, C, attempts=3, delay_s=0.0))
    nodes.report(waits, "failure", 3, reason="boom")
    cancelled = nodes.started(of(nodes, D, attempts=3))
    nodes.ask(Cancel(run=D, by="ann"))
    newer = int((nodes.clock.wall + 10) * 1e6)
    back(1.0)

    for run, attempt in ((A, 0), (B, 1), (C, 2), (C, 1), (D, 0)):
        restore(nodes, run, attempt, newer, attempts=3, delay_s=0.0)
        restore(nodes, run, attempt, newer, attempts=3, delay_s=0.0)  # the same request again
    for grant in (held, waits, cancelled):
        restore(nodes, grant.run, grant.attempt, grant.token)
    restore(nodes, "sales#5", 0, newer, "received")
    restore(nodes, "sales#5", 0, newer, "started")
    restore(nodes, "sales#5", 0, newer, "received")


@pytest.mark.parametrize("said", ["success", "failure", "revoked", "lost"])
def test_an_end_is_put_back_on_every_state(nodes: Nodes, back: Callable[..., None], said: str) -> None:
    newer = int((nodes.clock.wall + 10) * 1e6)
    received, started = nodes.granted(of(nodes, A)), nodes.started(of(nodes, B, on_lost="hold"))
    unknown = nodes.started(of(nodes, C, on_lost="hold"))
    nodes.report(unknown, "lost")
    nodes.ask(Cancel(run=B, by="ann"))
    back(1.0)

    for grant in (received, started, unknown):
        for _ in range(2):
            nodes.ask(
                Restore(
                    of=of(nodes, grant.run),
                    grant=grant,
                    node="edge-1.10",
                    lease_s=LEASE_S,
                    state=said,
                    exit_code=3,
                    reason="why",
                    application_id="",
                    final=True,
                )
            )
    restore(nodes, D, 0, newer, said)
    restore(nodes, D, 0, newer, said)


@pytest.mark.parametrize("said", ["received", "lost"])
@pytest.mark.parametrize("state", ["started", "unknown"])
def test_an_attempt_that_perhaps_was_not_launched_replaces_none_that_was(
    nodes: Nodes, back: Callable[..., None], state: str, said: str
) -> None:
    """Also under a newer token: the ledger went back and granted the number again."""
    grant = nodes.started(of(nodes, A, on_lost="hold"))
    if state == "unknown":
        nodes.report(grant, "lost")
    back(1.0)

    assert restore(nodes, A, 0, grant.token + 1, said).word == "stale"
    assert nodes.state(A) == state


@pytest.mark.parametrize("said", ["received", "started", "success", "failure", "revoked", "lost"])
def test_an_older_attempt_that_was_launched_keeps_a_run_of_a_job_that_holds_such_runs_from_more(
    nodes: Nodes, back: Callable[..., None], said: str
) -> None:
    newer = int((nodes.clock.wall + 10) * 1e6)
    back(1.0)
    policy: dict[str, Any] = {"on_lost": "hold", "attempts": 3, "relaunches": 2}
    restore(nodes, A, 1, newer, **policy)

    assert restore(nodes, A, 0, newer - 1, said, **policy).word == "stale"

    row = nodes.ledger.run(A)
    assert row is not None
    assert row.policy.startswith("hold allow 1 0" if said in ("started", "lost") else "hold allow 3 2")


@pytest.mark.parametrize("ago_s", [0.0, QUARANTINE_S - 0.5])
@pytest.mark.parametrize("said", ["success", "failure", "lost", "retry", "revoked"])
def test_who_was_past_a_gate_that_the_ledger_forgot_reports_its_end(
    nodes: Nodes, back: Callable[..., None], said: str, ago_s: float
) -> None:
    grants = [nodes.granted(of(nodes, run, on_lost=on_lost)) for run, on_lost in ((A, "hold"), (B, "relaunch"))]
    back(ago_s)

    for grant in (*grants, *grants):
        nodes.report(grant, said, 3, reason="why")


@pytest.mark.parametrize("says", ["gate", "renew", "report", "commit"])
def test_the_number_of_a_replay_that_the_ledger_forgot_is_not_given_again(
    nodes: Nodes, back: Callable[..., None], says: str
) -> None:
    """A run had failed, a person had it replayed, and the replay runs. The ledger went back to the failure."""
    nodes.report(nodes.started(of(nodes, A)), "failure", 1)
    newer = int((nodes.clock.wall + 1) * 1e6)
    forgotten = grant_of(A, 1, newer, "w")
    back()

    def told() -> str:
        if says == "commit":
            return nodes.ask(Commit(grant=forgotten)).word
        return str(getattr(nodes, says)(forgotten).word)

    assert told() == "recovering"
    assert restore(nodes, A, 1, newer).word == "stale"  # what is over stays so
    assert told() in ("stale", "lost", "ok")
    back(QUARANTINE_S)  # and that is over
    packed = of(nodes, A).policy.pack()
    again = nodes.ask(Replay(run=A, attempt=AttemptNumber(0), digest="d1", policy=packed, by="ann"))
    assert (again.word, again.attempt) == ("ok", 2)
