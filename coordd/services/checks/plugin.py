"""Runs a monitoring plug-in: a program whose exit code is the state, and whose first line says why. A check whose kind
a package brings is the program coordd.plugins.host.

It runs in a session of its own, with little environment and with limits, and is killed with its group when its time
is over. Its output is read up to a limit.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
from collections.abc import Mapping

import structlog
import trio

from coordd import plugins
from coordd.core.checks.check import Check
from coordd.core.checks.state import DEGRADED, HEALTHY, TEXT_MAX, UNHEALTHY, UNKNOWN, Result
from coordd.core.redaction import redact_text
from coordd.core.visible import visible
from coordd.services.programs.child import environment, host, killed, limit

log = structlog.get_logger("checks")

# The exit codes of monitoring plug-ins; 3 and all others say: the plug-in could not look.
CODES = {0: HEALTHY, 1: DEGRADED, 2: UNHEALTHY}
_MORE_CODES = {code: state for state, code in plugins.CODES.items()}

OUTPUT_BYTES_MAX = 64 * 1024
PIECE_BYTES = 16 * 1024

# Its limits, by the kernel's count: bytes of memory for data, bytes of a file, open files.
LIMITS = {
    resource.RLIMIT_DATA: 2 * 1024**3,
    resource.RLIMIT_FSIZE: 64 * 1024**2,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_CORE: 0,
}


async def look(check: Check, node: str) -> Result:
    """Run it once."""
    argv = host(plugins.CHECKS, check.kind, _context(check, node)) if check.plugged else list(check.argv)
    environ = environment(finds_packages=check.plugged, COORDD_CHECK=check.key, COORDD_NODE=node)
    try:
        process = await trio.lowlevel.open_process(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        return Result(UNKNOWN, f"{argv[0]} cannot be executed: {getattr(exc, 'strerror', None) or exc}")
    output = bytearray()
    try:
        limit(process.pid, {resource.RLIMIT_CPU: int(check.timeout_s) + 1, **LIMITS})
        with trio.move_on_after(check.timeout_s) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read, process, output)
                await process.wait()
                nursery.cancel_scope.deadline = trio.current_time() + 0.1  # a child may keep the output open
    finally:
        await killed(process)
    if scope.cancelled_caught or process.returncode is None:
        return Result(UNHEALTHY, f"it did not end within {check.timeout_s:g} s")
    return parsed(process.returncode, bytes(output), _MORE_CODES if check.plugged else CODES)


def parsed(code: int, output: bytes, codes: Mapping[int, str] = CODES) -> Result:
    """What exit code and output say: the first line up to "|" is for people, the rest are figures."""
    line = output.decode(errors="replace").lstrip("\n").partition("\n")[0]
    text, _, figures = line.partition("|")
    text, figures = _shown(text), _shown(figures)
    if code in codes:
        return Result(codes[code], text, figures)
    how = f"signal {-code} ended it" if code < 0 else f"exit code {code}"
    return Result(UNKNOWN, f"{how}: {text}" if text else how, figures)


def _context(check: Check, node: str) -> str:
    """As the host wants it: the fields of coordd.plugins.CheckContext."""
    said = {name: getattr(check, name) for name in ("timeout_s", "url", "address", "argv", "path")}
    return json.dumps({"name": check.key, "node": node, **said})


def _shown(text: str) -> str:
    return visible(redact_text(text.strip()))[:TEXT_MAX]


async def _read(process: trio.Process, output: bytearray) -> None:
    assert process.stdout is not None
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for piece in process.stdout:
            output += piece[: max(0, OUTPUT_BYTES_MAX - len(output))]
