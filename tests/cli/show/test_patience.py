"""How long coordctl waits for an answer: a change may take longer, and a check as long as its timeout."""

from __future__ import annotations

import pytest
from support.fake_daemon import FakeDaemon

from coordd.cli.client import ANSWER_S, CHANGE_S, PATIENCE_S, Client
from coordd.config.checks.reading import TIMEOUT_MAX_S
from coordd.errors import UnavailableError
from coordd.services.control.methods import Methods

# Called by other programs, or with a time of its own, or by another name; and one that only reads, for operators.
NOT_OURS = ("exec", "ledger.import", "ledger.accept_", "config.show")


def test_every_change_has_the_time_that_the_help_promises() -> None:
    table = Methods.table(Methods.__new__(Methods))
    changes = {name for name, method in table.items() if method.may_change and not name.startswith(NOT_OURS)}
    assert {name for name in changes if PATIENCE_S.get(name, ANSWER_S) < CHANGE_S} == set()
    assert set(PATIENCE_S) <= set(table)


def test_a_check_may_take_its_whole_timeout() -> None:
    assert PATIENCE_S["check.run"] > TIMEOUT_MAX_S


@pytest.mark.parametrize("method", ["check.run", "pool.set"])
def test_the_time_is_the_methods(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    daemon.answers[method] = lambda _params: b""  # it never answers
    monkeypatch.setitem(PATIENCE_S, method, 0.2)
    with Client(daemon.path) as client, pytest.raises(UnavailableError, match=rf"{method} within 0\.2 s"):
        client.call(method)
