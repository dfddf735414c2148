"""What a row must be before anything is made of it: types, ranges, known words.

A ledger is a file, or a server that others can reach: what stands in it may be damaged, or written by somebody else.
A row that is not sound is named and left alone; it never ends a program. Loaded by the runner before it starts a job,
so it imports nothing but rows.py and the errors.
"""

from coordd.core.ledger.rows import ATTEMPT_COLUMNS, RUN_COLUMNS, STANDING_COLUMNS, Policy
from coordd.core.ledger.words import RETRY, STATES
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Registration
    from coordd.core.ledger.rows import AttemptRow, JobRow, Row

# Unix seconds up to the year 3000: every date library can still say which day that is.
INSTANT_MAX = 32_503_680_000.0

# Fencing tokens are microseconds since 1970. Beyond this a float, and with it Lua, no longer tells one from the next.
TOKEN_MAX = 2**53

# The highest that a job's row may have handed out: what is above is left for those to come.
FENCE_MAX = TOKEN_MAX - 2**40

# No job file asks for more attempts; a larger number is damage.
ATTEMPT_MAX = 1_000_000

# A lease, a pause or a window: ten years.
DURATION_MAX_S = 315_360_000.0

# Bad rows that one answer names: where all are bad, the first of them say it.
BAD_MAX = 100

# Names, marks and ids; and the two columns that hold what people and programs wrote.
TEXT_MAX = 1024
LONG_TEXT_MAX = 64 * 1024
LONG = frozenset(("args", "reason"))

POLICY_WORDS = {
    "on_lost": ("relaunch", "hold"),
    "overlap": ("forbid", "allow", "queue", "replace"),
    "backoff": ("fixed", "linear", "exponential"),
}

# What a column may hold: (type, least, most).
NUMBERS: "dict[str, tuple[type, float, float]]" = {
    **dict.fromkeys(("scheduled", "cancel", "suspended"), (int, 0, 1)),
    **dict.fromkeys(("attempt", "failures", "relaunches"), (int, 0, ATTEMPT_MAX)),
    **dict.fromkeys(("token", "commit_token", "beat", "version", "sequence"), (int, 0, TOKEN_MAX)),
    "fence": (int, 0, FENCE_MAX),
    **dict.fromkeys(
        (
            "fire_at",
            "created_at",
            "not_before",
            "received_at",
            "started_at",
            "ended_at",
            "horizon",
            "due",
            "activated_at",
            "counts_from",
        ),
        (float, 0.0, INSTANT_MAX),
    ),
    "lease": (float, 0.0, DURATION_MAX_S),
    "until": (float, -INSTANT_MAX, 2 * INSTANT_MAX),
    "exit_code": (int, -(2**31), 2**32),
}
_JOB_CHECKED = ("job", "fence", "horizon", "suspended", "version", "changed_by")


def run_fault(row: "Row") -> str:
    """What is wrong with a run's row, in words that name the column; "" when it is sound."""
    fault = _fault(row, RUN_COLUMNS)
    if fault:
        return fault
    if row.state not in STATES:
        return f"state: {_shown(row.state)} is not a state"
    if row.state == RETRY and row.attempt == 0:
        return "attempt: a run that waits for its retry has had one, found 0"
    return policy_fault(row.policy)


def open_fault(row: "Row", columns: "tuple[str, ...]") -> str:
    """What is wrong with the columns of a run that a sweep is told; "" when they are sound."""
    fault = _fault(row, columns)
    if not fault and row.state not in STATES:
        return f"state: {_shown(row.state)} is not a state"
    return fault or policy_fault(row.policy)


def attempt_fault(row: "AttemptRow") -> str:
    """What is wrong with the row of an attempt; "" when it is sound."""
    fault = _fault(row, ATTEMPT_COLUMNS)
    if not fault and row.state not in STATES:
        return f"state: {_shown(row.state)} is not a state"
    return fault


def job_fault(row: "JobRow") -> str:
    """What is wrong with a job's row; "" when it is sound."""
    return _fault(row, _JOB_CHECKED)


def registration_fault(of: "Registration") -> str:
    """What is wrong with a run that is to be registered; "" when its row will be sound."""
    return _fault(of, ("run", "job", "digest", "args", "by", "fire_at", "due")) or policy_fault(of.policy.pack())


def standing_fault(row: "JobRow") -> str:
    """What is wrong with what stands beside a job's row; "" when it is sound."""
    return _fault(row, STANDING_COLUMNS)


def sound_run(row: "Row") -> "Row":
    """The same row. Raises BadRowError when it is not sound."""
    fault = run_fault(row)
    if fault:
        raise BadRowError(bad_run(row.run, fault))
    return row


def bad_run(run: object, fault: str) -> str:
    """How a bad row of a run is named wherever people meet it."""
    return f"the row of {printable(run)} is bad: {fault}"


def bad_job(job: object, fault: str) -> str:
    """How a bad row of a job is named."""
    return f"the row of the job {printable(job)} is bad: {fault}"


def printable(name: object) -> str:
    """Whatever stands in the place of a name, as text that every log and terminal can hold; at most 200 characters."""
    text = name if isinstance(name, str) else repr(name)
    return text if text.isascii() and text.isprintable() and len(text) <= 200 else ascii(text)[1:-1][:200]


def policy_fault(text: str) -> str:
    """What is wrong with a policy's text; "" when ``Policy.unpack`` reads it."""
    try:
        policy = Policy.unpack(text)
    except ValueError:
        return f"policy: expected seven words as a node writes them, found {_shown(text)}"
    for name, words in POLICY_WORDS.items():
        if getattr(policy, name) not in words:
            return f"policy: {name} must be one of {', '.join(words)}, found {_shown(getattr(policy, name))}"
    if not (0 <= policy.attempts <= ATTEMPT_MAX and 0 <= policy.relaunches <= ATTEMPT_MAX):
        return f"policy: attempts and relaunches must be 0 to {ATTEMPT_MAX}, found {_shown(text)}"
    if not (0 <= policy.delay_s <= DURATION_MAX_S and 0 <= policy.start_within_s <= DURATION_MAX_S):
        return f"policy: delays must be 0 to {DURATION_MAX_S:.0f} s, found {_shown(text)}"
    return ""


def text_fault(column: str, value: object) -> str:
    """What is wrong with a text of this name; "" when it is sound."""
    if type(value) is not str:
        return f"{column}: expected text, found {_shown(value)}"
    longest = LONG_TEXT_MAX if column in LONG else TEXT_MAX
    if len(value) > longest:
        return f"{column}: {len(value)} characters; at most {longest} are accepted"
    if "\0" in value:
        return f"{column}: a NUL character in {_shown(value)}"
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        return f"{column}: bytes that are not UTF-8 in {_shown(value)}"
    return ""


def _fault(row: "Row | AttemptRow | JobRow | Registration", columns: "tuple[str, ...]") -> str:
    for column in columns:
        value = getattr(row, column)
        bounds = NUMBERS.get(column)
        if bounds is None:
            fault = text_fault(column, value)
            if fault:
                return fault
            continue
        kind, least, most = bounds
        if value is None and column == "exit_code":
            continue
        # An integer in the place of a fraction is what SQLite and tests write; True is an integer to Python alone.
        right = type(value) is kind or (kind is float and type(value) is int)
        if not right:
            return f"{column}: expected {'a number' if kind is float else 'an integer'}, found {_shown(value)}"
        if not least <= value <= most:  # also NaN
            return f"{column}: expected {least:g} to {most:g}, found {_shown(value)}"
    return ""


def _shown(value: object) -> str:
    return repr(value)[:60]
