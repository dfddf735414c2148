"""The words of the ledger, and the figures that its rules go by: states of a run, words of an answer.

The same words stand on the wire, in JSON, in logs and in metrics.
The runner loads this file before it starts a job, so it imports nothing but its neighbours.
"""

# Clock-rate error that is tolerated between any two machines: 1 %, NTP's worst slew is 0.05 %.
RHO = 0.01

# Two versions of the rules. Under the old ones the id of a scheduled run is made of the instant at which it is due;
# under the new ones of its nominal time, without the jitter, for all that is due after ``identity_from``. NEVER stands
# for that instant (the year 3000) while the old ones are in force.
OLD_RULES, NEW_RULES = 1, 2
NEVER = 32_503_680_000.0

# As far as two readings of one clock may be apart that should be the same: floats of Unix seconds end at 0.2 µs.
CLOCK_EXACT_S = 0.001

# A scheduled run may be claimed this long before its fire time: the runner then waits at the gate.
CLAIM_AHEAD_S = 5.0

# The sweep sees the open rows in pages of this many: one script holds the ledger up for a few milliseconds at the most.
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
# These stand in the way of another run of the same job (overlap). A run that waits for its retry is not over.
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
OUTDATED = "outdated"  # the one who asks goes by other rules than those in force
# What is said of a fire time that is over and of which no row is left, or never was one.
SETTLED = "settled"
UNAVAILABLE = "unavailable"  # said by the shell when the ledger did not answer
BAD = "bad"  # a row that the operation needs is damaged (``by`` says which and how): nothing was changed

WORDS = frozenset((
    OK, EXISTS, CONFLICT, GRANTED, EARLY, HELD, LIMITED, DIFFERS, FINISHED, RECOVERING, STALE, CANCEL, LOST, REVOKED,
    UNAVAILABLE, BAD, OUTDATED,
))  # fmt: skip
