"""An attempt whose runner remembers inputs in a ledger in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from guard.fake_runner import JOB, RUN, FakeRow, FakeRunner, signed
from support.memory import MemoryLedger

from coordd.core.ledger.inputs.memory import Told, tell, told_of
from coordd.core.ledger.rows import LedgerTime


class Attempt:
    """This process is its program. ``said``: what it said of its inputs, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = MemoryLedger(lambda: LedgerTime(time.time(), time.monotonic()))
        self.said: list[str] = []
        self.word = "ok"
        self.runner = FakeRunner(FakeRow(5), 5)
        self.runner.reply = self._reply
        for name, value in self.runner.environ.items():
            monkeypatch.setenv(name, value)

    def _reply(self, question: dict[str, Any]) -> bytes:
        told = told_of(question)
        assert isinstance(told, Told), told
        self.said.append(told.what)
        if self.word != "ok":
            return signed({"id": question["id"], "word": self.word, "token": 0, "why": "as the test says"})
        answer = tell(self.ledger, JOB, RUN, told, time.time())
        return signed({"id": question["id"], "word": answer.word, "token": answer.token, "why": answer.by})


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    made = Attempt(monkeypatch)
    yield made
    made.runner.close()
