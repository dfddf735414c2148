"""A driver on its node: guard.py asks the runner for it, and a missing or a bad answer makes no owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from coordd import guard
from coordd.core.jobs.owner import guard_command
from guard.conftest import Begin
from guard.fake_runner import RUN, FakeRow, signed
from guard.java.driver import JAVA_LIMIT_S, ask, started
from guard.test_questions import BAD, yes

COMMAND = guard_command(sys.executable, os.path.dirname(guard.__file__))


def test_the_owner_passes_the_gate_and_writes_under_its_commit(begin: Begin, row: FakeRow, classes: Path) -> None:
    environ = {**begin().environ, **COMMAND}

    assert ask(classes, "gate", "20", environ=environ).stdout == "it went on\n"
    assert ask(classes, "owner", "20", environ=environ).stdout == "true\n"
    assert row.commit_token == 0
    done = ask(classes, "transact", "20", environ=environ)

    assert done.stdout == f"coordd:{RUN} {RUN} 0 5 1\n", done.stderr
    assert row.commit_token == 5


def test_after_a_takeover_nothing_begins_and_nothing_is_written(begin: Begin, row: FakeRow, classes: Path) -> None:
    environ = {**begin().environ, **COMMAND}
    row.token = 6

    gate = ask(classes, "gate", "20", environ=environ)
    owner = ask(classes, "owner", "20", environ=environ)
    write = ask(classes, "transact", "20", environ=environ)

    assert (gate.returncode, gate.stdout) == (1, "")
    assert f"coordd.guard: {RUN}, attempt 0 must not begin any more" in gate.stderr
    assert gate.stderr.rstrip().endswith("The program ends before it has done anything")
    assert owner.stdout == "false\n"
    assert "a reason" in owner.stderr
    assert (write.returncode, write.stdout) == (1, "")
    assert "LeaseLostException" in write.stderr
    assert row.commit_token == 0


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("nothing, and the connection stays open", "no answer in time"),
        ("no proof", "its answer has no proof of the nonce"),
        ("the answer to another question", "its answer is to another question"),
        ("refused", "the runner refuses the question"),
    ],
)
def test_a_bad_answer_of_the_runner_is_a_no(how: str, why: str, begin: Begin, classes: Path) -> None:
    runner = begin()
    runner.reply = BAD[how]

    done = ask(classes, "owner", "5", environ={**runner.environ, **COMMAND})
    assert done.stdout == "false\n"
    assert why in done.stderr


def test_a_driver_waits_at_the_gate_while_nobody_can_tell(begin: Begin, classes: Path) -> None:
    runner = begin()
    words = iter(["unknown", "unknown"])
    runner.reply = lambda question: signed({**yes(question), "word": next(words, "ok")})

    assert ask(classes, "gate", "60", environ={**runner.environ, **COMMAND}).stdout == "it went on\n"
    assert len(runner.heard) == 3


def test_an_answer_that_is_read_long_after_its_question_counts_for_nothing(begin: Begin, classes: Path) -> None:
    """The driver alone stands still, and the program that asks for it hears yes meanwhile."""
    runner = begin()
    driver: list[subprocess.Popen[str]] = []

    def reply(question: dict[str, Any]) -> bytes:
        os.kill(driver[0].pid, signal.SIGSTOP)
        threading.Timer(5.0, os.kill, (driver[0].pid, signal.SIGCONT)).start()
        return signed(yes(question))

    runner.reply = reply
    driver.append(started(classes, "owner", "4", environ={**runner.environ, **COMMAND}))
    said, log = driver[0].communicate(timeout=JAVA_LIMIT_S)

    assert said == "false\n"
    assert "no answer in time" in log
    assert len(runner.heard) == 1


def test_what_is_missing_is_named_and_makes_no_owner(begin: Begin, classes: Path) -> None:
    runner = begin()
    environ = runner.environ
    alone = ask(classes, "gate", "5")
    old = ask(classes, "gate", "5", environ=environ)
    gone = ask(classes, "gate", "5", environ={**environ, "COORDD_GUARD_COMMAND": "/absent/python guard.py"})

    assert [one.returncode for one in (alone, old, gone)] == [1, 1, 1]
    assert "COORDD_RUN, COORDD_JOB, COORDD_ATTEMPT" in alone.stderr
    assert "COORDD_GUARD_COMMAND not set" in old.stderr
    assert "/absent/python" in gone.stderr
    assert len(runner.heard) == 0


def test_a_path_with_a_space_is_not_told() -> None:
    assert guard_command("/my python/python3", "/opt/coordd") == {}
