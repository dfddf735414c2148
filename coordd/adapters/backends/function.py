"""Asks a function of a site, or of a package, for the job definitions: in a process of its own, with a deadline.

The function may hang, leak, print or end its process: the daemon sees an answer or a sentence. The process is this
file, run as a program. Its standard output is the answer: its length, then one JSON object. What the function prints
goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

from coordd.adapters.kernel.prctl import die_with_parent
from coordd.errors import UnavailableError

# The answer: ten thousand jobs need less.
BYTES_MAX = 32 * 2**20

# Bytes of memory for the data of the function.
MEMORY_MAX = 2**30

# Bytes of the length, which comes before the answer: a process that the function left behind may hold the pipe
# open, so its end does not tell that the answer is complete.
HEAD = 8

# How long (seconds) a killed process may take to end; it is not waited for any longer.
KILLED_S = 1.0

# The answer with what is around the jobs; no more is read.
ANSWER_MAX = BYTES_MAX + 2**10

# How an entry point is named on the command line, instead of MODULE:FUNCTION.
POINT = "entry point "


def ask(target: str, timeout_s: float) -> dict[str, Any]:
    """The tables, or TOML texts, of the jobs by name.

    ``target``: MODULE:FUNCTION, or POINT and "GROUP NAME". Raises UnavailableError: what the function did instead, and
    what to do.
    """
    argv = [sys.executable, "-P", "-m", "coordd.adapters.backends.function", target, str(os.getpid())]
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as exc:
        raise UnavailableError(f"{target}: no process for it: {exc.strerror or exc}") from exc
    until = time.monotonic() + timeout_s
    assert child.stdout is not None
    try:
        with child.stdout as pipe:
            data = _read(pipe.fileno(), until)
        child.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its own children too
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILLED_S)
        raise UnavailableError(
            f"{target}: no answer within {timeout_s:g} s; repair it, or raise [jobs] timeout"
        ) from None
    try:
        said = json.loads(data)
        problem, jobs = said["problem"], said["jobs"]
    except (ValueError, TypeError, KeyError, RecursionError):
        how = f"exit code {child.returncode}"
        raise UnavailableError(f"{target}: it ended its process without an answer ({how}); see the log") from None
    if problem:
        raise UnavailableError(f"{target}: {problem}")
    answer: dict[str, Any] = jobs
    return answer


def _read(pipe: int, until: float) -> bytes:
    """The answer; less of it if the pipe ends before. ``until``: the monotonic clock. Raises TimeoutExpired."""
    data, wanted = bytearray(), HEAD
    ready = select.poll()
    ready.register(pipe, select.POLLIN)
    while len(data) < wanted:
        left_s = until - time.monotonic()
        if left_s <= 0 or not ready.poll(left_s * 1000):
            raise subprocess.TimeoutExpired("", 0)
        part = os.read(pipe, 2**16)
        if not part:
            break
        data += part
        if len(data) >= HEAD:
            wanted = HEAD + min(int.from_bytes(data[:HEAD]), ANSWER_MAX)
    return bytes(data[HEAD:])


def target_of(group: str, name: str) -> str:
    """How an entry point is named, for ``ask``."""
    return f"{POINT}{group} {name}"


def load(target: str) -> Any:
    """The function. Raises LookupError, ImportError or AttributeError, or what its module raises."""
    from importlib import import_module, metadata

    if target.startswith(POINT):
        group, _, name = target.removeprefix(POINT).partition(" ")
        point = next(iter(metadata.entry_points(group=group, name=name)), None)
        if point is None:
            raise LookupError(f"no installed package brings {name} (entry points, group {group})")
        return point.load()
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def answer(target: str) -> dict[str, Any]:
    """What the function returned, or the problem as a sentence."""
    try:
        said = load(target)()
    except SystemExit as exc:
        return {"problem": f"it called exit({exc.code!r:.40})", "jobs": {}}
    except Exception as exc:  # whatever a site's code raises is told
        return {"problem": f"it failed: {type(exc).__name__}: {exc}"[:400], "jobs": {}}
    wanted = "a dict of job tables (or TOML texts) by the names of the jobs"
    if not isinstance(said, dict):
        return {"problem": f"expected {wanted}, found {type(said).__name__}: {said!r:.80}", "jobs": {}}
    wrong = next((name for name in said if not isinstance(name, str) or not isinstance(said[name], dict | str)), None)
    if wrong is not None:
        return {"problem": f"expected {wanted}; at {wrong!r:.80} found {said[wrong]!r:.80}", "jobs": {}}
    try:
        size = len(json.dumps(said))
    except (TypeError, ValueError, RecursionError) as exc:
        return {"problem": f"expected tables of texts, numbers, booleans, lists and tables: {exc}"[:400], "jobs": {}}
    if size > BYTES_MAX:
        return {"problem": f"expected at most {BYTES_MAX} bytes of job tables, found {size}", "jobs": {}}
    return {"problem": "", "jobs": said}


def main() -> NoReturn:
    """Answer on standard output, which the function does not get."""
    die_with_parent()  # it must not outlive a daemon that stops meanwhile
    if os.getppid() != int(sys.argv[2]):
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    out = os.dup(1)
    os.dup2(2, 1)
    said = json.dumps(answer(sys.argv[1])).encode()
    data = len(said).to_bytes(HEAD) + said
    while data:
        data = data[os.write(out, data) :]
    os._exit(0)  # threads and exit handlers of the function must not hold it up


if __name__ == "__main__":
    main()
