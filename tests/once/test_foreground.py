"""The command of `coordd exec`: what its end is when it cannot be executed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordd.once.foreground import ForegroundProgram
from coordd.runner.program import NOT_EXECUTABLE, NOT_FOUND

DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("nowhere", NOT_FOUND, "No such file or directory"),
        ("data", NOT_EXECUTABLE, "Permission denied"),
        ("data/below", NOT_EXECUTABLE, "Not a directory"),
        ("broken", NOT_EXECUTABLE, "Exec format error"),
    ],
)
def test_what_cannot_be_executed_ends_with_the_code_of_a_shell(tmp_path: Path, name: str, code: int, why: str) -> None:
    """The process itself: the ledger records its code, and the caller gets it."""
    (tmp_path / "data").write_text("no program")
    (tmp_path / "broken").write_text("no program")
    (tmp_path / "broken").chmod(0o755)
    path = str(tmp_path / name)

    program = ForegroundProgram([path], dict(os.environ), 1, ())
    assert program.release(0.0)
    _, status = os.waitpid(program.pid, 0)

    assert os.waitstatus_to_exitcode(status) == code
    assert program.failure() == f"cannot execute {path}: {why}"
    os.close(program.status_fd)
