"""Signals to coordd exec before its command is started and after it has ended; and whose processes it may kill."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fake_daemon import FakeDaemon

from once.granting import DEADLINE_S, OBEYS_SIGNALS, answer, command, environ, grants, reports, until


def asked(daemon: FakeDaemon, method: str) -> bool:
    return any(name == method for name, _ in list(daemon.asked))


def slow_gate(daemon: FakeDaemon) -> FakeDaemon:
    def gate(_params: object) -> object:
        time.sleep(1.0)
        return answer()

    grants(daemon).answers["exec.gate"] = gate
    return daemon


def test_an_interrupt_at_the_terminal_before_the_start_uses_nothing_up(daemon: FakeDaemon) -> None:
    slow_gate(daemon)
    pid, fd = pty.fork()
    if pid == 0:
        argv = [sys.executable, "-m", "coordd", "exec", f"--socket={daemon.path}", "--job", "j", "--tick", "* * * * *"]
        os.execvpe("env", [*OBEYS_SIGNALS, *argv, "--", "echo", "RAN"], environ())
    until(lambda: asked(daemon, "exec.gate"))
    time.sleep(0.3)
    os.write(fd, b"\x03")
    said = b""
    try:
        while data := os.read(fd, 4096):
            said += data
    except OSError:
        pass  # the last process that had the terminal has ended
    _, status = os.waitpid(pid, 0)
    os.close(fd)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT, said
    assert b"RAN" not in said
    until(lambda: reports(daemon))
    assert [state for state, _, _ in reports(daemon)] == ["retry"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_before_the_start_gives_the_attempt_back(daemon: FakeDaemon, number: int) -> None:
    slow_gate(daemon)
    caller = command(daemon, "echo", "RAN")
    until(lambda: asked(daemon, "exec.gate"))
    time.sleep(0.3)
    caller.send_signal(number)
    out, err = caller.communicate(timeout=DEADLINE_S)
    assert (caller.returncode, out) == (128 + number, ""), err
    assert [state for state, _, _ in reports(daemon)] == ["retry"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_caller_whose_command_has_ended_need_not_wait_for_the_report(daemon: FakeDaemon, number: int) -> None:
    grants(daemon).answers["exec.report"] = None  # the daemon is going away
    caller = command(daemon, "sh", "-c", "exit 7")
    until(lambda: asked(daemon, "exec.report"))
    time.sleep(0.5)
    assert caller.poll() is None, "it waits for the report"

    caller.send_signal(number)
    caller.communicate(timeout=DEADLINE_S)
    assert caller.returncode == 7

    grants(daemon)  # the daemon is back: the runner has gone on
    tried = len(reports(daemon))
    until(lambda: len(reports(daemon)) > tried)
    assert reports(daemon)[-1] == ("failure", 7, "exit code 7")


# A shell that has a child when it becomes coordd exec. The child starts another process and ends while COMMAND runs.
SHELL = """
( sleep 1; sleep 777 & echo $! > "$1.new"; mv "$1.new" "$1" ) > /dev/null 2>&1 &
exec "$2" -m coordd exec --socket="$3" --job j -- "$2" -c "$4" "$1" "$1.mine"
"""
# It leaves a process without session, parent, and environment of its own.
LEAVES = """
import os, sys, time
theirs, mine = sys.argv[1:]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(mine + ".new", "w") as file: file.write(str(os.getpid()))
        os.rename(mine + ".new", mine)
        null = os.open("/dev/null", 2)
        os.dup2(null, 1); os.dup2(null, 2)
        os.execve("/bin/sleep", ["sleep", "777"], {})
    os._exit(0)
while not (os.path.exists(theirs) and os.path.exists(mine)): time.sleep(0.01)
time.sleep(0.3)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_processes_of_the_callers_shell_are_not_the_commands(daemon: FakeDaemon, tmp_path: Path) -> None:
    grants(daemon)
    theirs, mine = tmp_path / "theirs", tmp_path / "theirs.mine"
    argv = ["/bin/bash", "-c", SHELL, "bash", str(theirs), sys.executable, daemon.path, LEAVES]
    done = subprocess.run(argv, env=environ(), check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    foreign, own = int(theirs.read_text()), int(mine.read_text())
    try:
        assert not alive(own), "the command's processes end with it"
        assert alive(foreign)
    finally:
        if alive(foreign):
            os.kill(foreign, signal.SIGKILL)
