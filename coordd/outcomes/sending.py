"""One call: a document is offered to one address, within a time."""

from __future__ import annotations

import signal
import sys
from typing import Any
from urllib.parse import unquote

from coordd.core.redaction import redact_text
from coordd.errors import CoorddError
from coordd.services.hooks.call import REFUSED, TIMED_OUT, post

# Characters of a library's sentence that are shown.
WHY_LENGTH = 500

JSON = "application/json"


def offer(
    sink: dict[str, Any],
    to: str,
    ident: str,
    document: str,
    timeout_s: float,
    *,
    kind: str = JSON,
    until_s: float = 0.0,
    repeated: bool = False,
) -> int:
    """Send it; returns the exit code. ``sink``: where its secrets are. ``kind``: of its content. ``until_s``: how long
    a broker should keep it (seconds); 0.0: for ever. ``repeated``: a broker may have it already.
    """
    if to.startswith(("https:", "http:")):
        return post(to, document, timeout_s, sink["token_file"], key=ident, ca=sink["tls_ca"], kind=kind)
    if to.startswith("plugin:"):
        from coordd.outcomes import plugged

        return plugged.to_plug_in(sink, to, document, timeout_s)
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)  # for everything: a disk may hang too
    try:
        print(_send(sink, to, ident, document, kind, until_s, repeated))
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
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return REFUSED


def _send(sink: dict[str, Any], to: str, ident: str, document: str, kind: str, until_s: float, repeated: bool) -> str:
    """One way. Returns what was done, as a sentence; raises if the document did not arrive."""
    scheme, _, path = to.partition("://")
    if scheme in ("file", "parquet"):
        from coordd.outcomes import files

        path = unquote(path)
        return files.to_file(path, document) if scheme == "file" else files.to_parquet(path, document)
    from coordd.outcomes import brokers

    secrets = {"password_file": sink["password_file"], "ca": sink["tls_ca"]}
    if scheme.startswith("amqp"):
        return brokers.to_amqp(to, ident, document, kind=kind, until_s=until_s, repeated=repeated, **secrets)
    return brokers.to_redis(to, ident, document, **secrets)


def _out_of_time(_number: int, _frame: object) -> None:
    raise TimeoutError
