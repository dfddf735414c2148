"""Answers of the ledger, rows and elections in words. Pure."""

from __future__ import annotations

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import FINISHED, GRANTED, HELD, LOST, OK, RETRY
from coordd.core.names import host_of


def stated(name: str, load: int, clock: int) -> str:
    """What a node said of itself in an election."""
    return f"{host_of(name)} at clock {clock}" + (f", load {load}" if load else "")


def told(answer: Answer) -> str:
    """An answer of the ledger, in words."""
    more = [
        f"by {host_of(answer.by)}" if answer.word == HELD and answer.by else answer.by,
        answer.state if answer.word in (FINISHED, HELD) else "",
        answer.ended.reason if answer.ended is not None else "",
        f"{answer.left_s:.1f} s left" if answer.word == HELD and answer.left_s > 0 else "",
        f"in {answer.in_s:.1f} s" if answer.word not in (OK, GRANTED) and answer.in_s > 0 else "",
        f"attempt {answer.attempt} is next" if answer.word == LOST else "",
    ]
    parts = [part for part in more if part]
    return answer.word + (f": {', '.join(parts)}" if parts else "")


def stands(row: Row | None) -> str:
    """A row after a step, in words."""
    if row is None:
        return "no row"
    if row.state == RETRY:
        return f"taken: attempt {row.attempt} may start"
    return f"taken: the run is {row.state}"


def named(reason: str) -> str:
    """The other run that an overlap names."""
    head, _, rest = reason.partition("overlap: ")
    return rest.partition(" ")[0] if not head and rest else ""
