"""The tables of the history: their columns, and the version of their layout. No Spark is needed to import this.

Every table lies under OUTPUT/TABLE/date=YYYY-MM-DD/ (UTC). docs/history.md says what each column means; a test compares
the two.
"""

from __future__ import annotations

# The version of all tables together. A directory with a higher one was written by a newer coordd, and is left alone.
LAYOUT = 2

# What every event has.
IDENTITY = {
    "type": "string",
    "hostname": "string",
    "pid": "bigint",
    "incarnation": "string",
    "seq": "bigint",
    "utcoffset": "int",
    "clock": "bigint",
    "timestamp": "double",
    "uuid": "string",
}
# What events about runs may have.
FIELDS = {
    "name": "string", "args": "string", "kwargs": "string", "run": "string", "attempt": "bigint",
    "token": "bigint", "nonce": "string", "node": "string", "fire_at": "double", "due": "double",
    "application_id": "string", "runtime": "double", "result": "string", "exit_code": "bigint",
    "exception": "string", "traceback": "string", "reason": "string", "retries": "bigint", "eta": "string",
    "expires": "string", "parent_id": "string", "root_id": "string", "digest": "string",
}  # fmt: skip

# The fields of a run; the first three are from its last event.
RUN_FIELDS = ("hostname", "pid", "clock", *FIELDS)

_KINDS = {"hostname": "string", "pid": "bigint", "clock": "bigint", **FIELDS}
# When the last event of each type was, as columns of a run.
SEEN = ("sent", "received", "started", "rejected", "retried", "revoked", "failed", "succeeded")

EVENTS = {**IDENTITY, "full_hostname": "string", **FIELDS, "id": "bigint", "line": "string"}
RUNS = {
    "uuid": "string",
    "job": "string",
    "state": "string",
    "timestamp": "double",
    **{name: _KINDS[name] for name in RUN_FIELDS},
    **dict.fromkeys(SEEN, "double"),
    "events": "bigint",
    "first_at": "double",
}
ATTEMPTS = {
    "job": "string",
    "run": "string",
    "attempt": "bigint",
    "token": "bigint",
    "nonce": "string",
    "hostname": "string",
    "hosts": "array<string>",
    "granted": "double",
    "started": "double",
    "ended": "double",
    "outcome": "string",
    "reason": "string",
    "exit_code": "bigint",
    "application_id": "string",
}
# The order of the launches of a run. Several that started at one instant have one order, too.
LAUNCH_ORDER = ("started", "attempt", "token", "nonce", "job")
GRANTS = {
    "job": "string",
    "run": "string",
    "attempt": "bigint",
    "token": "bigint",
    "nonce": "string",
    "granted": "double",
}
NODES = {
    "hostname": "string",
    "incarnation": "string",
    "pid": "bigint",
    "first_at": "double",
    "last_at": "double",
    "online_at": "double",
    "offline_at": "double",
    "version": "string",
    "system": "string",
    "tags": "array<string>",
    "events": "bigint",
    "launches": "bigint",
}
ELECTIONS = {
    "id": "string",
    "job": "string",
    "run": "string",
    "attempt": "bigint",
    "topic": "string",
    "opened_by": "string",
    "decided_at": "double",
    "duration_s": "double",
    "first": "string",
    "succession": "array<string>",
    "abstained": "map<string,string>",
    "silent": "array<string>",
    "told_by": "array<string>",
}
# One row for each time that a breaker was not closed in one way. ``hostname``: of a node's own breaker; "": of a job's.
BREAKERS = {
    "breaker": "string",
    "hostname": "string",
    "job": "string",
    "since": "double",
    "state": "string",
    "trips": "bigint",
    "reason": "string",
    "closed_at": "double",
    "told_by": "array<string>",
}
FIRES = {
    "job": "string",
    "run": "string",
    "fire_at": "double",
    "due": "double",
    "decision": "string",
    "reason": "string",
    "started": "double",
    "delay_s": "double",
    "hostname": "string",
    "state": "string",
}
AUDIT = {
    "kind": "string",
    "severity": "string",
    "job": "string",
    "run": "string",
    "attempt": "bigint",
    "at": "double",
    "detail": "string",
}
CORRUPT = {"source": "string", "line_number": "int", "problem": "string", "line": "binary"}

TABLES = {
    "events": EVENTS,
    "runs": RUNS,
    "attempts": ATTEMPTS,
    "grants": GRANTS,
    "nodes": NODES,
    "elections": ELECTIONS,
    "fires": FIRES,
    "breakers": BREAKERS,
    "audit": AUDIT,
    "corrupt": CORRUPT,
}

# Columns whose values are nearly all different. To look for a dictionary takes a quarter of the time of writing them.
DIFFERENT = (
    *("line", "id", "seq", "clock", "timestamp", "uuid", "run", "token", "nonce", "runtime", "application_id"),
    *("first_at", "granted", "started", "ended", *SEEN),
)


def ddl(columns: dict[str, str], *more: str) -> str:
    """The schema as Spark reads it."""
    return ", ".join([*(f"`{name}` {kind}" for name, kind in columns.items()), *more])
