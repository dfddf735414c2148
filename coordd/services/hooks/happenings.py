"""The events that hooks are told of: what they say, and the key that is the same on every node. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from coordd.config.hooks.events import LINEAGE_START
from coordd.core.checks.reactions import told
from coordd.core.jobs.job import iso, job_of
from coordd.core.ledger.rows import Hold, Row
from coordd.core.ledger.words import LOST, MISSED, STARTED, SUCCESS, TERMINAL, UNKNOWN
from coordd.core.names import host_of
from coordd.core.visible import visible
from coordd.core.wire.events import TaskStarted
from coordd.services.checks.news import Change

# Characters of a text in an event, and bytes that it may become in JSON: one that is not ASCII becomes 6 or 12 there.
# Three such texts, and all the rest, fit into one argument of a run.
TEXT_MAX = 400
TEXT_BYTES_MAX = 1000

# Nodes notice that a node is lost, or that the cluster is ready, within seconds of each other, and it may happen again
# later. Within such a time (seconds) it is one event.
APART_S = 600.0

_SENTENCES = {
    SUCCESS: "succeeded",
    "failure": "failed",
    "revoked": "was revoked",
    "rejected": "was rejected",
    MISSED: "was missed",
    LOST: "was lost",
    UNKNOWN: "has an unknown end: a person decides",
}


class Happening(NamedTuple):
    """One event. ``key``: the same on all nodes. ``known_as``: keys under which another node may have told it."""

    event: str
    key: str
    fields: dict[str, Any]
    known_as: tuple[str, ...] = ()
    row: Row | None = None  # of a run that has ended: sinks are sent it

    def ident(self, key: str = "") -> str:
        """The id of the hook's run."""
        digest = hashlib.sha256((key or self.key).encode()).hexdigest()[:24]
        return f"{self.event}.{digest}"

    def idents(self) -> list[str]:
        """All ids under which it may be known."""
        return [self.ident(key) for key in (self.key, *self.known_as)]

    def document(self, *, at: float, cluster: str, node: str, trace_id: str = "") -> str:
        """The JSON that a hook gets. ``trace_id``: that of its run, if there are traces."""
        document = {
            "event": self.event,
            "at": iso(round(at, 3)),
            "cluster": cluster,
            "node": node,
            **dict.fromkeys(("job", "run", "attempt", "state", "reason", "sentence")),
        }
        document.update({key: short(value) for key, value in self.fields.items()})
        if trace_id:
            document["trace_id"] = trace_id
        return json.dumps(document)


def of_row(row: Row) -> Happening | None:
    """The end of a run, or that it is not known; None if it goes on."""
    if row.state not in TERMINAL and row.state != UNKNOWN:
        return None
    fields = {
        "node": host_of(row.node) or None,
        "job": row.job,
        "run": row.run,
        "attempt": row.attempt,
        "state": row.state,
        "reason": row.reason or None,
        "sentence": f"{row.run} {_SENTENCES[row.state]}" + (f": {row.reason}" if row.reason else ""),
    }
    ended = row if row.state in TERMINAL else None
    return Happening(f"run.{row.state}", f"{row.run}/{row.attempt}", fields, row=ended)


def started(of: TaskStarted | Row) -> Happening:
    """A run has started: its first attempt, or one that it is known of. Only lineage is told of it."""
    return Happening(LINEAGE_START, of.run, _of_attempt(of.run, of.attempt, of.node, STARTED, "", ""))


def lost_attempt(run: str, attempt: int, node: str, reason: str) -> Happening:
    """An attempt was lost, and another one follows."""
    sentence = f"{run}: attempt {attempt} was lost" + (f": {reason}" if reason else "")
    fields = _of_attempt(run, attempt, node, LOST, reason, sentence)
    return Happening("run.lost", f"{run}/{attempt}", fields)


def taken_over(run: str, attempt: int, node: str, reason: str) -> Happening:
    """Another node has found an attempt lost, so that the run goes on elsewhere."""
    sentence = f"{run} goes on on another node than {node.rpartition('.')[0]}"
    return Happening("takeover", f"{run}/{attempt}", _of_attempt(run, attempt, node, LOST, reason, sentence))


def alarm_raised(alarm: Mapping[str, Any]) -> Happening:
    """An attempt was started twice (core/node/alarms.py); each node that heard both starts says the same."""
    run, text = alarm["run"], alarm["text"]
    fields = {"job": job_of(run), "run": run, "attempt": alarm["attempt"], "state": alarm["kind"], "reason": text}
    return Happening("alarm.raised", alarm["id"], {**fields, "sentence": f"alarm: {text}"})


