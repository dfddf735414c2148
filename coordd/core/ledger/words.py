"""The ledger's words and constants: states of a run, words of an answer and of a policy, figures of the rules.

The same words are on the wire, in JSON, in logs and in metrics. Here are also the types that requests, answers and rows
share. The runner loads this file before it starts a job, so it imports nothing: no enum, no typing, no dataclasses
(together 30 ms here, twice the whole start of a bare Python).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, NewType

    # Two numbers that occur together in every grant: mypy keeps them from being swapped.
    Token = NewType("Token", int)
    AttemptNumber = NewType("AttemptNumber", int)
else:
    Token = AttemptNumber = int

# Unix seconds up to the year 3000: every date library can convert them.
INSTANT_MAX = 32_503_680_000.0

# Fencing tokens are microseconds since 1970. Above this, a float (and therefore Lua) cannot represent each integer.
TOKEN_MAX = 2**53

# No job file allows more attempts; a larger number is damage.
ATTEMPT_MAX = 1_000_000

# Characters of a name, a nonce, an id, a word or a digest, in a row and in an event.
NAME_MAX = 1024

# A lease, a pause or a window: ten years.
DURATION_MAX_S = 315_360_000.0

# The tolerated clock-rate error between any two machines: 1 %; NTP's maximum slew is 0.05 %.
RHO = 0.01

# Two versions of the rules. Under the old ones, the id of a scheduled run contains its due time. Under the new ones it
# contains its nominal time, without the jitter, for runs that are due after ``identity_from``. That instant is NEVER
# while the old rules are in force.
OLD_RULES, NEW_RULES = 1, 2
# What a node says in its heartbeats. 3: the rules 2, and its claims create no row of a trigger that the ledger has not
# recorded. 4: also, its grants are counted, and it says marks (core/ledger/marks). 5: also, its changes of rows are
# numbered (core/ledger/feed).
RECORDS_FIRST, MARKS, FEED = 3, 4, 5
RULES_SPOKEN = FEED
NEVER = INSTANT_MAX

# The maximum difference of two equal readings of one clock: floats of Unix seconds have a resolution of 0.2 µs.
CLOCK_EXACT_S = 0.001

# A scheduled run may be claimed this long (seconds) before its fire time: the runner then waits at the gate.
CLAIM_AHEAD_S = 5.0

# A node that is new to a ledger does not claim for this long (seconds). A ledger that comes back, and whose last sweep
# was longer ago, keeps its whole quarantine. Any number is safe, as long as it is one number.
NEWCOMER_S = 10.0

# A node that has not swept for this long (seconds), or for two late sweeps, is not awaited when the ledger comes back.
# When the node is there again, it is new.
SILENCE_S = 60.0

# Its gate may open this long (seconds) before the fire time: the runner then waits for the rest by its own clock.
GATE_AHEAD_S = 0.25

# The operations of a sweep, which have an answer of their own.
SWEEPS = ("open", "page", "ended")

# Rows per page of a sweep: one script blocks the ledger for at most a few milliseconds.
OPEN_PAGE = 1000

# Run states: the words on the wire, in JSON, in logs and in metrics.
PENDING = "pending"
RECEIVED = "received"
STARTED = "started"
SUCCESS = "success"
FAILURE = "failure"
RETRY = "retry"
REVOKED = "revoked"
REJECTED = "rejected"
MISSED = "missed"
LOST = "lost"
UNKNOWN = "unknown"

STATES = (PENDING, RECEIVED, STARTED, SUCCESS, FAILURE, RETRY, REVOKED, REJECTED, MISSED, LOST, UNKNOWN)
TERMINAL = frozenset((SUCCESS, FAILURE, REVOKED, REJECTED, MISSED, LOST))
# These states prevent another run of the same job (overlap). A run that waits for its retry is not over.
ACTIVE = frozenset((RECEIVED, STARTED, UNKNOWN, RETRY))

# Answers.
OK = "ok"
EXISTS = "exists"
CONFLICT = "conflict"
GRANTED = "granted"
EARLY = "early"
HELD = "held"
LIMITED = "limited"
DIFFERS = "differs"
FINISHED = "finished"
RECOVERING = "recovering"
STALE = "stale"
CANCEL = "cancel"
UNRECORDED = "unrecorded"  # no row of a triggered run, and the caller knows the run only from an election
OUTDATED = "outdated"  # the caller uses other rules than those in force
# For a fire time that is over and has no row, or never had one.
SETTLED = "settled"
UNAVAILABLE = "unavailable"  # said by the shell if the ledger did not answer
BAD = "bad"  # a row that the operation needs is damaged (``by`` says which and how): nothing was changed

WORDS = frozenset((
    OK, EXISTS, CONFLICT, GRANTED, EARLY, HELD, LIMITED, DIFFERS, FINISHED, RECOVERING, STALE, CANCEL, LOST, REVOKED,
    UNAVAILABLE, BAD, OUTDATED, UNRECORDED,
))  # fmt: skip


class Record:
    """A value object; two are equal if all fields are. ``wire`` names the fields in the order of sending."""

    __slots__: "tuple[str, ...]" = ()
    wire: "ClassVar[tuple[str, ...]]" = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # some can be changed

    def __repr__(self) -> str:
        said = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__slots__])
        return f"{type(self).__name__}({said})"


# ---- the policy of a run

ON_LOST = ("relaunch", "hold")
OVERLAP = ("forbid", "allow", "replace", "queue")
BACKOFF = ("fixed", "linear", "exponential")

QUEUE_KEEP = ("first", "last")

# Each item of a policy's limits begins with one of these (limits/text.py).
SLOTS, RATE, QUEUE, JITTER, BREAKER = LIMITS = ("slots:", "rate:", "queue=", "jitter=", "breaker=")

# The reason of an attempt that was ended by the job's timeout begins so; that of a failure whose output matches a
# pattern of the job's breaker says so before its first colon.
TIMED_OUT = "timeout after "
HAS_MATCHED = "; a pattern of its breaker matches"

# Who "asked for" a run whose parents have not all ended in time as they should: this, and which are absent. Whoever
# looks at its row ends it as missed.
ABSENT = "its parents were awaited; absent: "

# Who "asked for" a run that the ends of its parents have opened: this, and their runs.
OPENED = "after "
# Who "asked for" a run that a person runs once more: this, the run with its earlier attempt, and who did.
REPEATED = "rerun of "

# How the reason begins of a run whose end a person has told.
RESOLVED = "resolved as "
# The same after OPENED. Of a run that runs once more since a parent did it names the run that a person ran once more.
RERUN = f"; {REPEATED}"

# A jitter of this many thousandths at most doubles a delay.
JITTER_MAX = 1000

# With ``overlap = "queue"``, at most this many runs of a job wait, unless its policy says another number.
QUEUE_MAX = 100

# The words of a policy, in their order: the type, the valid words, or the largest number. The checks in Python and in
# Lua (lua/shared/constants.lua) follow from this table.
POLICY: "dict[str, tuple[type[str | int | float], tuple[str, ...], float]]" = {
    "on_lost": (str, ON_LOST, 0.0),
    "overlap": (str, OVERLAP, 0.0),
    "attempts": (int, (), ATTEMPT_MAX),
    "relaunches": (int, (), ATTEMPT_MAX),
    "delay_s": (float, (), DURATION_MAX_S),
    "backoff": (str, BACKOFF, 0.0),
    "start_within_s": (float, (), DURATION_MAX_S),
    "limits": (str, (), 0.0),  # limits/text.py
}
# Every row has this many of them. A word that is added later comes last, and only rows that need it have it.
POLICY_WORDS_MIN = 7
_KINDS: "tuple[Any, ...]" = tuple([kind for kind, _, _ in POLICY.values()])


class Policy:
    """The part of a job's definition that the ledger needs; stored in the row, as one text of words (POLICY)."""

    __slots__ = tuple(POLICY)

    def __init__(
        self,
        on_lost: str = "relaunch",
        overlap: str = "forbid",
        attempts: int = 1,
        relaunches: int = 5,
        delay_s: float = 30.0,
        backoff: str = "fixed",
        start_within_s: float = 3600.0,
        limits: str = "",
    ) -> None:
        self.on_lost = on_lost
        self.overlap = overlap
        self.attempts = attempts
        self.relaunches = relaunches
        self.delay_s = delay_s
        self.backoff = backoff
        self.start_within_s = start_within_s
        self.limits = limits

    def pack(self) -> str:
        """One text, with the words in the order of POLICY; without the last one if there are no limits."""
        return " ".join([str(getattr(self, name)) for name in POLICY]).rstrip()

    @classmethod
    def unpack(cls, text: str) -> "Policy":
        """The inverse of ``pack``. Raises ValueError for too few or too many words, and for a word of another type."""
        said = text.split(" ")
        if len(said) == POLICY_WORDS_MIN:
            said.append("")
        return cls(*[kind(word) for kind, word in zip(_KINDS, said, strict=True)])

    def held(self) -> "Policy":
        """The same policy for a run that nobody may try again before a person has looked at it."""
        return Policy("hold", self.overlap, 1, 0, self.delay_s, self.backoff, self.start_within_s, self.limits)

    def delay_after(self, failures: int) -> float:
        """Seconds before the next try, after this many failures (>= 1)."""
        if self.backoff == "linear":
            return self.delay_s * failures
        if self.backoff == "exponential":
            return min(self.delay_s * float(2 ** min(failures - 1, BACKOFF_DOUBLINGS_MAX)), BACKOFF_MAX_S)
        return self.delay_s

    def jitter(self) -> float:
        """By which part of itself a delay may grow, 0 to 1."""
        for item in self.limits.split(","):
            said = item[len(JITTER) :]
            if item.startswith(JITTER) and said.isascii() and said.isdecimal():
                return min(int(said), JITTER_MAX) / 1000
        return 0.0

    def retry_after(self, failures: int, run: str, attempt: int) -> float:
        """Seconds before the next try, after the failure of this attempt; ``failures`` (>= 1) includes it.

        The jitter's share is a hash of run and attempt: runs that fail together are not tried again together, and both
        ledgers compute the same instant.
        """
        jitter = self.jitter()
        return self.delay_after(failures) * (1 + jitter * hashed(f"{run}/{attempt}") if jitter else 1)

    def longest_pause(self) -> float:
        """The longest possible pause (seconds) between two attempts."""
        longest = self.delay_after(max(1, self.attempts - 1)) * (1 + self.jitter())
        return max(longest, RELAUNCH_PAUSE_S * 2.0**RELAUNCH_DOUBLINGS_MAX)


def hashed(text: str) -> float:
    """A number from 0 to below 1 that only depends on the text."""
    import hashlib  # here: a runner needs it after its program, and few need it at all

    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) / 2**32


# The first pause (seconds) before the retry of an attempt that was lost right after its grant, and how often it may
# double.
RELAUNCH_PAUSE_S = 1.0
RELAUNCH_DOUBLINGS_MAX = 6

# An exponential back-off stops growing here: nobody wants a retry after three days.
BACKOFF_MAX_S = 6 * 3600.0
# Above this, every delay has reached the maximum; a higher power is not needed.
BACKOFF_DOUBLINGS_MAX = 20
