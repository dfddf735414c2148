"""Answers that end or silence a node today, by causes in the core and in the ledger's adapters.

They are left out, and counted as such, so that the fuzzer finds others. test_values.py has a reproduction of each,
which says so once its cause is mended: then its part of this file is to be deleted.
"""

from __future__ import annotations

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rerun.plan import ROWS_MAX, read
from coordd.core.ledger.rows import OF_BACKFILL, OF_RERUN, Hold
from coordd.core.ledger.words import (
    ATTEMPT_MAX,
    BAD,
    DIFFERS,
    DURATION_MAX_S,
    EARLY,
    FINISHED,
    GRANTED,
    HELD,
    INSTANT_MAX,
    LIMITED,
    LOST,
    OUTDATED,
    RECOVERING,
    REVOKED,
    UNAVAILABLE,
    UNRECORDED,
)

# What a claim is answered with. Any other word of the ledger fails an assertion of the node, which ends.
TO_CLAIMS = {
    BAD, DIFFERS, EARLY, FINISHED, GRANTED, HELD, LIMITED, LOST, OUTDATED, RECOVERING, REVOKED, UNAVAILABLE, UNRECORDED,
}  # fmt: skip

# A longer text is in no event that a peer can read (core/wire/events.py, Name).
NAME_MAX = 1024

# A world's backfills are within two hours; each fire time of a longer one takes a question, and nothing is wrong.
PLAN_MAX_S = 86400.0


def is_known(answer: Answer | OpenAnswer) -> bool:
    """True if a node cannot bear this answer."""
    if isinstance(answer, OpenAnswer):
        names = (answer.identity, answer.predecessor, answer.epoch)
        return max(map(len, names)) > NAME_MAX or any(is_endless(key, hold) for key, hold in answer.holds.items())
    if answer.word not in TO_CLAIMS or answer.attempt > ATTEMPT_MAX or len(answer.epoch) > NAME_MAX:
        return True
    ended = answer.ended
    if ended is None:
        return False
    texts = (ended.nonce, ended.node, ended.digest, ended.policy)
    bad = ended.attempt > ATTEMPT_MAX or not 0 <= ended.lease_s <= DURATION_MAX_S
    return bad or max(map(len, texts)) > NAME_MAX


def is_endless(key: str, hold: Hold) -> bool:
    """True for a re-run of more runs than a node can list; and for a backfill with instants that no date can hold, or
    that opens more than a world waits for: its cursor may be long before its beginning.
    """
    if key.startswith(OF_BACKFILL):
        plan = Plan.read(hold.note)
        return plan is not None and not is_short(plan)
    if not key.startswith(OF_RERUN):
        return False
    items = read(hold.note)
    runs = [one for item in items for one in (item.runs, *[of for of_job in item.parents for of in of_job])]
    return sum(max(1, one.count) for one in runs) > ROWS_MAX


def is_short(plan: Plan) -> bool:
    """True for a backfill whose instants are dates, within a day."""
    is_sound = 0.0 <= plan.begin <= (plan.cursor or plan.begin) <= INSTANT_MAX and 0.0 <= plan.end <= INSTANT_MAX
    return is_sound and plan.end - plan.begin <= PLAN_MAX_S
