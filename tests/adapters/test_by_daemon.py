"""A holder's requests through its daemon, and a client that must start fast."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.fake_daemon import DEADLINE_S, FakeDaemon, refusal

from coordd.adapters.control_line import ControlLine
from coordd.adapters.ledger.by_daemon import LedgerByDaemon
from coordd.core.ledger.requests import AcceptEpoch
from coordd.core.ledger.runner_requests import Gate, Grant, Registration, Renew, Report, Restore
from coordd.core.ledger.words import AttemptNumber, Policy, Token
from coordd.errors import LocalProtocolError, RemoteProtocolError, UnavailableError

GRANT = Grant(run="j#1", attempt=AttemptNumber(2), token=Token(7), nonce="n")
OF = Registration("j#1", "j", "", Policy(), 5.0, scheduled=False)
NAMED = {"run": "j#1", "attempt": 2, "token": 7, "nonce": "n"}


@pytest.mark.parametrize(
    ("request_", "method", "fields"),
    [
        (Gate(grant=GRANT), "exec.gate", {}),
        (Renew(grant=GRANT, lease_s=9.0, launched=True), "exec.renew", {"launched": True}),
        (
            Report(grant=GRANT, state="failure", exit_code=3, reason="so"),
            "exec.report",
            {"state": "failure", "exit_code": 3, "reason": "so"},
        ),
        (Restore(of=OF, grant=GRANT, node="n", lease_s=9.0, state="started"), "exec.restore", {"state": "started"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_is_a_call(
    daemon: FakeDaemon, request_: Gate | Renew | Report | Restore, method: str, fields: dict[str, object]
) -> None:
    daemon.answers[method] = {"word": "ok", "left_s": 1.5, "in_s": 0.5, "state": "started"}
    ledger = LedgerByDaemon(f"control:{daemon.path}", timeout_s=5.0, about={"run": "j#1", "lease": 9.0})
    answer = ledger.ask(request_)
    assert (answer.word, answer.left_s, answer.in_s, answer.state) == ("ok", 1.5, 0.5, "started")
    assert daemon.asked == [(method, {**NAMED, "lease": 9.0, **fields})]
    assert ledger._line._sock is None, "a place on the socket is for one request"


def test_a_report_does_not_disturb_a_renewal_that_is_under_way(daemon: FakeDaemon) -> None:
    """A runner renews from a thread, and reports the end of its program meanwhile."""
    asked, let_go = threading.Event(), threading.Event()
    told = {"word": "ok", "left_s": 1.5, "in_s": 0.0, "state": ""}

    def slow(_params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        assert let_go.wait(DEADLINE_S)
        return {**told, "state": "renewed"}

    daemon.answers |= {"exec.renew": slow, "exec.report": {**told, "state": "reported"}}
    ledger = LedgerByDaemon(f"control:{daemon.path}", timeout_s=DEADLINE_S, about={"run": "j#1"})
    said: dict[str, str] = {}

    def ask(name: str, request: Renew | Report) -> None:
        said[name] = ledger.ask(request).state

    renewal = threading.Thread(target=ask, args=("renewal", Renew(grant=GRANT, lease_s=9.0, launched=True)))
    report = threading.Thread(target=ask, args=("report", Report(grant=GRANT, state="success", exit_code=0)))
    renewal.start()
    assert asked.wait(DEADLINE_S)
    report.start()
    report.join(0.2)  # it waits for its turn
    let_go.set()
    renewal.join(DEADLINE_S)
    report.join(DEADLINE_S)

    assert said == {"renewal": "renewed", "report": "reported"}


def test_a_turn_that_does_not_come_is_no_answer(daemon: FakeDaemon) -> None:
    ledger = LedgerByDaemon(f"control:{daemon.path}", timeout_s=0.05, about={"run": "j#1"})
    ledger._turn.acquire()
    with pytest.raises(UnavailableError, match="no turn"):
        ledger.ask(Gate(grant=GRANT))
    assert daemon.asked == []


def test_without_an_answer_nobody_knows(daemon: FakeDaemon) -> None:
    ledger = LedgerByDaemon(f"control:{daemon.path}", timeout_s=0.2, about={"run": "j#1"})
    for answer in (refusal("try_later"), None, b""):
        daemon.answers["exec.gate"] = lambda _params, answer=answer: answer
        with pytest.raises(UnavailableError):
            ledger.ask(Gate(grant=GRANT))
    with pytest.raises(LocalProtocolError):
        ledger.ask(AcceptEpoch())


@pytest.mark.parametrize("answer", [b"no json\n", b"[1]\n", b'{"id":1,"error":7}\n'])
def test_what_is_not_coordd_is_said(daemon: FakeDaemon, answer: bytes) -> None:
    daemon.answers["ping"] = lambda _params: answer
    line = ControlLine(daemon.path, 5.0)
    with pytest.raises(RemoteProtocolError):
        line.call("ping", {})
    line.close()
