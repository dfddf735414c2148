"""`python -m coordd.outcomes`: send the document in COORDD_EVENT to the address in COORDD_HOOK_SECRET."""

from __future__ import annotations

import json
import os
import sys

from coordd.outcomes.files import key_of
from coordd.outcomes.sending import offer


def main(environ: dict[str, str]) -> int:
    """Send it; returns the exit code."""
    sink, document = json.loads(environ["COORDD_HOOK_SECRET"]), environ["COORDD_EVENT"]
    to = sink["to"]
    # Redis knows a run by its id; elsewhere the same key must mean the same end, also of another cluster or attempt.
    ident = str(json.loads(document)["id"]) if to.startswith("redis") else key_of(document)
    return offer(sink, to, ident, document, sink["timeout_s"])


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
