"""The command of `coordd exec`: what its end is when it cannot be executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_daemon import FakeDaemon

from coordd.once.foreground import ForegroundProgram
from coordd.runner.program import NOT_EXECUTABLE, NOT_FOUND
from once.granting import environ, grants, reports

DEADLINE_S = 30.0

OPEN_STREAMS = """
import os, sys, time
time.sleep(0.2)
left = [fd for fd in range(3) if os.path.exists(f"/proc/self/fd/{fd}")]
with open(sys.argv[1], "w") as file:
    file.write(str(left))
os._exit(7)
"""


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


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_harms_nobody(daemon: FakeDaemon, tmp_path: Path, closed: str) -> None:
    """Otherwise a pipe between runner and watcher gets that number, and is overwritten."""
    grants(daemon)
    exec_ = [sys.executable, "-m", "coordd", "exec", f"--socket={daemon.path}", "--job", "j", "--"]
    body = [sys.executable, "-c", OPEN_STREAMS, f"{tmp_path}/open"]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *exec_, *body]
    done = subprocess.run(shell, env=environ(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    assert done.returncode == 7, done.stderr
    assert [(state, code) for state, code, _ in reports(daemon)] == [("failure", 7)]
    numbers = {"<": 0, ">": 1, "2": 2}
    left = [fd for fd in range(3) if fd not in [numbers[one[0]] for one in closed.split()]]
    assert (tmp_path / "open").read_text() == str(left), "for the command they are as the caller left them"
