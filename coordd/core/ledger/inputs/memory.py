"""What a ledger remembers of one input of a job: how often it has failed, and when it is poisonous.

It is kept as a hold: ``input:JOB:DIGEST``, with the rest in its note. ``by`` is the run that told of the last
failure. It ends by itself, so that no failure counts for ever. Two runs that tell of one input at the same time may
count as one failure: it is refused one failure later then.
"""

import hashlib

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Keep
from coordd.core.ledger.rows import OF_INPUT, Hold
from coordd.core.ledger.words import OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from coordd.core.ledger.runner_requests import Request

    class Ledger(Protocol):
        """The part of a ledger that is needed here."""

        def ask(self, request: Request[Answer]) -> Answer: ...
        def mark(self, key: str) -> Hold | None: ...
        def marks(self, prefix: str) -> dict[str, Hold]: ...


# The question of a program about one of its inputs, and what it may say of it. BEGUN counts as a failure until PASSED
# or INTERRUPTED: the program may die of it. EXPLAINED: why it failed, of a failure that counts already.
INPUT = "input"
ASKED, BEGUN, FAILED, EXPLAINED, PASSED, INTERRUPTED = WORDS = (
    "asked", "begun", "failed", "explained", "passed", "interrupted",
)  # fmt: skip
_COUNTS = {BEGUN: 1, FAILED: 1, EXPLAINED: 0, INTERRUPTED: -1}

# Inputs of one job that a ledger remembers at most, and for how long (seconds) after the last failure.
INPUTS_MAX = 200
KEPT_S = 90 * 86400.0

# The longest texts (characters), and the most failures that a program may allow.
INPUT_LENGTH_MAX = 300
REASON_LENGTH_MAX = 300
FAILURES_MAX = 1000


class Seen:
    """One input: ``failures`` until now, ``limit``: the number that makes it poisonous, and why it failed last."""

    __slots__ = ("failures", "input", "limit", "reason")

    def __init__(self, failures: int, limit: int, input_: str, reason: str) -> None:
        self.failures = failures
        self.limit = limit
        self.input = input_
        self.reason = reason

    @property
    def is_poisonous(self) -> bool:
        """True if it is not processed any more."""
        return self.failures >= self.limit

    def text(self) -> str:
        """As the note of a hold."""
        return f"{self.failures} {self.limit}\n{self.input}\n{self.reason}"

    @classmethod
    def read(cls, note: str) -> "Seen | None":
        """The inverse of ``text``; None if it is damaged: such an input has not failed yet."""
        figures, _, words = note.partition("\n")
        input_, _, reason = words.partition("\n")
        failures, _, limit = figures.partition(" ")
        if not (failures.isdecimal() and limit.isdecimal() and len(figures) < 20):
            return None
        return cls(int(failures), int(limit), input_, reason)


class Told:
    """What a program says of an input: one of WORDS. ``limit``: its own, see Seen."""

    __slots__ = ("input", "limit", "reason", "what")

    def __init__(self, what: str, input_: str, limit: int, reason: str) -> None:
        self.what = what
        self.input = input_
        self.limit = limit
        self.reason = reason


def key_of(job: str, input_: str) -> str:
    """The key under which a ledger keeps it."""
    return f"{OF_INPUT}{job}:{hashlib.sha256(input_.encode()).hexdigest()[:16]}"


def told_of(said: "Any") -> "Told | str":
    """What a question from JSON says, or what is wrong with it."""
    for name, longest in (("input", INPUT_LENGTH_MAX), ("reason", REASON_LENGTH_MAX)):
        text = said.get(name)
        if not isinstance(text, str) or not (text.isascii() and (text.isprintable())) or len(text) > longest:
            return f"expected {name} to be a text of up to {longest} printable ASCII characters"
    limit = said.get("limit")
    if type(limit) is not int or not 1 <= limit <= FAILURES_MAX:
        return f"expected limit to be a whole number from 1 to {FAILURES_MAX}"
    if said.get("says") not in WORDS or not said["input"]:
        return f"expected an input, and one of {', '.join(WORDS)}"
    return Told(said["says"], said["input"], limit, said["reason"])


def tell(ledger: "Ledger", job: str, run: str, said: Told, now: float) -> Answer:
    """Take what the holder of ``run`` says; ok with the failures of the input so far (``token``), and why it failed
    last (``by``). Another word is the ledger's: nothing is known then. ``now``: Unix seconds.
    """
    key = key_of(job, said.input)
    hold = ledger.mark(key)
    seen = Seen.read(hold.note) if hold is not None and is_kept(hold, now) else None
    before = seen.failures if seen is not None else 0
    reason = said.reason or (seen.reason if seen is not None else "")
    if said.what == ASKED or (seen is None and said.what not in _COUNTS):
        return Answer(OK, token=before, by=reason)
    after = before + _COUNTS.get(said.what, -before)
    if after > 0 and seen is None and _is_full(ledger, job, run, now):
        return Answer(OK, token=before, by=f"not counted: {INPUTS_MAX} inputs of {job} are remembered already")
    note = Seen(min(after, FAILURES_MAX), said.limit, said.input, reason).text()
    answer = ledger.ask(Keep(key=key, held=after > 0, by=run, until=now + KEPT_S if after > 0 else 0.0, note=note))
    return Answer(OK, token=max(0, after), by=reason) if answer.word == OK else answer


def is_kept(hold: Hold, now: float) -> bool:
    """False once its end is over."""
    return not 0.0 < hold.until <= now


def _is_full(ledger: "Ledger", job: str, run: str, now: float) -> bool:
    """True if no further input of the job can be remembered. Those whose time is over are forgotten."""
    marks = ledger.marks(f"{OF_INPUT}{job}:")
    over = [key for key, hold in marks.items() if not is_kept(hold, now)]
    for key in over:
        ledger.ask(Keep(key=key, held=False, by=run))
    return len(marks) - len(over) >= INPUTS_MAX
