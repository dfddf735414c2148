"""What a policy says of its job's breaker, and the breaker's state as a ledger keeps it.

An item of a policy's limits:

    breaker=GROUPS/WINDOW_MS/OPEN_FOR_MS/OPEN_FOR_MAX_MS/GROWTH/WHEN_OPEN/ENFORCE

GROUPS is COUNT:WORD+WORD… , several separated by ";". A word is ``failure``, ``timeout``, ``lost``, ``matched`` (the
output matches one of the job's patterns), or an exit code. The breaker opens once COUNT runs in a row have ended as
one of the words says. WINDOW_MS: those runs ended within this time; 0: there is no window. An item that cannot be read
stops nothing: the text comes from the node that claims.

The state is one line of words, the note of the hold ``breaker:JOB``; without that hold it is closed:

    STATE SINCE RETRY_AT TRIPS PREVENTED PROBE LAST FAILURES

Instants are Unix seconds with three decimals; 0.000 where there is none. TRIPS: how often it opened in a row.
PREVENTED: how many runs it rejected since it opened (or, if it does not enforce, would have). PROBE: the run that
tries, LAST: the run that failed last, or "-". FAILURES: the counted ends, GROUP.AT_MS separated by commas, or "-".

Only claims and ends of jobs with a breaker read this, so the runner does not load this file at its start.
"""

from coordd.core.ledger.words import BREAKER, FAILURE, HAS_MATCHED, LOST, TIMED_OUT, Record

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
STATES = (CLOSED, OPEN, HALF_OPEN)
# Of the view of people only: a person holds it open.
ISOLATED = "isolated"

TIMEOUT, MATCHED = "timeout", "matched"
# The states that a job file may name.
COUNTED = (FAILURE, LOST, TIMEOUT)

FIXED, LINEAR, EXPONENTIAL = GROWTH = ("fixed", "linear", "exponential")
PREVENT, FAIL = WHEN_OPEN = ("prevent", "fail")

# The largest number of groups, and of runs in a row: the text of a state is bounded.
GROUPS_MAX = 8
COUNT_MAX = 100

# More doublings reach every longest time.
DOUBLINGS_MAX = 30

# The most digits of a number in these texts: so both languages read it without loss.
DIGITS_MAX = 15

# The reason of a run that a breaker rejected, or let fail.
PREVENTED_BY = "breaker"

NOBODY = "-"


class Rule(Record):
    """What a job's breaker goes by. Durations in milliseconds."""

    wire = ("groups", "window_ms", "open_for_ms", "open_for_max_ms", "growth", "when_open", "enforce")
    __slots__ = wire

    def __init__(
        self,
        groups: "tuple[tuple[int, tuple[str, ...]], ...]",
        window_ms: int,
        open_for_ms: int,
        open_for_max_ms: int,
        growth: str,
        when_open: str,
        enforce: bool,
    ) -> None:
        self.groups = groups
        self.window_ms = window_ms
        self.open_for_ms = open_for_ms
        self.open_for_max_ms = open_for_max_ms
        self.growth = growth
        self.when_open = when_open
        self.enforce = enforce

    def item(self) -> str:
        """As an item of a policy's limits."""
        groups = ";".join([f"{count}:{'+'.join(words)}" for count, words in self.groups])
        figures = f"{self.window_ms}/{self.open_for_ms}/{self.open_for_max_ms}"
        return f"{BREAKER}{groups}/{figures}/{self.growth}/{self.when_open}/{int(self.enforce)}"

    def stays_open_s(self, trips: int) -> float:
        """For how long (seconds) it stays open after that many trips in a row (>= 1)."""
        longest = max(self.open_for_ms, self.open_for_max_ms)
        factor = 1
        if self.growth == LINEAR:
            factor = trips
        elif self.growth == EXPONENTIAL:
            factor = 1 << min(trips - 1, DOUBLINGS_MAX)
        return min(self.open_for_ms * factor, longest) / 1000

    def groups_of(self, state: str, exit_code: "int | None", reason: str) -> "list[int]":
        """The groups, from 1, that count an attempt which ended so."""
        kinds = {state}
        if state == FAILURE:
            timed_out = reason.startswith(TIMED_OUT)
            kinds = {TIMEOUT if timed_out else FAILURE}
            if exit_code is not None and not timed_out:
                kinds.add(str(exit_code))
            if HAS_MATCHED in reason.partition(":")[0]:
                kinds.add(MATCHED)
        elif state != LOST:
            return []
        return [number for number, (_, words) in enumerate(self.groups, 1) if kinds.intersection(words)]


