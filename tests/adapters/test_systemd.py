"""Messages to systemd, read from a socket in its place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordd.adapters import systemd
from coordd.adapters.systemd import SystemdNotifier, machine_is_stopping

REPOSITORY = str(Path(__file__).parents[2])


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.settimeout(10.0)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)

    def heard(self) -> list[str]:
        return self.sock.recv(65536).decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"{tmp_path}/notify" if request.param == "path" else f"@coordd-test-{os.getpid()}")
    yield made
    made.sock.close()


def test_sends_assignments_as_lines_of_one_datagram(manager: Manager) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.address})
    notifier.notify("READY=1", "STATUS=ready · 3 nodes alive")
    assert manager.heard() == ["READY=1", "STATUS=ready · 3 nodes alive"]
    notifier.notify("WATCHDOG=1")
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.notify("STOPPING=1")
    assert manager.heard() == ["STOPPING=1"]
    assert notifier.failed == 0


def test_reloading_says_when(manager: Manager) -> None:
    before = time.monotonic()
    SystemdNotifier({"NOTIFY_SOCKET": manager.address}).notify("RELOADING=1")
    first, second = manager.heard()
    assert first == "RELOADING=1"
    name, _, usec = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(usec) / 1e6 + 1e-5
    assert int(usec) / 1e6 <= time.monotonic()


def test_a_status_cannot_smuggle_another_assignment(manager: Manager) -> None:
    SystemdNotifier({"NOTIFY_SOCKET": manager.address}).notify("STATUS=job evil\nMAINPID=1\udc80" + "x" * 5000)
    (line,) = manager.heard()
    assert line.startswith("STATUS=job evil MAINPID=1")
    assert len(line) < 2100


def test_without_systemd_it_is_silent() -> None:
    notifier = SystemdNotifier({})
    notifier.notify("READY=1")
    assert notifier.watchdog_s is None
    assert notifier.failed == 0


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval(environ: dict[str, str], expected: float | None) -> None:
    assert SystemdNotifier(environ).watchdog_s == expected


def test_children_do_not_inherit_the_variables() -> None:
    script = (
        "import os, subprocess, sys; from coordd.adapters.systemd import SystemdNotifier\n"
        "notifier = SystemdNotifier()\n"
        "assert notifier.watchdog_s == 2.0 and notifier.address == '/nowhere', vars(notifier)\n"
        "print([v for v in os.environ if v.startswith(('NOTIFY_', 'WATCHDOG_'))], flush=True)\n"
        "subprocess.run(['env'])\n"
    )
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "2000000", "PYTHONPATH": REPOSITORY, "PATH": os.defpath}
    said = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("[]\n")
    assert "PYTHONPATH=" in said.stdout
    assert "NOTIFY_SOCKET" not in said.stdout
    assert "WATCHDOG" not in said.stdout


@pytest.mark.parametrize("address", ["/no/such/socket", "@nobody-listens-here", "vsock:2:1234", "/" + "x" * 300])
def test_what_cannot_be_sent_is_counted_and_never_raised(address: str) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": address})
    notifier.notify("READY=1")
    assert notifier.failed == 1
    assert notifier.last_error.startswith(f"READY=1 did not reach {address}")


def test_a_full_socket_is_not_waited_for_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(f"{tmp_path}/notify")
    monkeypatch.setattr(systemd, "SEND_TIMEOUT_S", 0.01)
    notifier = SystemdNotifier({"NOTIFY_SOCKET": manager.address})
    while not notifier.failed:  # ends: the kernel's queue is bounded
        notifier.notify("STATUS=busy")
    notifier.notify("READY=1")
    assert notifier.failed == 2
    manager.heard()
    notifier.notify("READY=1")
    assert notifier.failed == 2
    manager.sock.close()


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo stopping; exit 1", True), ("echo running", False), ("echo offline; exit 1", False), ("sleep 60", False)],
)
def test_machine_is_stopping_asks_systemctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: bool
) -> None:
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\n[ "$*" = is-system-running ] || exit 9\n{script}\n')
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "SYSTEMCTL_TIMEOUT_S", 0.5)
    assert machine_is_stopping() is expected


def test_machine_without_systemctl_is_not_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_is_stopping() is False
