"""Which person's act opens a run once more: a backfill of its job, or the re-run of its parent. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordd.core.ledger.rows import BACKFILLED, LedgerTime, Row
from coordd.core.ledger.words import FAILURE, LOST, MISSED, REJECTED, REPEATED, RETRY, TERMINAL, AttemptNumber
from coordd.history.proof.acts import BACKFILL, FAILED, NONE, backfill, follows
from coordd.history.replay.records import Record


def opener(acts: Sequence[Record], run: str, row: Row | None) -> str:
    """By whom the newest of these acts opens that run once more, as the ledger writes it; "" if none does.

    None opens a run that has not ended, and none opens one twice. Without a row, only a backfill that skips what was
    launched tells that the run had no earlier attempt.
    """
    for act in reversed(acts):
        mark = _mark(act, run, row)
        if mark and (row is None or row.by != mark):
            return mark
    return ""


def _mark(act: Record, run: str, row: Row | None) -> str:
    subject, by = act.text("subject"), act.text("by")
    if act.text("method") == BACKFILL:
        plan = backfill(subject)
        wanted = plan is not None and plan.covers(run) and _is_wanted(row, plan.redo)
        return f"{BACKFILLED}{plan.id} by {by}" if plan is not None and wanted else ""
    over = row is not None and row.state in TERMINAL
    return f"{REPEATED}{subject.partition(', ')[0].partition(':')[0]} by {by}" if over and follows(subject, run) else ""


def _is_wanted(row: Row | None, redo: str) -> bool:
    """As the rule of a backfill has it (core.ledger.backfill.rule)."""
    if row is None:
        return redo == NONE
    if redo == NONE:
        return row.token == 0 and row.attempt == 0 and row.state in (MISSED, REJECTED)
    if redo == FAILED:
        return row.state in (FAILURE, LOST, MISSED, REJECTED) and not row.cancel
    return row.state in TERMINAL


def opened(row: Row, mark: str, of: Record, now: LedgerTime) -> Row:
    """The row as the ledger opens it once more, by the definition that was granted then."""
    row.digest, row.policy = of.text("digest") or row.digest, of.text("policy") or row.policy
    row.failures = row.relaunches = row.cancel = row.commit_token = 0
    row.state, row.attempt, row.by = RETRY, AttemptNumber(row.attempt + 1), mark
    row.not_before = now.wall
    return row
