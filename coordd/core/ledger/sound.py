"""Validates rows before they are used: types, ranges, known words.

A ledger is a file, or a server that others can reach: its rows may be damaged, or written by somebody else. An invalid
row is reported and not used; it never stops a program. The runner loads this file before it starts a job, so it imports
only its neighbours and the errors.
"""

from coordd.core.ledger.rows import ATTEMPT_COLUMNS, RUN_COLUMNS, STANDING_COLUMNS
from coordd.core.ledger.words import (
    ATTEMPT_MAX,
    DURATION_MAX_S,
    INSTANT_MAX,
    LIMITS,
    NAME_MAX,
    POLICY,
    RETRY,
    STATES,
    TOKEN_MAX,
    Policy,
)
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import AttemptRow, JobRow, Row
    from coordd.core.ledger.runner_requests import Registration

# The highest token in a job's row: the values above are left for future ones.
FENCE_MAX = TOKEN_MAX - 2**40

# Maximum number of bad rows in one answer.
BAD_MAX = 100

# The two columns with texts of people and programs.
LONG_TEXT_MAX = 64 * 1024
LONG = frozenset(("args", "reason"))

# The valid values of a column: (type, least, most).
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
    """The fault of a run's row, naming the column; "" if it is valid."""
    fault = _fault(row, RUN_COLUMNS)
    if fault:
        return fault
    if row.state not in STATES:
        return f"state: {_shown(row.state)} is not a state"
    if row.state == RETRY and row.attempt == 0:
        return "attempt: a run that waits for its retry has had one, found 0"
    return policy_fault(row.policy)


def open_fault(row: "Row", columns: "tuple[str, ...]") -> str:
    """The fault in those columns of a run that a sweep sends; "" if they are valid."""
    fault = _fault(row, columns)
    if not fault and row.state not in STATES:
        return f"state: {_shown(row.state)} is not a state"
    return fault or policy_fault(row.policy)


def attempt_fault(row: "AttemptRow") -> str:
    """The fault of an attempt's row; "" if it is valid."""
    fault = _fault(row, ATTEMPT_COLUMNS)
    if not fault and row.state not in STATES:
        return f"state: {_shown(row.state)} is not a state"
    return fault


def job_fault(row: "JobRow") -> str:
    """The fault of a job's row; "" if it is valid."""
    return _fault(row, _JOB_CHECKED)


def registration_fault(of: "Registration") -> str:
    """The fault of a registration; "" if its row will be valid."""
    return _fault(of, ("run", "job", "digest", "args", "by", "fire_at", "due")) or policy_fault(of.policy.pack())


def standing_fault(row: "JobRow") -> str:
    """The fault of a job's second row; "" if it is valid."""
    return _fault(row, STANDING_COLUMNS)


def sound_run(row: "Row") -> "Row":
    """Returns the same row. Raises BadRowError if it is invalid."""
    fault = run_fault(row)
    if fault:
        raise BadRowError(bad_run(row.run, fault))
    return row


def bad_run(run: object, fault: str) -> str:
    """The text for a bad row of a run, wherever people see it."""
    return f"the row of {printable(run)} is bad: {fault}"


def bad_job(job: object, fault: str) -> str:
    """The text for a bad row of a job."""
    return f"the row of the job {printable(job)} is bad: {fault}"


def printable(name: object) -> str:
    """Any value in the place of a name, as text that is safe in logs and terminals; at most 200 characters."""
    text = name if isinstance(name, str) else repr(name)
    return text if text.isascii() and text.isprintable() and len(text) <= 200 else ascii(text)[1:-1][:200]


def policy_fault(text: str) -> str:
    """The fault of a policy's text; "" if ``Policy.unpack`` can read it."""
    try:
        policy = Policy.unpack(text)
    except ValueError:
        return f"policy: expected {len(POLICY)} words as a node writes them, found {_shown(text)}"
    for name, (kind, words, most) in POLICY.items():
        value = getattr(policy, name)
        if words and value not in words:
            return f"policy: {name} must be one of {', '.join(words)}, found {_shown(value)}"
        if name == "limits" and value and not all(item.startswith(LIMITS) for item in value.split(",")):
            return f"policy: limits cannot be read, found {_shown(value)}"
        if kind is not str and not 0 <= value <= most:  # also for NaN
            return f"policy: {name} must be 0 to {most:.0f}, found {_shown(text)}"
    return ""


def text_fault(column: str, value: object) -> str:
    """The fault of a text with this column name; "" if it is valid."""
    if type(value) is not str:
        return f"{column}: expected text, found {_shown(value)}"
    longest = LONG_TEXT_MAX if column in LONG else NAME_MAX
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
        # SQLite and tests write integers for fractions; True is an integer only in Python.
        right = type(value) is kind or (kind is float and type(value) is int)
        if not right:
            return f"{column}: expected {'a number' if kind is float else 'an integer'}, found {_shown(value)}"
        if not least <= value <= most:  # also false for NaN
            return f"{column}: expected {least:g} to {most:g}, found {_shown(value)}"
    return ""


def _shown(value: object) -> str:
    return repr(value)[:60]
