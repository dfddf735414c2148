"""Jobs after jobs: which run of a child the ends of its parents open, and when it is missed instead.

The ends are those of rows in the ledger. They are joined by period: a parent's fire time, floored in the child's time
zone, or the id of a run that was triggered. A parent that ends several times in a period joins with its first end that
fits. Nothing here keeps a count: the same rows give the same verdict on every node, and at every time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from coordd.core.groups.expand import group_of, how_it_ended
from coordd.core.jobs.job import After, iso, scheduled_run, triggered_run
from coordd.core.jobs.schedule import zone
from coordd.core.ledger.rerun.plan import FITS
from coordd.core.ledger.words import ABSENT, OPENED, REPEATED, RERUN

# A run is missed this long (seconds) after its time is over: the end of a parent may just be written.
GRACE_S = 5.0

# At most this many parents are named in a row, in at most this many characters.
NAMED_MAX = 10
TOLD_MAX = 1000

DAY_S = 86400.0
HOUR_S = 3600.0
_BEGIN = datetime(1970, 1, 1)  # noqa: DTZ001 - local time in any zone


class Period(NamedTuple):
    """What the runs of parents and child have in common: a fire time (Unix seconds), or the id of a trigger."""

    at: float
    ident: str = ""

    def run_of(self, job: str) -> str:
        """The run of a job for this period."""
        return triggered_run(job, self.ident) if self.ident else scheduled_run(job, self.at)


class Came(NamedTuple):
    """The end of a parent: when, and of which run."""

    at: float
    run: str


class Ends:
    """The parents' ends in one period, as far as they are known."""

    __slots__ = ("came", "first_at", "groups", "last_at", "others", "run", "unknown")

    def __init__(self, run: str) -> None:
        self.run = run  # of the child, if it has no schedule of its own
        self.came: dict[str, Came] = {}  # parent -> its first end that fits
        self.groups: dict[str, dict[str, tuple[float, str]]] = {}  # group -> its members that have ended: when, and how
        self.others: dict[str, str] = {}  # parent -> how it ended otherwise, last
        self.first_at = 0.0  # the first end of any of them; 0.0: none
        self.last_at = 0.0
        self.unknown = False  # this node does not know how many members a group has

    def note(self, after: After, parent: str, run: str, state: str, at: float) -> None:
        """A run of a parent has ended; in any order, and any number of times."""
        self.first_at = min(self.first_at or at, at)
        self.last_at = max(self.last_at, at)
        fits = FITS[after.on]
        if fits is not None and state not in fits:
            self.others[parent] = state
        elif parent not in self.came or at < self.came[parent].at:
            self.came[parent] = Came(at, run)

    def note_member(self, after: After, parent: str, run: str, count: int, state: str, at: float) -> None:
        """One of the ``count`` members of a group has ended. When all have, the group has, with the last."""
        group = group_of(run)
        members = self.groups.setdefault(group, {})
        members[run] = at, state
        if len(members) >= count:
            state = how_it_ended([how for _, how in members.values()])
            self.note(after, parent, group, state, max(ended_at for ended_at, _ in members.values()))
        elif parent not in self.came:
            self.others[parent] = f"{len(members)} of {count} have ended"
        self.first_at = min(self.first_at or at, at)
        self.last_at = max(self.last_at, at)

    def joined(self, after: After) -> tuple[Came, ...]:
        """The ends that open the child, oldest first; nothing while one is missing."""
        found = sorted(self.came.values())
        if after.needs == "any":
            return tuple(found[:1])
        return tuple(found) if len(found) == len(after.jobs) else ()

    def absent(self, after: After) -> str:
        """The parents that have not ended as they should, for people."""
        names = [name for name in after.jobs if name not in self.came]
        told = [f"{name} ({self.others[name]})" if name in self.others else name for name in names[:NAMED_MAX]]
        return ", ".join(told) + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")

    def opened_by(self, after: After) -> str:
        """Which runs have opened the child, for its row."""
        text = OPENED
        for came in self.joined(after):
            if len(text) + len(came.run) > TOLD_MAX:
                break
            text += came.run if text == OPENED else f", {came.run}"
        return text


