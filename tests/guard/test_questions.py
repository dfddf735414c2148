"""Only a clear yes counts: every other answer, and none, means that this program is not the owner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordd import guard
from guard.conftest import Begin
from guard.fake_runner import GREETING, NONCE, FakeRow, mac, signed

SHORT_S = 0.3


def yes(question: dict[str, Any]) -> dict[str, Any]:
    return {"id": question["id"], "word": "ok", "token": 0, "why": ""}


def body_of(question: dict[str, Any]) -> bytes:
    return json.dumps(yes(question)).encode()


# Each of these is an "ok" in which something is wrong.
BAD: dict[str, Callable[[dict[str, Any]], bytes | None]] = {
    "nothing, and the connection stays open": lambda _: None,
    "nothing, and the connection is closed": lambda _: b"",
    "garbage": lambda _: b"\x00\xff garbage\n",
    "half": lambda q: signed(yes(q))[:-20],
    "all but its end": lambda q: signed(yes(q))[:-1],
    "another version": lambda q: signed(yes(q)).replace(b"coordd-guard 1", b"coordd-guard 2"),
    "no proof": lambda q: GREETING + b"0" * 64 + b" " + body_of(q) + b"\n",
    "the proof of a stranger": lambda q: signed(yes(q), "another nonce"),
    "the proof of a question": lambda q: GREETING + mac(NONCE, b"ask", body_of(q)) + b" " + body_of(q) + b"\n",
    "the answer to another question": lambda q: signed({**yes(q), "id": "0" * 32}),
    "the answer to no question": lambda q: signed({**yes(q), "id": None}),
    "an unknown word": lambda q: signed({**yes(q), "word": "OK"}),
    "no word": lambda q: signed({"id": q["id"], "token": 0, "why": ""}),
    "a token in text": lambda q: signed({**yes(q), "token": "5"}),
    "too long": lambda q: signed({**yes(q), "why": "x" * 20_000}),
    "nobody knows": lambda q: signed({**yes(q), "word": "unknown"}),
    "refused": lambda q: signed({**yes(q), "word": "refused"}),
    "refused, and nothing was understood": lambda q: signed({**yes(q), "id": None, "word": "refused"}),
    "stale": lambda q: signed({**yes(q), "word": "stale"}),
}


def test_the_owner_is_told_so_and_the_nonce_never_leaves_the_program(begin: Begin) -> None:
    runner = begin()

    assert guard.still_owner() is True
    (heard,) = runner.heard
    assert b'"owner"' in heard
    assert NONCE.encode() not in heard


def test_after_a_takeover_it_is_not_the_owner(begin: Begin, row: FakeRow, caplog: pytest.LogCaptureFixture) -> None:
    begin()
    row.token = 6

    assert guard.still_owner() is False
    assert "not the owner any more: a reason" in caplog.text


def test_who_owns_a_run_that_an_earlier_attempt_has_committed_is_its_owner(begin: Begin, row: FakeRow) -> None:
    begin(6)
    row.commit_token = 5

    assert guard.still_owner() is True


@pytest.mark.parametrize("how", BAD)
def test_anything_but_a_clear_yes_is_a_no(how: str, begin: Begin, tmp_path: Path) -> None:
    begin().reply = BAD[how]
    (tmp_path / "staged").write_text("new")
    (tmp_path / "target").write_text("old")

    assert guard.still_owner(SHORT_S) is False
    with pytest.raises(guard.LeaseLostError):
        guard.publish(str(tmp_path / "staged"), str(tmp_path / "target"), timeout_s=SHORT_S)
    with pytest.raises(guard.LeaseLostError):
        guard.transact(lambda _: pytest.fail("it was called"), timeout_s=SHORT_S)
    assert (tmp_path / "target").read_text() == "old"


def test_a_runner_that_is_gone_makes_no_owner(begin: Begin, tmp_path: Path) -> None:
    begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDD_GUARD", "abstract:coordd-guard/nobody")
        (tmp_path / "staged").write_text("new")

        assert guard.still_owner(SHORT_S) is False
        with pytest.raises(guard.LeaseLostError, match="does not answer"):
            guard.publish(str(tmp_path / "staged"), str(tmp_path / "target"), timeout_s=SHORT_S)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["RUN", "JOB", "ATTEMPT", "TOKEN", "NONCE", "GUARD"])
@pytest.mark.parametrize("value", [None, ""])
def test_without_its_environment_a_program_owns_nothing(
    name: str, value: str | None, begin: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin()
    if value is None:
        monkeypatch.delenv(f"COORDD_{name}")
    else:
        monkeypatch.setenv(f"COORDD_{name}", value)
    (tmp_path / "staged").write_text("new")

    assert guard.still_owner(SHORT_S) is False
    with pytest.raises(guard.LeaseLostError, match=f"COORDD_{name} not set"):
        guard.publish(str(tmp_path / "staged"), str(tmp_path / "target"), timeout_s=SHORT_S)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("COORDD_TOKEN", "5x"), ("COORDD_ATTEMPT", "first"), ("COORDD_GUARD", "tcp:10.0.0.1:7")]
)
def test_an_environment_that_cannot_be_understood_makes_no_owner(
    name: str, value: str, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin()
    monkeypatch.setenv(name, value)

    assert guard.still_owner(SHORT_S) is False


def test_it_asks_again_while_the_ledger_does_not_answer(begin: Begin, row: FakeRow, tmp_path: Path) -> None:
    runner = begin()
    told = iter(["unknown", "unknown"])

    def reply(question: dict[str, Any]) -> bytes:
        word = next(told, "")
        answer = {**yes(question), "word": word} if word else row.answer(question["ask"], 5)
        return signed({**answer, "id": question["id"]})

    runner.reply = reply
    (tmp_path / "staged").write_text("new")

    guard.publish(str(tmp_path / "staged"), str(tmp_path / "target"))

    assert len(runner.heard) == 3
    assert (tmp_path / "target").read_text() == "new"


def test_an_answer_that_is_read_long_after_its_question_counts_for_nothing(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP or a suspend in between. The clock goes on when the machine sleeps."""
    runner = begin()
    real, jump = guard._now, [0.0]
    monkeypatch.setattr(guard, "_now", lambda: real() + jump[0])

    def reply(question: dict[str, Any]) -> bytes:
        jump[0] = 3600.0
        return signed(yes(question))

    runner.reply = reply

    assert guard.still_owner() is False
