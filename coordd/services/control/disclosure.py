"""What viewers are shown: one table with every method's answer and every event's fields.

It lists what viewers may see. A field that is not listed is left out for viewers, and a test fails until somebody has
decided about it. Only operators of a job see its arguments, output and secrets.

    SHOW     the value as it is
    HIDE     "(hidden)" instead of a value that is not empty
    DROP     the field is left out
    SENTENCE a sentence: hidden from its first quote to its last, because quotes may contain an argument or a line of a
             job file; errors that answer a call are such sentences
    REASON   the same, and hidden after its first ": ", where a program's output may follow
    RIGHT    the method itself checks the right to operate; a caller who gets an answer may read all of it
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from coordd.config.jobkeys import PLAIN
from coordd.core.wire import events
from coordd.errors import RefusedError
from coordd.services.views.objects import REDACTED

SHOW, HIDE, DROP, SENTENCE, REASON, RIGHT = "show", "hide", "drop", "sentence", "reason", "right"


class Each(NamedTuple):
    """A table whose keys are names (of nodes, of jobs): each value has this shape."""

    shape: Any


# One of the words above, a table of fields, a list with the shape of its items, or Each.
Shape = str | dict[str, Any] | list[Any] | Each

# From the first quote to the last: a value may contain quotes itself.
_QUOTED = re.compile('".*"', re.DOTALL)

# ---- events

_HEAD: dict[str, Shape] = dict.fromkeys(
    ("type", "hostname", "pid", "incarnation", "seq", "utcoffset", "clock", "timestamp"), SHOW
)
_STATE: dict[str, Shape] = dict.fromkeys(
    (
        "freq", "active", "processed", "loadavg", "sw_ident", "sw_ver", "sw_sys", "state", "tags", "view_digest",
        "jobs_digest", "ledger", "pinned", "rules", "failing",
    ),
    SHOW,
)  # fmt: skip
_ACTION: dict[str, Shape] = {
    **dict.fromkeys(("job", "run", "attempt", "fire_at", "scheduled", "digest", "due"), SHOW),
    "args": HIDE,
}
_TASK: dict[str, Shape] = {
    **dict.fromkeys(
        (
            "uuid",
            "name",
            "run",
            "attempt",
            "token",
            "node",
            "fire_at",
            "application_id",
            "runtime",
            "exit_code",
            "retries",
            "digest",
            "policy",
            "lease",
            "due",
        ),
        SHOW,
    ),
    **dict.fromkeys(("args", "kwargs", "result", "exception", "traceback"), HIDE),
    "nonce": DROP,  # marks the processes of an attempt
    "reason": REASON,
}
_TASK_TYPES = (
    "task-sent",
    "task-received",
    "task-started",
    "task-succeeded",
    "task-failed",
    "task-rejected",
    "task-revoked",
    "task-retried",
)

EVENTS: dict[str, dict[str, Shape]] = {
    "worker-elect": {**dict.fromkeys(("id", "topic", "candidacy", "view", "digest", "cver"), SHOW), "action": _ACTION},
    "worker-elect-ack": dict.fromkeys(("id", "candidacy", "acks"), SHOW),
    "worker-online": _STATE,
    "worker-heartbeat": _STATE,
    "worker-offline": _STATE,
    "worker-hello": {**_STATE, "to": SHOW},
    "worker-hello-reply": {
        **_STATE,
        **dict.fromkeys(("to", "members", "revoked", "suspended", "tokens", "protocol", "known"), SHOW),
        "outcomes": DROP,  # each is shown as an event of its own
    },
    "worker-beat": {"ask": SHOW},
    "worker-suspect": {"suspects": SHOW},
    "worker-vouch": {"known": SHOW},
    "peer-ask": {"id": SHOW, "what": SHOW, "subject": SHOW},
    "peer-answer": {"id": SHOW, "body": DROP, "error": DROP},
    **dict.fromkeys(_TASK_TYPES, _TASK),
    "control-revoke": {"run": SHOW, "reason": REASON},
    "control-cancel": {"run": SHOW, "reason": REASON, "attempt": SHOW},
    "control-clear": {"ids": SHOW, "note": HIDE, "by": SHOW},
    "job-late": {"job": SHOW, "since": SHOW, "reason": SENTENCE},
    "copy-given-up": {"sink": SHOW, "name": SHOW, "tries": SHOW, "reason": REASON},
    "check-changed": {"check": SHOW, "state": SHOW, "before": SHOW, "reason": HIDE},
    "breaker-changed": {**dict.fromkeys(("breaker", "state", "since", "trips"), SHOW), "reason": HIDE},
    "cluster-ready": {"ready": SHOW, "alive": SHOW, "reason": SENTENCE},
}

# ---- answers

_ATTEMPT: dict[str, Shape] = {
    **dict.fromkeys(
        ("attempt", "state", "node", "token", "application_id", "exit_code", "received_at", "started_at", "ended_at"),
        SHOW,
    ),
    "reason": REASON,
}
_RUN: dict[str, Shape] = {
    **_ATTEMPT,
    **dict.fromkeys(("id", "job", "fire_time", "runtime_s", "by", "only_node", "commit_token"), SHOW),
    "args": HIDE,
}
_STEP: dict[str, Shape] = {**dict.fromkeys(("at", "node", "what"), SHOW), "detail": REASON}
_RUN_SHOWN: dict[str, Shape] = {
    **_RUN,
    "progress": SHOW,
    "no_progress": SENTENCE,
    "attempts": [_ATTEMPT],
    "parents": SHOW,
    "rerun_of": SHOW,
    "children": [{"id": SHOW, "state": SHOW, "again": SHOW}],
    "group": SHOW,
    "members": SHOW,
    "timeline": [_STEP],
    "log_tail": DROP,
    "log_tail_of": DROP,
}
_LETTER: dict[str, Shape] = {
    **dict.fromkeys(("id", "kind", "at", "attempts", "job", "run", "state", "exit_code", "node"), SHOW),
    "reason": REASON,
}
_HOLD: dict[str, Shape] = {**dict.fromkeys(("until", "by", "uid", "at", "all"), SHOW), "note": SENTENCE}
# What a check saw may be the output of a program.
_CHECK: dict[str, Shape] = {
    **dict.fromkeys(("name", "scope", "node", "kind", "state", "since", "checked_at", "job", "then", "perfdata"), SHOW),
    "output": HIDE,
    "problem": HIDE,
    "reported": {**_HOLD, "state": SHOW},
}
_JOB: dict[str, Shape] = {
    **dict.fromkeys(
        (
            "name",
            "description",
            "owner",
            "schedule",
            "started_by",
            "timezone",
            "next",
            "next_fire_at",
            "last_success_at",
            "expect_within_s",
            "late",
            "breaker",
            "kind",
            "on_lost",
            "overlap",
            "misfire",
            "tags",
            "lease_s",
            "digest",
            "enabled",
        ),
        SHOW,
    ),
    "suspended": _HOLD,
    "starts": HIDE,
    "params": HIDE,
    "problems": [SENTENCE],
}
_JOB_SHOWN: dict[str, Shape] = {
    **{key.field: SHOW if key.public else HIDE for key in PLAIN.values()},
    **_JOB,
    **dict.fromkeys(
        (
            "start",
            "end",
            "jitter_offset_s",
            "blackout",
            "retry",
            "fires",
            "breaker_rule",
            "children",
            "trigger",
            "check",
            "sink",
            "chunk",
        ),
        SHOW,
    ),
    "spark": HIDE,
    "command": HIDE,
}
_LEDGER = dict.fromkeys(("url", "state", "error", "recovering_s", "identity", "pinned", "not_used"), SHOW)

_TRIGGER: dict[str, Shape] = {
    **dict.fromkeys(
        (
            "job",
            "name",
            "kind",
            "state",
            "poller",
            "every_s",
            "max_open",
            "looked_at",
            "waiting",
            "dead",
            "taken",
            "refused",
        ),
        SHOW,
    ),
    "about": HIDE,
    "problem": REASON,
}

METHODS: dict[str, Shape] = {
    "ping": dict.fromkeys(("pong", "version", "user", "role"), SHOW),
    "status": {
        **dict.fromkeys(
            ("node", "cluster", "state", "version", "pid", "incarnation", "clock", "members", "isolated", "runs",
             "jobs", "triggers", "budget", "late_jobs", "stale_jobs", "rules", "alarms", "breakers_open", "impaired",
             "counts", "checks", "uptime_s", "clock_skew_s", "stands_aside", "ready", "disk"),
            SHOW,
        ),
        "bus": SHOW,  # url, state and counters; the url has no password
        "ledger": _LEDGER,
        "backlog": SHOW,
        "jobs_from": {
            **dict.fromkeys(("backend", "revision", "in_force", "waiting"), SHOW),
            "problem": SENTENCE,
        },
        "suspended": {"all": _HOLD, "jobs": SHOW},
        "drained": _HOLD,
        "boot": [{**dict.fromkeys(("name", "mandatory", "state", "attempts"), SHOW), "text": SENTENCE}],
    },
    "node.list": [
        {
            **dict.fromkeys(
                ("hostname", "pid", "incarnation", "state", "clock", "last_seen_s", "active", "freq", "jobs_digest",
                 "self", "says", "tags", "version", "isolated", "failing"),
                SHOW,
            ),
            "drained": _HOLD,
        }
    ],
    "node.drain": RIGHT,
    "node.resume": RIGHT,
    "job.list": [_JOB],
    "job.show": _JOB_SHOWN,
    "job.next": [dict.fromkeys(("job", "fire_time", "run", "due", "local", "clocks_s"), SHOW)],
    "job.fires": [
        {**dict.fromkeys(("fire_time", "due", "decision", "run", "state", "earlier"), SHOW), "reason": REASON}
    ],
    "job.activate": RIGHT,
    "config.publish": RIGHT,
    "config.list": [
        {**dict.fromkeys(("number", "state", "at", "by", "uid", "jobs", "digest"), SHOW),
         "note": SENTENCE, "waits": [SENTENCE]}
    ],
    "config.show": RIGHT,
    "config.rollback": RIGHT,
    "job.suspend": RIGHT,
    "job.resume": RIGHT,
    "job.backfill": RIGHT,
    "job.backfills": [
        dict.fromkeys(
            ("job", "plan", "state", "from", "to", "order", "at_most", "redo", "stop_after_failures", "fire_times",
             "passed", "opened", "succeeded", "failed", "open", "by", "uid", "at", "ended_at"),
            SHOW,
        )
        | {"waits": SENTENCE}
    ],
    "orphans": {
        "applications": [
            dict.fromkeys(("id", "place", "run", "name", "attempt", "token"), SHOW) | {"problem": SENTENCE}
        ],
        "runs": [
            dict.fromkeys(("id", "job", "state", "node", "attempt", "application_id"), SHOW) | {"problem": REASON}
        ],
        "problems": [SENTENCE],
    },
    "pool.list": [dict.fromkeys(("name", "size", "active", "waiting", "until", "by"), SHOW)],
    "pool.set": RIGHT,
    "pool.unset": RIGHT,
    "run.list": [{**_RUN, **dict.fromkeys(("progress", "searched", "back_to"), SHOW)}],
    "run.show": _RUN_SHOWN,
    "deadletter.list": [_LETTER],
    "deadletter.show": {**_LETTER, "dead": SHOW, "shown": _RUN_SHOWN},
    "deadletter.replay": RIGHT,
    "deadletter.discard": RIGHT,
    "run.trigger": RIGHT,
    "publish": RIGHT,
    "message.list": [
        dict.fromkeys(("name", "to", "ordered", "waiting", "again", "oldest", "given_up", "connections"), SHOW)
        | {"failing": [SENTENCE]}
    ],
    "run.cancel": RIGHT,
    "run.revoke": RIGHT,
    "run.resolve": RIGHT,
    "run.rerun": RIGHT,
    "run.logs": RIGHT,
    "why": {
        **dict.fromkeys(("id", "unheard", "found"), SHOW),
        **dict.fromkeys(("why", "sentence", "what_if"), SENTENCE),
        "timeline": [_STEP],
    },
    "election.list": [
        dict.fromkeys(
            ("id", "topic", "opened_by", "decided", "succession", "statements", "missing", "duration_ms"), SHOW
        )
    ],
    "election.open": RIGHT,
    **dict.fromkeys(("exec", "exec.gate", "exec.renew", "exec.report", "exec.restore"), RIGHT),
    **dict.fromkeys(("exec.commit", "exec.standing", "exec.input"), RIGHT),
    "trigger.list": [_TRIGGER],
    "trigger.show": {
        **_TRIGGER,
        "args": HIDE,
        "waiting_first": HIDE,
        "refused_now": HIDE,
        "dead_last": [{"message": HIDE, "reason": HIDE, "at": SHOW, "place": SHOW}],
        "taken_last": [{"arrival": HIDE, "run": SHOW, "at": SHOW}],
    },
    "breaker.list": [
        {
            **dict.fromkeys(
                ("name", "kind", "state", "failures", "opened_at", "next_probe_at", "opened", "prevented", "probe",
                 "last_failed", "enforce", "since_s", "retry_in_s"),
                SHOW,
            ),
            "note": SENTENCE,
            "isolated": _HOLD,
            "reason": SENTENCE,
        }
    ],
    "check.list": [_CHECK],
    "check.show": {
        **_CHECK,
        **dict.fromkeys(("found", "worse_in_a_row", "better_in_a_row", "failed_looks", "jobs"), SHOW),
        "rule": HIDE,
    },
    "check.run": RIGHT,
    "check.report": RIGHT,
    "breaker.reset": RIGHT,
    "breaker.isolate": RIGHT,
    "events.subscribe": {"event": EVENTS, "lost": SHOW, "alive": SHOW},
    "doctor": [{"check": SHOW, "state": SHOW, "text": SENTENCE, "advice": SENTENCE}],
    "reload": RIGHT,
    "audit": RIGHT,
    "ledger.status": {
        **_LEDGER,
        **dict.fromkeys(
            ("weaker", "cluster", "epoch", "since", "schema", "size_bytes", "version", "role", "replicas",
             "maxmemory_policy", "maxmemory_bytes", "used_memory_bytes", "min_replicas_to_write", "persistence",
             "ping_ms", "jobs", "runs", "path", "epoch_changed", "quarantine",
             "predecessor", "closed", "pin", "nodes", "rules"),
            SHOW,
        ),
    },
    "alarm.list": [dict.fromkeys(("id", "kind", "run", "attempt", "at", "text"), SHOW)],
    "alarm.clear": RIGHT,
    "ledger.export": RIGHT,
    "ledger.import": RIGHT,
    "ledger.accept_epoch": RIGHT,
    "ledger.accept-epoch": RIGHT,
    "ledger.accept_identity": RIGHT,
    "ledger.accept-identity": RIGHT,
}  # fmt: skip


def shown(method: str, answer: Any) -> Any:
    """A method's answer (or one message of its stream) as viewers see it.

    Raises RefusedError if the table has no entry for the method.
    """
    shape = METHODS.get(method)
    if shape is None:
        raise RefusedError(
            f"only operators may read the answer of {method}", kind="not_permitted", hint="join the operator group"
        )
    return _reduced(shape, answer)


def reason(text: str) -> str:
    """A recorded reason, as viewers may see it."""
    head, colon, rest = text.partition(": ")
    return sentence(head) + (f": {REDACTED}" if colon and rest else "")


def undecided(shape: Shape, value: Any, path: str = "") -> list[str]:
    """The fields of an answer that are missing in its shape: for the tests."""
    if isinstance(value, dict) and isinstance(shape, (dict, Each)):
        inner = _fields(shape, value)
        missing = [f"{path}.{key}" for key in value if key not in inner]
        return missing + [
            name for key in value if key in inner for name in undecided(inner[key], value[key], f"{path}.{key}")
        ]
    if isinstance(value, list) and isinstance(shape, list):
        return [name for item in value for name in undecided(shape[0], item, f"{path}[]")]
    return [] if isinstance(shape, str) or value is None else [path]


def undecided_events() -> list[str]:
    """The fields of events that are missing in the table: for the tests."""
    missing = []
    for kind in (*events.AnyEvent.__args__, *events.LOCAL):
        word = str(kind.__struct_config__.tag)
        known = {*_HEAD, *EVENTS.get(word, {})}
        missing += [f"{word}.{name}" for name in kind.__struct_fields__ if name not in known]
    inside = set(events.Action.__struct_fields__)
    return missing + [f"action.{name}" for name in sorted(inside - set(_ACTION))]


def _fields(shape: dict[str, Any] | Each, value: dict[str, Any]) -> dict[str, Any]:
    if isinstance(shape, Each):
        return dict.fromkeys(value, shape.shape)
    if shape is EVENTS:
        return {**_HEAD, **EVENTS.get(str(value.get("type")), {})}
    return shape


def _reduced(shape: Shape, value: Any) -> Any:
    if isinstance(shape, (dict, Each)):
        if not isinstance(value, dict):
            return None
        inner = _fields(shape, value)
        return {key: _reduced(inner[key], item) for key, item in value.items() if inner.get(key, DROP) != DROP}
    if isinstance(shape, list):
        return [_reduced(shape[0], item) for item in value] if isinstance(value, list) else None
    if shape in (SHOW, RIGHT):
        return value
    if shape in (SENTENCE, REASON) and (value is None or isinstance(value, str)):
        return value and (reason(value) if shape == REASON else sentence(value))
    return REDACTED if value not in (None, "", (), [], {}) else value


def sentence(text: str) -> str:
    """A sentence, as viewers may see it."""
    if text.count('"') % 2:
        return text.partition('"')[0] + REDACTED
    return _QUOTED.sub(REDACTED, text)
