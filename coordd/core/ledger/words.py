"""The ledger's words and constants: states of a run, words of an answer, figures of the rules.

The same words are on the wire, in JSON, in logs and in metrics.
The runner loads this file before it starts a job, so it imports only its neighbours.
"""

# Unix seconds up to the year 3000: every date library can convert them.
INSTANT_MAX = 32_503_680_000.0

# Fencing tokens are microseconds since 1970. Above this, a float (and therefore Lua) cannot represent each integer.
TOKEN_MAX = 2**53

# No job file allows more attempts; a larger number is damage.
ATTEMPT_MAX = 1_000_000

# A lease, a pause or a window: ten years.
DURATION_MAX_S = 315_360_000.0

# The tolerated clock-rate error between any two machines: 1 %; NTP's maximum slew is 0.05 %.
RHO = 0.01

# Two versions of the rules. Under the old ones, the id of a scheduled run contains its due time. Under the new ones it
# contains its nominal time, without the jitter, for runs that are due after ``identity_from``. That instant is NEVER
# while the old rules are in force.
OLD_RULES, NEW_RULES = 1, 2
NEVER = INSTANT_MAX

# The maximum difference of two equal readings of one clock: floats of Unix seconds have a resolution of 0.2 µs.
CLOCK_EXACT_S = 0.001

# A scheduled run may be claimed this long (seconds) before its fire time: the runner then waits at the gate.
CLAIM_AHEAD_S = 5.0

# The operations of a sweep, which have an answer of their own.
SWEEPS = ("open", "page")

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
OUTDATED = "outdated"  # the caller uses other rules than those in force
# For a fire time that is over and has no row, or never had one.
SETTLED = "settled"
UNAVAILABLE = "unavailable"  # said by the shell if the ledger did not answer
BAD = "bad"  # a row that the operation needs is damaged (``by`` says which and how): nothing was changed

WORDS = frozenset((
    OK, EXISTS, CONFLICT, GRANTED, EARLY, HELD, LIMITED, DIFFERS, FINISHED, RECOVERING, STALE, CANCEL, LOST, REVOKED,
    UNAVAILABLE, BAD, OUTDATED,
))  # fmt: skip