def late(job: str, reason: str, succeeded_at: float) -> Happening:
    """A job has no success in time; once for each last success."""
    return Happening(
        "job.late", f"{job} {succeeded_at:.0f}", {"job": job, "reason": reason, "sentence": f"{job} is late: {reason}"}
    )


def node_lost(peer: str, at: float) -> Happening:
    """A node is lost. ``peer``: HOSTNAME.PID."""
    name = host_of(peer)
    return _now_and_then(
        "node.lost", peer, at, {"node": name, "reason": f"{peer} is silent", "sentence": f"{name} is lost"}
    )


def node_joined(peer: str, incarnation: str, at: float) -> Happening:
    """A node has started; without ``incarnation``: it was lost, and is heard again."""
    name = host_of(peer)
    fields = {"node": name, "state": "alive", "sentence": f"{name} {'has joined' if incarnation else 'is back'}"}
    if incarnation:
        return Happening("node.joined", f"{peer} {incarnation}", fields)
    return _now_and_then("node.joined", peer, at, fields)


def node_left(peer: str, incarnation: str, at: float) -> Happening:
    """A node was stopped, and has said so."""
    name = host_of(peer)
    fields = {"node": name, "state": "left", "sentence": f"{name} was stopped"}
    return _now_and_then("node.left", f"{peer} {incarnation}", at, fields)


def node_drained(name: str, hold: Hold) -> Happening:
    """A person has drained a node."""
    sentence = f"{name} was drained by {hold.by}" + (f": {hold.note}" if hold.note else "")
    fields = {"node": name, "state": "draining", "reason": hold.note or None, "sentence": sentence}
    return Happening("node.drained", f"{name} {hold.at:.3f}", fields)


def node_resumed(name: str, hold: Hold) -> Happening:
    """The drain of a node is over. ``hold``: that drain."""
    fields = {"node": name, "state": "ready", "sentence": f"{name} takes new runs again: its drain is over"}
    return Happening("node.resumed", f"{name} {hold.at:.3f}", fields)


def cluster_ready(alive: int, at: float) -> Happening:
    """The cluster takes new runs again."""
    sentence = f"the cluster is ready, {alive} node{'s' if alive != 1 else ''} alive"
    return _now_and_then("cluster.ready", "", at, {"state": "ready", "sentence": sentence})


def breaker_opened(node: str, incarnation: str, name: str, opened: int, reason: str) -> Happening:
    """A breaker of this node has opened, for the ``opened``-th time."""
    fields = {
        "node": node,
        "reason": reason,
        "state": "open",
        "sentence": f"{node}: the breaker {name} is open: {reason}",
    }
    return Happening("breaker.opened", f"{node} {incarnation} {name} {opened}", fields)


def job_breaker_opened(job: str, name: str, since: float, sentence: str) -> Happening:
    """The breaker of a job has opened, at that instant (Unix seconds); each node sees the same."""
    fields = {"job": job, "reason": sentence, "state": "open", "sentence": sentence}
    return Happening("breaker.opened", f"{name} {since:.3f}", fields)


def check_changed(change: Change) -> Happening:
    """A check is in another state. Of one that nodes share, each node sees the same."""
    check = change.row.check
    fields = {
        "node": change.row.node or None,
        "job": check.job or None,
        "check": check.key,
        "state": change.row.state,
        "reason": change.row.text or None,
        "sentence": told(check, change.row.state, change.row.text) + f", it was {change.before}",
    }
    where = "" if check.shared else f" {change.row.node}"
    return Happening(f"check.{change.row.state}", f"{check.key}{where} {change.since:.3f}", fields)


def _of_attempt(run: str, attempt: int, node: str, state: str, reason: str, sentence: str) -> dict[str, Any]:
    return {
        "node": host_of(node) or None,
        "job": job_of(run),
        "run": run,
        "attempt": attempt,
        "state": state,
        "reason": reason or None,
        "sentence": sentence,
    }


def _now_and_then(event: str, subject: str, at: float, fields: Mapping[str, Any]) -> Happening:
    """Something that each node notices at its own time: those within APART_S are one event."""
    now, before = int(at // APART_S), int((at - APART_S / 10) // APART_S)
    known_as = (f"{subject} {before}",) if before != now else ()
    return Happening(event, f"{subject} {now}", dict(fields), known_as)


def short(value: Any) -> Any:
    """Texts in one bounded line: a reason may be output of a program."""
    if not isinstance(value, str):
        return value
    text = visible(value)[:TEXT_MAX]
    while len(json.dumps(text)) > TEXT_BYTES_MAX:
        text = text[: len(text) * 9 // 10]
    return text
