"""`python -m coordd.outcomes.message`: send a message of another process to the first address that takes it.

The message is in COORDD_EVENT, the addresses in COORDD_HOOK_SECRET. If the last call fails, the fallback gets it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime
from typing import Any

from coordd.config.hooks.publisher import EVENTS, EXPIRED
from coordd.core.jobs.schedule import parse_duration
from coordd.outcomes.sending import JSON, offer
from coordd.services.hooks.call import REFUSED, run


def main(environ: dict[str, str]) -> int:
    """Send it; returns the exit code."""
    publisher, message = json.loads(environ.pop("COORDD_HOOK_SECRET")), json.loads(environ.pop("COORDD_EVENT"))
    ident = environ["COORDD_RUN"]
    wanted_s = message["expires_s"] or (parse_duration(publisher["expires"]) if publisher["expires"] else 0.0)
    left_s = _left_s(environ["COORDD_FIRE_TIME"], wanted_s)
    if left_s is not None and left_s <= 0:
        print(f"{ident} has expired: it was wanted for {wanted_s:g} s", file=sys.stderr)
        code = EXPIRED
    else:
        code = _sent(publisher, ident, message, left_s or 0.0)
    last = int(environ["COORDD_ATTEMPT"]) + 1 >= publisher["attempts"]
    if code == 0 or not publisher["fallback"] or not (last or code == EXPIRED):
        return code
    print(f"the fallback gets it: {publisher['fallback'][0]}", file=sys.stderr)
    return run(publisher["fallback"], message["body"], publisher["timeout_s"], environ)


def _left_s(recorded: str, expires_s: float) -> float | None:
    """How much longer (seconds) the message is wanted; None: for ever."""
    if not expires_s:
        return None
    return datetime.fromisoformat(recorded).timestamp() + expires_s - time.time()


def _sent(publisher: dict[str, Any], ident: str, message: dict[str, Any], left_s: float) -> int:
    """Offer it to each address in turn; returns 0, or the exit code of the last one."""
    code, body, share_s = REFUSED, message["body"], publisher["timeout_s"] / len(publisher["to"])
    for to in publisher["to"]:
        if to == EVENTS:
            print("the record of the message is what listeners to events see")
            return 0
        said = json.dumps({"id": ident, "body": body}) if to.startswith("file:") else body  # one line
        code = offer(publisher, to, ident, said, share_s, kind=message.get("kind", JSON), until_s=left_s)
        if code == 0:
            return 0
    return code


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
