"""What the ledger says to the driver of an attempt: whether it holds its run, and whether it may publish.

A driver on a cluster outlives the attempt that submitted it: a later attempt adopts its application. So an attempt that
is not the current one still holds its run if the current one follows its application. It publishes under the token of
the current attempt then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from coordd.core.jobs.owner import COMMITTED
from coordd.core.ledger.inputs.memory import INPUT, Told, tell, told_of
from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.runner_requests import Commit, Grant
from coordd.core.ledger.words import ACTIVE, ATTEMPT_MAX, OK, PENDING, RECOVERING, STALE, STARTED, TOKEN_MAX, UNKNOWN
from coordd.ports import Ledger

# GATE: as OWNER, from a driver that has not begun yet.
OWNER = "owner"
GATE = "gate"
COMMIT = "commit"
QUESTIONS = (OWNER, GATE, COMMIT, INPUT)

# Words of answers, beside OK, STALE and UNKNOWN. COMMITTED: the driver holds its run, and an earlier attempt has the
# commit. MOVED: another attempt has adopted the application since the driver asked last. REFUSED: the question itself
# is wrong.
MOVED = "moved"
REFUSED = "refused"

# The states of a run that nobody holds now, and somebody may hold soon.
OPEN = ACTIVE | {PENDING}

# A commit is asked for again when the run has moved on between the look and the commit.
TRIES = 3

# The longest text of a question (characters).
TEXT_MAX = 500


class Question(NamedTuple):
    """A driver's question. ``holder``: the token that its output is prepared under. ``application``: its id, or "".
    ``told``: what it says of one of its inputs.
    """

    ask: str
    run: str
    attempt: int
    token: int
    id: str
    application: str
    holder: int
    told: Told | None = None


class Said(NamedTuple):
    """An answer. ``token``: of OK and MOVED the one that holds the run, of COMMITTED the one with the commit."""

    word: str
    why: str = ""
    token: int = 0


def nonce_of(ledger: Ledger, question: Question) -> str:
    """The nonce that proves a question about this attempt; "": the ledger has no such attempt."""
    for one in ledger.attempts(question.run):
        if (one.attempt, one.token) == (question.attempt, question.token):
            return one.nonce
    return ""


def answer(ledger: Ledger, question: Question, now: float = 0.0) -> Said:
    """What the ledger says now; a commit is given. Blocking. ``now``: Unix seconds. Raises UnavailableError.

    The caller has checked that the question comes from who has the attempt's nonce.
    """
    said = Said(UNKNOWN, "the run moves on all the time: ask again")
    for _ in range(TRIES):
        row = ledger.run(question.run)
        said = judge(row, ledger.attempts(question.run), question)
        if row is not None and question.told is not None and said.word in (OK, COMMITTED):
            heard = tell(ledger, row.job, row.run, question.told, now)
            if heard.word != OK:
                return Said(UNKNOWN, f"the ledger says {heard.word}")
            return Said(OK, heard.by, heard.token)
        if question.ask != COMMIT or said.word != OK:
            return said
        assert row is not None
        grant = Grant(run=row.run, attempt=row.attempt, token=row.token, nonce=row.nonce)
        given = ledger.ask(Commit(grant=grant))
        if given.word == OK:
            return said
        if given.word == RECOVERING:
            return Said(UNKNOWN, "the ledger went back, and waits for its witnesses")
        if given.word != STALE:
            return Said(UNKNOWN, f"the ledger says {given.word}")
    return said if said.word != OK else Said(UNKNOWN, "the run moves on all the time: ask again")


def judge(row: Row | None, attempts: list[AttemptRow], question: Question) -> Said:
    """What the rows say to that driver. A commit may follow OK."""
    mine = next((one for one in attempts if (one.attempt, one.token) == (question.attempt, question.token)), None)
    if row is None or mine is None:
        return Said(STALE, "the ledger does not know the run")
    if row.cancel:
        return Said(STALE, "the run is being cancelled")
    place = f" on {row.node}" if row.node else ""
    there = f"the ledger has attempt {row.attempt}{place}, {row.state}, under token {row.token}"
    if row.state != STARTED:
        return Said(UNKNOWN if row.state in OPEN else STALE, f"nobody holds the run now: {there}")
    is_current = row.token == question.token
    if row.token < question.token:
        return Said(UNKNOWN, f"the ledger has forgotten this attempt: {there}")
    if not is_current and not row.application_id:
        return Said(UNKNOWN, f"{there}; that attempt has not said yet which application it follows")
    if row.application_id and row.application_id != question.application:
        other = f", and it follows {row.application_id}"
        if not is_current:
            return Said(STALE, there + other)
        if question.application:
            return Said(STALE, f"{there}{other}, not {question.application}")
    if row.commit_token not in (0, row.token):
        return Said(COMMITTED, token=row.commit_token)
    if question.ask == COMMIT and question.holder != row.token:
        return Said(MOVED, f"attempt {row.attempt} has adopted the application", row.token)
    return Said(OK, token=row.token)


def question_of(said: Any) -> Question | str:
    """A question from JSON, or what is wrong with it."""
    if not isinstance(said, dict) or said.get("ask") not in QUESTIONS:
        return f"it asks for none of {', '.join(QUESTIONS)}"
    for name in ("run", "id", "application"):
        text = said.get(name)
        if not isinstance(text, str) or not text.isascii() or len(text) > TEXT_MAX:
            return f"expected {name} to be a text of up to {TEXT_MAX} ASCII characters"
    for name, limit in (("attempt", ATTEMPT_MAX), ("token", TOKEN_MAX), ("holder", TOKEN_MAX)):
        number = said.get(name)
        if type(number) is not int or not 0 <= number <= limit:
            return f"expected {name} to be a whole number from 0 to {limit}"
    told = told_of(said) if said["ask"] == INPUT else None
    if isinstance(told, str):
        return told
    return Question(*[said[name] for name in Question._fields[:-1]])._replace(told=told)
