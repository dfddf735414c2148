"""A program of the daemon: what it is given, its limits, and its end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Mapping

import structlog
import trio

from coordd.core.redaction import redact_text
from coordd.core.visible import visible

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The program of what a package brings.
HOST = (sys.executable, "-P", "-m", "coordd.plugins.host")

# Characters of a line of its output; a longer one is cut.
LINE_MAX = 1000

# How long (seconds) a killed program is waited for; the kernel may keep it for longer.
END_S = 1.0

log = structlog.get_logger("programs")


def host(group: str, name: str, context: str) -> list[str]:
    """The program that runs what a package brings under this name."""
    return [*HOST, group, name, context]


def environment(*, finds_packages: bool, **more: str) -> dict[str, str]:
    """Little of the daemon's own. ``finds_packages``: where the daemon finds them."""
    environ = {"PATH": PATH, "LANG": "C.UTF-8", **more}
    if finds_packages and "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return environ


def limit(pid: int, limits: Mapping[int, int]) -> None:
    """Limits of the kernel (RLIMIT_*) for what it does from now on, and for its children; none is raised."""
    for what, most in limits.items():
        try:
            hard = resource.prlimit(pid, what)[1]
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, what, (least, least))
        except (OSError, ValueError) as exc:  # it has ended already, or the kernel forbids it
            log.debug("program.not_limited", pid=pid, reason=str(exc))
            return


async def killed(process: trio.Process) -> None:
    """KILL to its whole session, so nothing that it started outlives it; its streams are closed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with trio.CancelScope(shield=True):
        with trio.move_on_after(END_S):
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                await stream.aclose()


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """Its lines, cut to LINE_MAX, printable and without secrets."""
    rest = b""
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for piece in stream:
            *whole, rest = (rest + piece).split(b"\n")
            rest = rest[: 4 * LINE_MAX]
            for line in whole:
                yield visible(redact_text(line[: 4 * LINE_MAX].decode(errors="replace")))[:LINE_MAX]


def how(code: int | None) -> str:
    """How a program has ended, in words. None: it is still there."""
    if code is None:
        return "it cannot be killed"
    return f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"
