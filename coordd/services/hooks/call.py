"""The program of a hook's run: it calls the hook, and ends with 0 if the hook took the event.

    python -m coordd.services.hooks.call

What is called and the event come in the environment, which only the daemon's user can read. The hook gets its own
session, its output is bounded, and everything that it leaves behind in its group is killed; what escapes from the group
is ended with the run, as for every run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from coordd.config.hooks.events import EVENTS

# Bytes of output that are kept in the run's log; the rest is read and dropped.
OUTPUT_BYTES_MAX = 64 * 1024

# Bytes of an HTTP answer that are shown.
ANSWER_BYTES_MAX = 2048

TOKEN_BYTES_MAX = 8192

# As timeout(1): the hook did not end in time.
TIMED_OUT = 124
REFUSED = 1


def main(environ: dict[str, str]) -> int:
    """Call the hook; returns the exit code."""
    hook, event = json.loads(environ.pop("COORDD_HOOK_SECRET")), environ.pop("COORDD_EVENT")
    name = _name(event)
    if hook.get("lineage"):
        return post(hook["url"], event, hook["timeout_s"], hook["token_file"])
    if name not in EVENTS:  # it becomes a word of a command
        print("hooks are told of no such event", file=sys.stderr)
        return REFUSED
    if hook["url"]:
        return post(hook["url"], event, hook["timeout_s"])
    if hook["call"]:
        argv = [sys.executable, "-c", CALLER, hook["call"]]
    else:
        argv = [word.replace("{event}", str(name)) for word in hook["argv"]]
    return run(argv, event, hook["timeout_s"], environ)


def _name(event: str) -> object:
    """What the event says that it is; None if it says nothing."""
    try:
        return json.loads(event)["event"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


# In a process of its own: whatever the function does, the exit code is the answer.
CALLER = """
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
found = importlib.import_module(module)
for part in name.split("."):
    found = getattr(found, part)
found(json.load(sys.stdin))
"""


def run(argv: list[str], event: str, timeout_s: float, environ: dict[str, str], *, what: str = "the hook") -> int:
    """Run a program with the event on its stdin. ``what``: it is, for people."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    except OSError as exc:
        print(f"{argv[0]} cannot be executed: {exc.strerror or exc}", file=sys.stderr)
        return 127
    try:
        with contextlib.suppress(BrokenPipeError):  # it need not read; an event is smaller than a pipe
            process.stdin.write(event.encode() + b"\n")  # type: ignore[union-attr]  # it is a pipe
            process.stdin.close()  # type: ignore[union-attr]  # the same
        code = _follow(process, time.monotonic() + timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if code is None:
        print(f"{what} did not end within {timeout_s:g} s", file=sys.stderr)
        return TIMED_OUT
    return code if code >= 0 else 128 - code


def _follow(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Copy the output, up to the limit, until the program ends; None if the deadline comes first.

    A child that keeps the output open does not count: the program itself is waited for.
    """
    assert process.stdout is not None
    left = OUTPUT_BYTES_MAX
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            code = process.poll()
            if selector.get_map() and selector.select(0.0 if code is not None else 0.05):
                data = os.read(process.stdout.fileno(), 65536)
                os.write(1, data[:left])
                left = max(0, left - len(data))
                if not data:
                    selector.unregister(process.stdout)
            elif code is not None:
                return code
            elif not selector.get_map():
                time.sleep(0.02)
            if code is not None and not left:
                return code  # what is left would be dropped
    return process.poll()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The event is for that address only."""


def post(
    url: str,
    event: str,
    timeout_s: float,
    token_file: str = "",
    *,
    key: str = "",
    ca: str = "",
    kind: str = "application/json",
) -> int:
    """POST the event as JSON; any answer from 200 to 299 is a success. ``key``: for the receiver, to know it again.
    ``ca``: a file of authorities instead of the system's. ``kind``: of the content.
    """
    try:
        token = _token(token_file)
    except OSError as exc:
        print(f"{token_file} cannot be read: {exc.strerror}", file=sys.stderr)
        return REFUSED
    signal.signal(signal.SIGALRM, _out_of_time)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, timeout_s)  # for the whole exchange: it may be a byte at a time
            return _posted(url, event, timeout_s, token, key, ca, kind)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except OSError as exc:
        reason = getattr(exc, "reason", exc)  # of a URLError
        if isinstance(reason, TimeoutError):
            print(f"the server did not answer within {timeout_s:g} s", file=sys.stderr)
            return TIMED_OUT
        print(f"the server cannot be reached: {reason}", file=sys.stderr)
    except (http.client.InvalidURL, UnicodeError) as exc:
        print(f"the address cannot be called: {type(exc).__name__}", file=sys.stderr)
    except Exception as exc:
        # An exception's text may name the address, which is a secret; this is the last boundary before a traceback.
        print(f"the server did not answer as HTTP says: {type(exc).__name__}", file=sys.stderr)
    return REFUSED


def _token(path: str) -> str:
    """The first line of the file, without characters that no header may have; "" without a file."""
    if not path:
        return ""
    with open(path, encoding="ascii", errors="replace") as file:
        return file.readline(TOKEN_BYTES_MAX).strip()


def _posted(url: str, event: str, timeout_s: float, token: str, key: str, ca: str, kind: str) -> int:
    """One exchange. Raises OSError, http.client.HTTPException and whatever else a bad address or answer raises."""
    request = urllib.request.Request(  # noqa: S310 - the configuration allows http and https only
        url, event.encode(), {"Content-Type": kind, "User-Agent": "coordd"}, method="POST"
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    if key:
        request.add_header("Idempotency-Key", key)
    trusted = [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))] if ca else []
    # No proxy from the environment: a run's environment has none, and an event is for that address.
    opener = urllib.request.build_opener(_NoRedirect, *trusted, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            print(f"{answer.status} {answer.reason}")
            return 0
    except urllib.error.HTTPError as exc:
        text = exc.read(ANSWER_BYTES_MAX).decode(errors="replace")
        print(f"the server answered {exc.code} {exc.reason}: {text}", file=sys.stderr)
        return REFUSED


def _out_of_time(_number: int, _frame: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
