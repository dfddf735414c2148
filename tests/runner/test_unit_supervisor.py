"""The supervisor of a unit: which instance does nothing, and how it gets through to its holder."""

from __future__ import annotations

import os
import pwd
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from coordd.runner.unit import supervisor
from coordd.runner.unit.request import ADDRESS

KEY = "0" * 32


@pytest.mark.parametrize(
    ("instance", "calls"),
    [
        (f"probe.{KEY}", []),
        (f"probe_a.0.1.{KEY}", [KEY]),
        (f"probes@2026-11-23T02:00:00Z.0.1.{KEY}", [KEY]),
        (f"probe.db_a.0.1.{KEY}", [KEY]),
    ],
)
def test_only_the_probe_calls_nobody(monkeypatch: pytest.MonkeyPatch, instance: str, calls: list[str]) -> None:
    """A job may be called probe, or probe-something: its runs start."""
    called: list[str] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(supervisor, "_call", lambda key, _uid: called.append(key))
    assert supervisor.serve(instance, pwd.getpwuid(os.getuid()).pw_name) == 0
    assert called == calls


@pytest.fixture
def crowded() -> Iterator[socket.socket]:
    """A holder's listener whose queue others have filled."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        key = os.urandom(16).hex().encode()
        listener.bind(ADDRESS + key)
        listener.listen(0)
        crowd = []
        with pytest.raises(BlockingIOError):
            while True:
                one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                crowd.append(one)
                one.setblocking(False)
                one.connect(ADDRESS + key)
        yield listener
        for one in crowd:
            one.close()


def key_of(listener: socket.socket) -> str:
    return bytes(listener.getsockname())[len(ADDRESS) :].decode()


def test_others_who_call_first_only_delay_the_supervisor(crowded: socket.socket) -> None:
    def send_away() -> None:
        time.sleep(0.05)
        crowded.accept()[0].close()

    thread = threading.Thread(target=send_away)
    thread.start()
    link = supervisor._call(key_of(crowded), os.getuid())
    thread.join()
    assert link is not None
    link.close()


def test_a_queue_that_stays_full_is_an_error(monkeypatch: pytest.MonkeyPatch, crowded: socket.socket) -> None:
    monkeypatch.setattr(supervisor, "STEP_S", 0.05)
    with pytest.raises(TimeoutError, match="too many callers"):
        supervisor._call(key_of(crowded), os.getuid())


def test_nobody_listens_any_more(crowded: socket.socket) -> None:
    key = key_of(crowded)
    crowded.close()
    assert supervisor._call(key, os.getuid()) is None
