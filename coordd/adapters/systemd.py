"""The service manager's side of a daemon: sd_notify and the watchdog, with the standard library alone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import MutableMapping

# These change what systemd does next, so they wait for a full socket, at most this long (seconds). STATUS and WATCHDOG
# are sent again soon and never wait.
MUST_ARRIVE = ("READY=1", "RELOADING=1", "STOPPING=1")
SEND_TIMEOUT_S = 0.5

# systemd cuts a longer status.
LINE_LENGTH_MAX = 2048

# Timeout (seconds) of systemctl when it is asked whether the machine shuts down.
SYSTEMCTL_TIMEOUT_S = 2.0


class SystemdNotifier:
    """Reports the daemon's state to systemd; does nothing if systemd did not start the daemon.

    ``watchdog_s`` is the time within which systemd expects WATCHDOG=1, or None. ``failed`` counts failed notifications,
    ``last_error`` has the reason: a failed notification never stops the daemon.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Remove the variables from the environment: a child that inherits them could send in our name."""
        self.address = environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        self.failed = 0
        self.last_error = ""

    def notify(self, *lines: str) -> None:
        """Send assignments such as READY=1 or STATUS=…; RELOADING=1 gets the MONOTONIC_USEC it needs."""
        if not self.address:
            return
        sent = [_one_line(line) for line in lines]
        if "RELOADING=1" in sent:
            # Without it, `systemctl reload` of a notify-reload unit waits until its timeout.
            sent.append(f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
        wait_s = SEND_TIMEOUT_S if any(line in MUST_ARRIVE for line in sent) else 0.0
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(wait_s)
                sock.connect(_sockaddr(self.address))
                sock.send("\n".join(sent).encode("utf-8", "backslashreplace"))
        except (OSError, ValueError) as exc:
            self.failed += 1
            self.last_error = f"{sent[0] if sent else ''} did not reach {self.address}: {exc}"


def machine_is_stopping() -> bool:
    """True when the whole machine shuts down: then runs must end, instead of waiting for the next daemon.

    Asks systemctl, and waits at most two seconds; False without systemd.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(
            ["systemctl", "is-system-running"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SYSTEMCTL_TIMEOUT_S,
            check=False,
        )
        return asked.stdout.strip() == b"stopping"
    return False


def _watchdog_s(usec: str, pid: str) -> float | None:
    """Seconds; None without a watchdog, or if it watches another process (variables of a parent)."""
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6


def _one_line(text: str) -> str:
    """A line break inside a STATUS would be read as another assignment."""
    return " ".join(text.split("\n"))[:LINE_LENGTH_MAX]


def _sockaddr(address: str) -> str:
    if address.startswith("@"):
        return "\0" + address[1:]
    if not address.startswith("/"):
        raise ValueError("neither an absolute path nor an abstract name")
    return address
