"""What the asker, the guard's asker and the start of a watcher do on a machine without room: threads, descriptors."""

from __future__ import annotations

import _thread
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core import attempt as core
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.runner import watcher
from coordd.runner.asker import Asker
from coordd.runner.holder import NEVER, WATCH_TRIES_MAX, Runner
from coordd.runner.loop import Loop
from coordd.runner.sockets.guard import Guard, GuardAsker, Standing

DEADLINE_S = 60.0
QUESTION = Standing(grant=Grant(run="r#1", attempt=AttemptNumber(0), token=Token(1), nonce="n"))
ROOT = Path(__file__).parents[2]

# The first question needs a descriptor and modules, and the process has none left. Then it has.
EMFILE = """
import resource, select, sys, time
from coordd.core.ledger.runner_requests import Grant
from coordd.runner.sockets.guard import GuardAsker, Standing
question = Standing(grant=Grant(run="r#1", attempt=0, token=1, nonce="n"))
asker = GuardAsker(sys.argv[1], 1.0)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
assert asker.ask(question)
while not select.select([asker.fd], [], [], 0)[0]: time.sleep(0.01)
first, _ = asker.take()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert asker.ask(question)
while not select.select([asker.fd], [], [], 0)[0]: time.sleep(0.01)
second, _ = asker.take()
print(first, second.word)
"""


def refused(*_args: object) -> int:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def url(tmp_path: Path) -> str:
    SqliteLedger(f"sqlite:///{tmp_path}/ledger.db").close()
    return f"sqlite:///{tmp_path}/ledger.db"


def test_a_thread_that_cannot_be_started_is_no_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = GuardAsker(url, 1.0)
    with monkeypatch.context() as full:
        full.setattr(_thread, "start_new_thread", refused)
        assert not asker.ask(QUESTION)
        assert not asker.busy
    assert asker.ask(QUESTION)
    assert select.select([asker.fd], [], [], DEADLINE_S)[0]
    answer, _ = asker.take()
    assert answer is not None


def test_no_free_descriptor_at_the_first_question_is_no_answer(url: str) -> None:
    argv, env = [sys.executable, "-c", EMFILE, url], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout == "None stale\n", done.stderr


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ImportError("no descriptor")])
def test_an_error_of_a_ledger_is_no_answer_in_place_either(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(_url: str) -> Any:
        raise error

    monkeypatch.setattr("coordd.runner.asker.load_ledger", fails)
    assert Asker("sqlite:///x", 1.0).call(QUESTION) is None


@contextmanager
def listening(url: str) -> Iterator[tuple[Guard, Loop, dict[str, str]]]:
    spec = {
        "run": "r#1", "attempt": 0, "token": 1, "nonce": "n", "ledger": url, "ledger_timeout_s": 1.0,
    }  # fmt: skip
    loop, address = Loop(), f"abstract:coordd-guard/{os.urandom(16).hex()}"
    environ = {"COORDD_RUN": "r#1", "COORDD_JOB": "r", "COORDD_ATTEMPT": "0", "COORDD_TOKEN": "1"}
    made = Guard(spec, address, loop, lambda: core.RUNNING)
    yield made, loop, {**environ, "COORDD_NONCE": "n", "COORDD_GUARD": address}
    made._listener.close()


def asked(environ: dict[str, str], loop: Loop) -> str:
    """What ``guard.py ask owner`` prints."""
    argv = [sys.executable, str(ROOT / "coordd" / "guard.py"), "ask", "owner"]
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        loop.look(20)
    out, _ = process.communicate()
    return out


def test_a_guard_without_a_thread_says_that_it_does_not_know(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(url) as (_, loop, environ):
        with monkeypatch.context() as full:
            full.setattr(_thread, "start_new_thread", refused)
            assert '"word": "unknown"' in asked(environ, loop)
        assert '"word": "stale"' in asked(environ, loop)


def test_a_guard_that_cannot_load_a_module_refuses_one_question(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_line: bytes) -> Any:
        raise ImportError("no descriptor")

    with listening(url) as (guard, loop, environ):
        with monkeypatch.context() as full:
            full.setattr(guard, "_understood", fails)
            assert '"word": "unknown"' in asked(environ, loop)
        assert '"word": "stale"' in asked(environ, loop)


@pytest.mark.parametrize("room", [0, 1, 3, 5, 6])
def test_a_watcher_that_cannot_be_started_leaves_no_descriptor(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``room``: how many descriptors are left; 6: the machine has no room for the process."""

    def fails(*_args: object, **_named: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", fails)
    before = sorted(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + room, hard))
    try:
        with pytest.raises(OSError, match=r"unavailable|open files"):
            watcher.start_watcher("pass", {"run": "x", "attempt": 1}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_job_without_a_watcher_ends_in_order_after_many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(watcher, "start_watcher", fails)
    said: list[str] = []
    runner: Any = Runner.__new__(Runner)
    runner.boot, runner.spec, runner.start_ticks, runner.watch_tries, runner.watch_at = "", {}, 1, 0, 0.0
    runner.program, runner.tree = SimpleNamespace(session=0), SimpleNamespace(cgroup="", session=0)
    runner.attempt = SimpleNamespace(deadline=0.0, phase=core.RUNNING, shut_down=lambda why, now: said.append(why))
    for _ in range(WATCH_TRIES_MAX - 1):
        runner._watch_again()
        assert 0.0 < runner.watch_at < NEVER
    assert not said
    runner._watch_again()
    assert runner.watch_at == NEVER
    assert said == ["no new watcher could be started: [Errno 11] Resource temporarily unavailable"]
