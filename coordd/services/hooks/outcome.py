"""The document that a sink gets: how one run ended. Pure; the same from every node, because it is made of the row."""

from __future__ import annotations

import json
from typing import Any

from coordd.core.jobs.arguments import VALUE_BYTES_MAX
from coordd.core.ledger.rows import Row
from coordd.core.names import host_of
from coordd.services.following import lineal
from coordd.services.hooks.happenings import short
from coordd.services.views.objects import by_person, instant

# Bytes of the arguments in a document. It must fit into one argument of the call's run, beside all the rest.
ARGS_BYTES_MAX = 2048


def document(row: Row, *, cluster: str, args: bool) -> str:
    """The JSON of an end. ``args``: with the arguments; if they are too long, ``args`` is null."""
    timed = row.started_at and row.ended_at and not by_person(row)
    runtime_s = round(row.ended_at - row.started_at, 3) if timed else None
    told: dict[str, Any] = {
        "id": row.run,
        "job": row.job,
        "state": row.state,
        "attempt": row.attempt,
        "node": host_of(row.node) or None,
        "token": row.token or None,
        "exit_code": row.exit_code,
        "reason": short(row.reason) or None,
        "fire_time": instant(row.fire_at) if row.scheduled else None,
        "started_at": instant(row.started_at),
        "ended_at": instant(row.ended_at),
        "runtime_s": runtime_s,
        "parents": lineal.parents(row),
        "cluster": cluster,
    }
    if args:
        told["args"] = json.loads(row.args or "{}") if len(row.args) <= ARGS_BYTES_MAX else None
    text = json.dumps(told)
    if args and len(text) > VALUE_BYTES_MAX:  # with many parents and a long reason
        text = json.dumps({**told, "args": None})
    return text
