"""The spans of a run, from its rows in the ledger. Pure.

All instants but those of an election are of the ledger's clock: the spans of several nodes are in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordd.core.jobs.job import iso
from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.words import FAILURE, LOST, MISSED, REJECTED, SUCCESS, UNKNOWN
from coordd.core.names import host_of
from coordd.core.trace import Span, Value, span_id, trace_id
from coordd.core.wire.events import ElectionDecided

RUN, FIRE, ELECTION, ATTEMPT = "run", "fire", "election", "attempt"
CLAIM, GATE, EXEC, END = "claim", "gate", "exec", "end"

BAD = frozenset((FAILURE, LOST, UNKNOWN, MISSED, REJECTED))

REASON_MAX = 400


def of_run(cluster: str, row: Row) -> list[Span]:
    """The root, once the run has ended, and its fire time."""
    trace = trace_id(cluster, row.run)
    root = span_id(trace, RUN)
    due = row.due_at or row.created_at
    told: dict[str, Value] = {
        "coordd.run": row.run,
        "coordd.job": row.job,
        "coordd.cluster": cluster,
        "coordd.state": row.state,
        "coordd.attempts": row.attempt + 1,
        "coordd.reason": row.reason[:REASON_MAX],
    }
    begin = min(due, row.created_at or due)
    fired: dict[str, Value] = {"coordd.run": row.run, "coordd.fire_time": iso(row.fire_at), "coordd.by": row.by}
    return [
        Span(trace, root, "", f"run {row.job}", begin, row.ended_at, _said(told), *_judged(row.state, row.reason)),
        Span(trace, span_id(trace, FIRE), root, FIRE, due, due, _said(fired)),
    ]


def of_election(cluster: str, event: ElectionDecided) -> Span:
    """An election that this node has opened. Its instants are of this node's clock."""
    trace = trace_id(cluster, event.run)
    told: dict[str, Value] = {
        "coordd.run": event.run,
        "coordd.attempt": event.attempt,
        "coordd.succession": tuple(event.succession),
        "coordd.abstained": tuple([f"{name}: {why}" for name, why in sorted(event.abstained.items())]),
        "coordd.silent": tuple(event.silent),
    }
    end = event.timestamp
    own = span_id(trace, f"{ELECTION} {event.opened_by}", event.attempt)
    return Span(trace, own, span_id(trace, RUN), ELECTION, end - max(0.0, event.duration), end, _said(told))


def of_attempt(
    cluster: str, row: Row, attempts: Sequence[AttemptRow], number: int, runtime_s: float | None
) -> list[Span]:
    """An attempt that has ended, with its parts. ``runtime_s``: from exec to the program's end, if this node knows it.

    Returns [] if the ledger has no such attempt.
    """
    by_number: dict[int, AttemptRow] = {one.attempt: one for one in attempts}
    one = by_number.get(number)
    if one is None or not one.ended_at:
        return []
    trace = trace_id(cluster, row.run)
    before = by_number.get(number - 1)
    own = span_id(trace, ATTEMPT, number)
    begin = min(one.received_at, (before.ended_at if before is not None else 0.0) or row.created_at)
    told: dict[str, Value] = {
        "coordd.run": row.run,
        "coordd.job": row.job,
        "coordd.attempt": number,
        "coordd.token": one.token,
        "coordd.node": host_of(one.node),
        "coordd.state": one.state,
        "coordd.reason": one.reason[:REASON_MAX],
        "coordd.application_id": one.application_id,
    }
    if one.exit_code is not None:
        told["coordd.exit_code"] = one.exit_code
    links = (span_id(trace, ATTEMPT, number - 1),) if number else ()
    said, judged = _said(told), _judged(one.state, one.reason)
    spans = [
        Span(
            trace, own, span_id(trace, RUN), f"{ATTEMPT} {number}", begin, one.ended_at, said, *judged, links
        ),
        _part(trace, own, CLAIM, number, begin, one.received_at, said),
    ]  # fmt: skip
    if not one.started_at:
        return spans
    over = one.ended_at if runtime_s is None else min(one.ended_at, one.started_at + max(0.0, runtime_s))
    program = _part(trace, own, EXEC, number, one.started_at, over, said)
    return [
        *spans,
        _part(trace, own, GATE, number, one.received_at, one.started_at, said),
        program._replace(good=judged[0], reason=judged[1]),
        _part(trace, own, END, number, over, one.ended_at, said),
    ]


def program_span(trace: str, attempt: int) -> str:
    """The span that the program's own spans belong to."""
    return span_id(trace, EXEC, attempt)


def _part(trace: str, of: str, name: str, attempt: int, start: float, end: float, said: Mapping[str, Value]) -> Span:
    kept = {key: said[key] for key in ("coordd.run", "coordd.attempt", "coordd.node", "coordd.state") if key in said}
    return Span(trace, span_id(trace, name, attempt), of, name, start, end, kept)


def _judged(state: str, reason: str) -> tuple[bool | None, str]:
    """(good, why not)"""
    if state in BAD:
        return False, f"{state}: {reason[:REASON_MAX]}" if reason else state
    return (True if state == SUCCESS else None), ""


def _said(told: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in told.items() if value not in ("", ())}
