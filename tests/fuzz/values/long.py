"""Backfills that a world of the fuzzer does not wait for: nothing is wrong with them."""

from __future__ import annotations

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import OF_BACKFILL, Hold

# A world's backfills are within two hours; each fire time of a longer one takes a question.
PLAN_MAX_S = 86400.0


def is_left_out(answer: Answer | OpenAnswer) -> bool:
    """True for a sweep with a backfill that is too long."""
    return isinstance(answer, OpenAnswer) and any(is_long(key, hold) for key, hold in answer.holds.items())


def is_long(key: str, hold: Hold) -> bool:
    """True for a backfill of more than a day."""
    plan = Plan.read(hold.note) if key.startswith(OF_BACKFILL) else None
    return plan is not None and plan.end - (plan.cursor or plan.begin) > PLAN_MAX_S
