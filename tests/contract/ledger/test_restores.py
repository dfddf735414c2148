"""Every ledger that can lose writes: a witness restores attempts in a quarantine, unless the ledger knows better."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_calls import LEASE_S, FakeClock, Nodes, granted_as
from support.stepped_redis import SteppedLedger

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import AcceptEpoch, Cancel
from coordd.core.ledger.runner_requests import Grant, Restore
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.ports import Ledger

RUN = "sales#1"


@pytest.fixture(params=["memory", "redis"])
def nodes(request: pytest.FixtureRequest, make_ledger: Callable[[str], Ledger], clock: FakeClock) -> Nodes:
    return Nodes(make_ledger(request.param), clock)


def go_back(nodes: Nodes) -> None:
    """The ledger may have lost its last writes: a quarantine begins."""
    if isinstance(nodes.ledger, SteppedLedger):
        nodes.ledger.read([("HSET", nodes.ledger.key("meta"), "epoch", "of another server")])
    else:
        nodes.clock.recovering_s = 70.0
    assert nodes.claim(nodes.of("other#1")).word == "recovering"


def restore(
    nodes: Nodes, grant: Grant, state: str, code: int | None = None, *, final: bool = False, on_lost: str = "relaunch"
) -> Answer:
    of = nodes.of(grant.run, on_lost=on_lost, attempts=2, delay_s=5.0)
    return nodes.ask(
        Restore(
            of=of,
            grant=grant,
            node="edge-1.10",
            lease_s=LEASE_S,
            state=state,
            exit_code=code,
            reason="said so",
            application_id="app_7",
            final=final,
        )
    )


@pytest.mark.parametrize(
    ("said", "code", "final", "state", "failures"),
    [
        ("received", None, False, "received", 0),
        ("started", None, False, "started", 0),
        ("success", 0, False, "success", 0),
        ("failure", 3, False, "retry", 1),
        ("failure", 3, True, "failure", 1),
        ("revoked", None, False, "revoked", 0),
        ("lost", None, False, "retry", 0),
    ],
)
@pytest.mark.parametrize("known", ["forgotten", "granted", "started"])
def test_what_was_granted_is_put_back_as_the_witness_saw_it(
    nodes: Nodes, known: str, said: str, code: int | None, final: bool, state: str, failures: int
) -> None:
    grant = granted_as(RUN, Answer("granted", token=int(nodes.clock.wall * 1e6)), "n1")
    if known != "forgotten":
        grant = (nodes.granted if known == "granted" else nodes.started)(nodes.of(attempts=2, delay_s=5.0))
    go_back(nodes)
    answer = restore(nodes, grant, said, code, final=final)
    row = nodes.ledger.run(RUN)
    assert row is not None
    expected = "started" if known == "started" and said == "received" else state
    assert (answer.word, answer.state, row.state, row.failures) == ("ok", expected, expected, failures)
    assert (row.token, row.nonce) == (grant.token, grant.nonce)
    first = nodes.ledger.attempts(RUN)[0]
    ended = {"retry": said}.get(expected, expected)
    assert (first.state, first.exit_code) == (ended, code if ended == "failure" or said == "success" else None)
    assert restore(nodes, grant, said, code, final=final).word == "ok", "a lost reply is asked again"
    assert nodes.state(RUN) == expected


@pytest.mark.parametrize(("token", "nonce"), [(1, "n1"), (0, "other"), (-1, "n1")])
def test_a_grant_beside_the_one_that_is_known_is_stale_or_newer(nodes: Nodes, token: int, nonce: str) -> None:
    grant = nodes.started(nodes.of())
    go_back(nodes)
    other = granted_as(RUN, Answer("granted", token=grant.token + token), nonce)
    answer = restore(nodes, other, "success", 0)
    if token > 0:  # granted after everything that the ledger remembers
        assert (answer.word, nodes.state(RUN)) == ("ok", "success")
    else:
        assert (answer.word, answer.state, nodes.state(RUN)) == ("stale", "started", "started")


def test_nothing_is_put_back_without_a_quarantine_nor_over_what_has_ended(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of())
    assert restore(nodes, grant, "success", 0).word == "stale"
    nodes.report(grant)
    go_back(nodes)
    newer = granted_as(RUN, Answer("granted", token=grant.token + 5, attempt=1), "n2")
    assert restore(nodes, newer, "started").word == "stale"
    assert restore(nodes, grant, "success", 0).word == "ok"
    assert nodes.state(RUN) == "success"


def test_tries_before_the_restored_one_count_within_what_the_job_allows(nodes: Nodes) -> None:
    go_back(nodes)
    third = granted_as(RUN, Answer("granted", token=int(nodes.clock.wall * 1e6), attempt=3), "n3")
    assert restore(nodes, third, "started").word == "ok"
    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.attempt, row.failures, row.relaunches) == (3, 1, 2)


def test_an_attempt_that_still_seemed_to_run_is_closed_by_a_newer_one(nodes: Nodes) -> None:
    nodes.started(nodes.of())
    go_back(nodes)
    newer = granted_as(RUN, Answer("granted", token=int(nodes.clock.wall * 1e6) + 9, attempt=1), "n2")
    assert restore(nodes, newer, "received").word == "ok"
    assert [(one.attempt, one.state) for one in nodes.ledger.attempts(RUN)] == [(0, "lost"), (1, "received")]


@pytest.mark.parametrize("state", ["started", "lost"])
@pytest.mark.parametrize("newer_first", [True, False])
def test_a_number_that_was_given_under_an_older_token_is_not_given_again(
    nodes: Nodes, state: str, newer_first: bool
) -> None:
    """The ledger went back twice. Nobody told it of attempts 1 to 3 the first time, so 1 was given once more."""
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    older = granted_as(RUN, Answer("granted", token=token, attempt=3), "n1")
    newer = granted_as(RUN, Answer("granted", token=token + 9, attempt=1), "n2")
    if newer_first:
        assert restore(nodes, newer, "started").word == "ok"
        assert restore(nodes, older, state).word == "stale"
        assert restore(nodes, older, state).word == "ok", "it is known now"
        restore(nodes, granted_as(RUN, Answer("granted", token=token + 3, attempt=2), "n3"), state)
    else:
        restore(nodes, granted_as(RUN, Answer("granted", token=token - 3, attempt=2), "n3"), "lost")
        assert restore(nodes, older, "started").word == "ok"
        assert restore(nodes, newer, "started").word == "ok"
    assert restore(nodes, newer, "lost").word == "ok"

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt) == ("retry", 4)


@pytest.mark.parametrize("state", ["received", "lost"])
def test_a_number_that_was_given_under_an_older_token_is_not_the_next_one(nodes: Nodes, state: str) -> None:
    """As above, but the run waits for its retry already."""
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    newer = granted_as(RUN, Answer("granted", token=token + 9, attempt=0), "n2")
    assert restore(nodes, newer, "lost").word == "ok"
    older = granted_as(RUN, Answer("granted", token=token, attempt=1), "n1")
    assert restore(nodes, older, state).word == "stale"

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt) == ("retry", 2)
    assert [(one.attempt, one.node, one.state) for one in nodes.ledger.attempts(RUN)][1:] == [(1, "edge-1.10", "lost")]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("state", ["started", "success"])
@pytest.mark.parametrize("launched_first", [True, False])
def test_an_attempt_that_was_launched_comes_before_a_retry_of_one_that_perhaps_was_not(
    nodes: Nodes, number: int, state: str, launched_first: bool
) -> None:
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    launched = granted_as(RUN, Answer("granted", token=token, attempt=number), "n1")
    lost = granted_as(RUN, Answer("granted", token=token + 9, attempt=0), "n2")
    told = [(launched, state), (lost, "lost")]
    for grant, what in told if launched_first else told[::-1]:
        restore(nodes, grant, what)
    assert restore(nodes, lost, "lost").word == "stale" or number == 1, "also when it is told again"

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt, row.token) == (state, number, token)


@pytest.mark.parametrize("state", ["received", "lost"])
def test_a_retry_does_not_give_way_to_a_newer_grant_of_a_number_that_is_recorded(nodes: Nodes, state: str) -> None:
    """The ledger gave the number twice; one of the two is over, and the other one was perhaps never launched."""
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    lost = granted_as(RUN, Answer("granted", token=token, attempt=0), "n1")
    assert restore(nodes, lost, "lost").word == "ok"
    again = granted_as(RUN, Answer("granted", token=token + 9, attempt=0), "n2")
    assert restore(nodes, again, state).word == "stale"

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt, row.token) == ("retry", 1, token)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("older_first", [True, False])
def test_an_attempt_that_was_launched_comes_before_one_that_was_not(
    nodes: Nodes, number: int, older_first: bool
) -> None:
    """The ledger went back twice. Nobody told it of the launched attempt the first time, so it granted 0 once more."""
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    launched = granted_as(RUN, Answer("granted", token=token, attempt=number), "n1")
    waits = granted_as(RUN, Answer("granted", token=token + 9, attempt=0), "n2")
    for grant, state in [(launched, "started"), (waits, "received")][:: 1 if older_first else -1]:
        said = restore(nodes, grant, state)
        if grant is waits:
            assert (said.word, said.state) == (("stale", "started") if older_first else ("ok", "received"))
        else:
            assert (said.word, said.state) == ("ok", "started")

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt, row.token, row.nonce) == ("started", number, token, "n1")
    assert nodes.renew(launched).word == "ok"
    assert restore(nodes, launched, "success", 0).word == "ok"
    assert nodes.state(RUN) == "success"
    assert nodes.gate(waits).word == "stale"


def test_an_attempt_that_was_launched_gives_way_to_a_later_number_and_to_a_newer_launch(nodes: Nodes) -> None:
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    first = granted_as(RUN, Answer("granted", token=token, attempt=1), "n1")
    assert restore(nodes, first, "started").word == "ok"
    again = granted_as(RUN, Answer("granted", token=token + 3, attempt=0), "n2")
    assert restore(nodes, again, "started").word == "ok"
    later = granted_as(RUN, Answer("granted", token=token + 9, attempt=1), "n3")
    assert restore(nodes, later, "received").word == "ok"
    assert restore(nodes, granted_as(RUN, Answer("granted", token=token + 1, attempt=0), "n4"), "lost").word != "ok"

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt, row.nonce) == ("received", 1, "n3")


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("held_first", [True, False])
@pytest.mark.parametrize(
    ("end", "code", "state"),
    [("lost", None, "unknown"), ("failure", 3, "failure"), ("retry", None, "lost"), ("success", 0, "success")],
)
def test_a_newer_attempt_beside_a_held_one_with_an_unknown_end_is_not_tried_again(
    nodes: Nodes, number: int, held_first: bool, end: str, code: int | None, state: str
) -> None:
    """The ledger went back twice, and the job was changed from `hold` to `relaunch` in between."""
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    held = granted_as(RUN, Answer("granted", token=token, attempt=1), "n1")
    newer = granted_as(RUN, Answer("granted", token=token + 9, attempt=number), "n2")
    if held_first:
        restore(nodes, held, "lost", on_lost="hold")
        assert nodes.state(RUN) == "unknown"
    assert restore(nodes, newer, "started").word == "ok"
    if not held_first:
        restore(nodes, held, "lost", on_lost="hold")
    assert nodes.state(RUN) == "started"

    assert nodes.report(newer, end, code).word == "ok"
    assert nodes.state(RUN) == state


def test_a_run_that_waits_for_a_retry_is_held_once_a_held_attempt_with_an_unknown_end_is_told_of(nodes: Nodes) -> None:
    go_back(nodes)
    token = int(nodes.clock.wall * 1e6)
    newer = granted_as(RUN, Answer("granted", token=token + 9, attempt=0), "n2")
    assert restore(nodes, newer, "failure", 3).state == "retry"
    held = granted_as(RUN, Answer("granted", token=token, attempt=1), "n1")
    assert restore(nodes, held, "lost", on_lost="hold").word == "ok"
    assert restore(nodes, held, "lost", on_lost="hold").word == "ok", "a lost reply is asked again"

    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.state, row.attempt, row.token) == ("unknown", 1, token)


def test_a_cancellation_outlives_what_is_put_back(nodes: Nodes) -> None:
    nodes.started(nodes.of())
    nodes.ask(Cancel(run=RUN, by="ann"))
    go_back(nodes)
    newer = granted_as(RUN, Answer("granted", token=int(nodes.clock.wall * 1e6) + 9, attempt=1), "n2")
    restore(nodes, newer, "started")
    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.cancel, row.reason) == (1, "cancelled by ann")
    assert nodes.renew(newer).word == "cancel"


def test_a_restored_attempt_takes_its_slot_again(nodes: Nodes) -> None:
    limited = nodes.of(RUN, overlap="allow", limits="slots:pool/heavy=1")
    go_back(nodes)
    grant = Grant(run=RUN, attempt=AttemptNumber(0), token=Token(7), nonce="n1")

    nodes.ask(
        Restore(
            of=limited, grant=grant, node="edge-1.10", lease_s=LEASE_S, state="started", exit_code=None, reason="",
            application_id="", final=False,
        )
    )  # fmt: skip
    nodes.clock.recovering_s = 0.0
    if isinstance(nodes.ledger, SteppedLedger):
        nodes.ask(AcceptEpoch())

    assert nodes.claim(nodes.of("stock#1", overlap="allow", limits="slots:pool/heavy=1")).word == "limited"
