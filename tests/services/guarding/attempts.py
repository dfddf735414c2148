"""A ledger with attempts of one run, whose driver is on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from system.lab.processes import until

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.requests import Cancel, Claim
from coordd.core.ledger.runner_requests import Gate, Grant, Registration, Renew, Report
from coordd.core.ledger.words import GRANTED, LOST, OK, RETRY, AttemptNumber, Policy
from coordd.services.guarding.answering import OWNER, Question

RUN = "sales#1"
APP = "application_1790000000000_0001"
POLICY = Policy(on_lost="hold", attempts=3, delay_s=0.0)


class Attempts:
    """The attempts of one run, one after the other."""

    def __init__(self, path: Path) -> None:
        self.ledger = SqliteLedger(f"sqlite:///{path}/ledger.db")
        self.grants: list[Grant] = []

    def begin(self, application: str = "") -> Grant:
        """The next attempt starts, and follows this application."""
        number = AttemptNumber(len(self.grants))
        of = Registration(RUN, "sales", "digest", POLICY, 0.0, scheduled=False)
        nonce = f"nonce-{number}"
        answer = self.ledger.ask(Claim(of=of, attempt=number, nonce=nonce, node=f"edge-{number + 1}", lease_s=60.0))
        assert answer.word == GRANTED, answer.word
        grant = Grant(run=RUN, attempt=number, token=answer.token, nonce=nonce)
        until(lambda: self.ledger.ask(Gate(grant=grant)).word == OK, why="it is not too early for another attempt")
        self.grants.append(grant)
        self.follow(application)
        return grant

    def follow(self, application: str) -> None:
        said = Renew(grant=self.grants[-1], lease_s=60.0, application_id=application, launched=True)
        assert self.ledger.ask(said).word == OK

    def lose(self, application: str = "") -> None:
        """The attempt's node dies; what it submitted may live."""
        self.report(LOST)
        row = self.ledger.run(RUN)
        assert row is not None
        self.report(RETRY, application)  # the look-up says so

    def report(self, state: str, application: str = "") -> None:
        said = Report(grant=self.grants[-1], state=state, application_id=application)
        assert self.ledger.ask(said).word == OK

    def cancel(self) -> None:
        self.ledger.ask(Cancel(run=RUN, by="a person"))

    @property
    def commit_token(self) -> int:
        row = self.ledger.run(RUN)
        assert row is not None
        return row.commit_token


def question(grant: Grant, **changes: Any) -> Question:
    usual = {"ask": OWNER, "id": "1", "application": APP, "holder": grant.token}
    about = {"run": grant.run, "attempt": grant.attempt, "token": grant.token}
    return Question(**{**usual, **about, **changes})
