"""`python -m coordd.outcomes`: send the document in COORDD_EVENT to the address in COORDD_HOOK_SECRET."""

from __future__ import annotations

import json
import os
import sys

from coordd.outcomes.sending import offer


def main(environ: dict[str, str]) -> int:
    """Send it; returns the exit code."""
    sink, document = json.loads(environ["COORDD_HOOK_SECRET"]), environ["COORDD_EVENT"]
    return offer(sink, sink["to"], str(json.loads(document)["id"]), document, sink["timeout_s"])


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