class Verdict(NamedTuple):
    """What becomes of the child's run: it is opened (``by`` begins with OPENED) and due at ``due``; or it is missed
    (ABSENT); or it waits ("") until ``until`` at the latest. Unix seconds.
    """

    by: str
    due: float
    until: float


def judged(after: After, timezone: str, period: Period, ends: Ends, own_due: float, wall: float) -> Verdict:
    """The verdict at ``wall`` by the ledger's clock. ``own_due``: when the child's own schedule lets it start; 0.0: it
    has none.
    """
    until = _deadline(after, timezone, period, ends, own_due)
    joined = ends.joined(after)
    at = joined[-1].at if joined else 0.0
    if joined and at <= until:
        return Verdict(ends.opened_by(after) if own_due <= wall else "", max(at, own_due), until)
    if wall <= until + GRACE_S:
        return Verdict("", 0.0, until)
    late = [f"{name} (ended at {iso(round(came.at))})" for name, came in ends.came.items() if came.at > until]
    absent = ", ".join([text for text in (ends.absent(after), *late[:NAMED_MAX]) if text])
    return Verdict((ABSENT + absent)[:TOLD_MAX], ends.first_at or own_due, until)


def _deadline(after: After, timezone: str, period: Period, ends: Ends, own_due: float) -> float:
    """Up to when the parents are awaited: counted from the period's end, the first end of a parent, or the child's own
    time.
    """
    if after.period_s and not period.ident:
        return max(period_end(period.at, after.period_s, timezone), own_due) + after.within_s
    return max(ends.first_at, own_due) + after.within_s


def period_of(after: After, timezone: str, run: str, fire_at: float, *, scheduled: bool) -> Period:
    """The period of a parent's run, or of a fire time of the child."""
    if not scheduled:
        return Period(0.0, group_of(run).partition("#")[2])
    return Period(floored(fire_at, after.period_s, timezone) if after.period_s else fire_at)


def floored(at: float, period_s: float, timezone: str) -> float:
    """The beginning of the period that an instant lies in, by the clocks of a zone: of a day, its midnight there.

    Where clocks are set back, the repeated hour belongs to the same period of more than an hour, and is a period of its
    own for shorter ones.
    """
    tz = zone(timezone)
    local = datetime.fromtimestamp(at, tz)
    passed_s = (local.replace(tzinfo=None) - _BEGIN).total_seconds()
    begin = local.replace(tzinfo=None) - timedelta(seconds=passed_s % period_s)
    fold = local.fold if period_s <= HOUR_S else 0
    return begin.replace(tzinfo=tz, fold=fold).astimezone(UTC).timestamp()


def period_end(begin: float, period_s: float, timezone: str) -> float:
    """The end of a period, by the clocks of a zone: a day may have 23 or 25 hours."""
    if period_s <= HOUR_S:
        return begin + period_s
    tz = zone(timezone)
    local = datetime.fromtimestamp(begin, tz).replace(tzinfo=None) + timedelta(seconds=period_s)
    return local.replace(tzinfo=tz).astimezone(UTC).timestamp()


def lookback_s(after: After) -> float:
    """How long ago (seconds) the ends are that still matter; a day more than a period may be as long as clocks say."""
    return after.period_s + after.within_s + (HOUR_S if after.period_s else 0.0) + 2 * GRACE_S


def parents_of(by: str) -> tuple[str, ...]:
    """The runs that opened a run; () if it was opened in another way."""
    named = by.removeprefix(OPENED).partition(RERUN)[0]
    return tuple(named.split(", ")) if by.startswith(OPENED) else ()


def rerun_of(by: str) -> tuple[str, str]:
    """Of a run that a person ran once more: the run with its earlier attempt, as RUN/ATTEMPT, and who did. Of one that
    runs once more since a parent did: that run of a person's, with its new attempt. ("", "") for another one.
    """
    told = by.partition(RERUN)[2] if by.startswith(OPENED) else ""
    if by.startswith(REPEATED):
        told = by.removeprefix(REPEATED)
    attempt, _, who = told.rpartition(" by ")
    return attempt, who if attempt else ""


def was_missed(by: str) -> str:
    """The absent parents of a run that was missed for them; "" for another one."""
    return by.removeprefix(ABSENT) if by.startswith(ABSENT) else ""
