"""Requests to the ledger: each answer goes once to the part that asked. Only open requests are stored."""

from __future__ import annotations

from functools import partial

import pytest
from support.ledger_calls import grant_of
from support.small_cluster import Lone

from coordd.core import context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Commit
from coordd.core.ledger.words import OK, STALE
from coordd.core.ready import LedgerRequest, Now

COMMIT = Commit(grant=grant_of("sales#1", 0, 7, "n"))


class Asking:
    """A node that asks the ledger, and the answers that it got."""

    def __init__(self) -> None:
        self.lone = Lone()
        self.heard: list[tuple[str, str, float]] = []

    def ask(self, name: str) -> LedgerRequest:
        self.lone.node.ctx.ask(COMMIT, partial(self._answered, name))
        self.lone.take()
        return self.lone.asked[-1]

    def answer(self, asked: LedgerRequest, word: str) -> None:
        self.lone.do(self.lone.node.ledger_answered, asked.id, Answer(word), 5.0)

    def _answered(self, name: str, answer: Answer, sent_at: float, _now: Now) -> None:
        self.heard.append((name, answer.word, sent_at))


def test_an_answer_goes_to_whoever_asked_and_only_once() -> None:
    asking = Asking()
    first, second = asking.ask("first"), asking.ask("second")

    for asked in (second, first, second):
        asking.answer(asked, OK)

    assert asking.heard == [("second", OK, 5.0), ("first", OK, 5.0)]
    assert asking.lone.node.ctx._waiting == {}


def test_of_too_many_questions_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "WAITING_MAX", 2)
    asking = Asking()
    asked = [asking.ask(str(number)) for number in range(3)]

    for one in asked:
        asking.answer(one, STALE)

    assert [name for name, _, _ in asking.heard] == ["1", "2"]


def test_nobody_need_wait_for_an_answer() -> None:
    asking = Asking()
    asking.lone.node.ctx.ask(COMMIT)
    asking.lone.take()

    asking.answer(asking.lone.asked[-1], OK)

    assert (asking.heard, asking.lone.node.ctx._waiting) == ([], {})
