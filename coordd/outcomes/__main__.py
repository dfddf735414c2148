"""`python -m coordd.outcomes`: send the document in COORDD_EVENT to the address in COORDD_HOOK_SECRET."""

from __future__ import annotations

import json
import os
import signal
import sys

from coordd.core.redaction import redact_text
from coordd.errors import CoorddError
from coordd.services.hooks.call import REFUSED, TIMED_OUT, post

# Characters of a library's sentence that are shown.
WHY_LENGTH = 500


def main(environ: dict[str, str]) -> int:
    """Send it; returns the exit code."""
    sink, document = json.loads(environ["COORDD_HOOK_SECRET"]), environ["COORDD_EVENT"]
    ident = str(json.loads(document)["id"])
    to, timeout_s = sink["to"], sink["timeout_s"]
    if to.startswith(("https:", "http:")):
        return post(to, document, timeout_s, sink["token_file"], key=ident, ca=sink["tls_ca"])
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)  # for everything: a disk may hang too
    try:
        print(_send(sink, ident, document))
        return 0
    except CoorddError as exc:
        print(exc, file=sys.stderr)
    except Exception as exc:
        # The last boundary before a traceback: each library raises what it likes, also instead of our TimeoutError.
        if signal.getitimer(signal.ITIMER_REAL)[0] == 0.0:
            print(f"{redact_text(to)} took nothing within {timeout_s:g} s", file=sys.stderr)
            return TIMED_OUT
        why = redact_text(str(exc))[:WHY_LENGTH] or type(exc).__name__
        print(f"{redact_text(to)} cannot be used: {why}", file=sys.stderr)
    return REFUSED


def _send(sink: dict[str, str], ident: str, document: str) -> str:
    """One way. Returns what was done, as a sentence; raises if the document did not arrive."""
    scheme = sink["to"].partition(":")[0]
    if scheme in ("file", "parquet"):
        from coordd.outcomes import files

        path = sink["to"].partition("://")[2]
        return files.to_file(path, document) if scheme == "file" else files.to_parquet(path, document)
    from coordd.outcomes import brokers

    send = brokers.to_amqp if scheme.startswith("amqp") else brokers.to_redis
    return send(sink["to"], ident, document, password_file=sink["password_file"], ca=sink["tls_ca"])


def _out_of_time(_number: int, _frame: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