def rule_in(limits: str) -> "Rule | None":
    """The breaker that the limits of a policy name; None without one that can be read."""
    for item in limits.split(","):
        if item.startswith(BREAKER):
            return _read(item[len(BREAKER) :])
    return None


def _read(text: str) -> "Rule | None":
    said = text.split("/")
    if len(said) != 7 or not all(_is_number(figure) for figure in said[1:4]) or said[6] not in ("0", "1"):
        return None
    if said[4] not in GROWTH or said[5] not in WHEN_OPEN:
        return None
    groups = []
    for group in said[0].split(";"):
        count, _, words = group.partition(":")
        if not _is_number(count) or not 1 <= int(count) <= COUNT_MAX or not words:
            return None
        groups.append((int(count), tuple(words.split("+"))))
    if len(groups) > GROUPS_MAX:
        return None
    window, open_for, longest = (int(figure) for figure in said[1:4])
    return Rule(tuple(groups), window, open_for, longest, said[4], said[5], said[6] == "1")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX


class State(Record):
    """A breaker's state. ``since``, ``retry_at``: Unix seconds. ``failures``: (group, milliseconds since 1970)."""

    wire = ("state", "since", "retry_at", "trips", "prevented", "probe", "last", "failures")
    __slots__ = wire

    def __init__(self) -> None:
        self.state = CLOSED
        self.since = 0.0
        self.retry_at = 0.0
        self.trips = 0
        self.prevented = 0
        self.probe = NOBODY
        self.last = NOBODY
        self.failures: list[tuple[int, int]] = []

    def text(self) -> str:
        """As a ledger keeps it."""
        failures = ",".join([f"{group}.{at_ms}" for group, at_ms in self.failures]) or NOBODY
        instants = f"{self.since:.3f} {self.retry_at:.3f}"
        return f"{self.state} {instants} {self.trips} {self.prevented} {self.probe} {self.last} {failures}"

    @classmethod
    def read(cls, text: str) -> "State":
        """The inverse of ``text``. A damaged text is a closed breaker: it keeps no job from running."""
        kept, said = cls(), text.split(" ")
        if len(said) != 8 or said[0] not in STATES:
            return kept
        try:
            since, retry_at = float(said[1]), float(said[2])
            trips, prevented = int(said[3]), int(said[4])
            failures = [] if said[7] == NOBODY else [_failure(one) for one in said[7].split(",")]
        except ValueError:
            return kept
        kept.state, kept.since, kept.retry_at = said[0], since, retry_at
        kept.trips, kept.prevented, kept.probe, kept.last = trips, prevented, said[5], said[6]
        kept.failures = failures
        return kept

    def count(self, rule: Rule, groups: "list[int]", at_ms: int) -> bool:
        """One more end that these groups count; True once one of them has enough.

        Ends before the window are forgotten, and of each group no more is kept than it counts to.
        """
        counts = [count for count, _ in rule.groups]
        failures = [*self.failures, *[(group, at_ms) for group in groups]]
        self.failures, full = counted(failures, counts, at_ms, rule.window_ms)
        return full


def counted(
    failures: "list[tuple[int, int]]", counts: "list[int]", at_ms: int, window_ms: int
) -> "tuple[list[tuple[int, int]], bool]":
    """Those failures, GROUP and AT_MS each, that still count at that time; and True if a group has enough.

    ``counts``: how many make it enough, of the groups from 1 on. ``window_ms``: 0: there is no window.
    """
    kept: list[tuple[int, int]] = []
    full = False
    for number, count in enumerate(counts, 1):
        of_group = [one for one in failures if one[0] == number]
        if window_ms:
            of_group = [one for one in of_group if one[1] > at_ms - window_ms]
        kept += of_group[-count:]
        full = full or len(of_group) >= count
    return kept, full


def _failure(text: str) -> "tuple[int, int]":
    group, _, at_ms = text.partition(".")
    return int(group), int(at_ms)
