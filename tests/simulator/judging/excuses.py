"""Excuses: exceptions that are not violations. Each has a cause, a budget and a reason.

The judge grants an excuse only if a fault of that world matches the run, the node and the time. A defect may still hide
behind an excuse, and then the excuse is granted more often. So each has a budget: a rate per thousand worlds of its
kind. Above it, `make sim` and the tests fail. A budget is twice the rate of a product without that defect.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Kinds of worlds.
KEEPING, FORGETFUL = "a ledger that keeps what it has acknowledged", "a ledger that goes back"
ANY = "any"

# This many excuses above the budget prove nothing, for any number of worlds.
FEW = 3

# Of one world no more than this many are counted of an excuse: one odd clock excuses every run that it touches. A
# defect behind an excuse shows in many worlds.
FROM_ONE_WORLD = 3


@dataclass(frozen=True)
class Excuse:
    """One thing that is not promised."""

    name: str
    of: str  # the kind of worlds that it is counted in
    budget: float  # the maximum in a thousand worlds of that kind
    why: str


CUT_OFF = Excuse(
    "the launcher was cut off",
    FORGETFUL,
    160,
    "a lost write whose launcher reached neither ledger nor bus from then to the end of the quarantine",
)
WITNESSES_LOST = Excuse(
    "no witness was left",
    FORGETFUL,
    300,
    "all that were handed the news died, froze, or were cut off from the ledger in the quarantine",
)
STEPPED = Excuse(
    "the clock stepped",
    FORGETFUL,
    70,
    "the ledger's clock was set forward in the quarantine, so that it ended before a witness had its time",
)
PUBLISHED = Excuse(
    "its commit was forgotten", FORGETFUL, 50, "no witness tells the ledger of a commit; it was made in what was lost"
)
END_FORGOTTEN = Excuse(
    "an end was forgotten",
    FORGETFUL,
    120,
    "the run was over, and no witness has told the ledger so: it goes on, beside another",
)
RATE_AHEAD = Excuse(
    "a rate forgot its starts",
    ANY,
    4,
    "the ledger's clock was ahead for a while: a grant that it dated then dropped the earlier ones from the rate",
)
# This many lost replies about one run may cost the run its lease: replies to its claim, and then to its renewals.
MANY_REPLIES = 3
UNANSWERED = Excuse(
    "many answers about it were lost", ANY, 1, "the ledger's answers about this run, one after the other"
)
GIVEN_BACK = Excuse(
    "its node got another definition",
    ANY,
    20,
    "after it had asked for that run: it gives the attempt back, not started",
)
FROZEN = Excuse(
    "its machine stood still",
    ANY,
    400,
    "the lease ended while the whole machine was frozen: the program lives on until it thaws",
)
RESOLVED = Excuse(
    "a person had said that it is over", ANY, 40, "this very attempt was resolved while its program still lived"
)
TRIGGER_FORGOTTEN = Excuse(
    "an accepted trigger was forgotten",
    FORGETFUL,
    2000,
    "its row was lost before anybody was granted it: no witness knows of it",
)
ACKNOWLEDGED_FORGOTTEN = Excuse(
    "an acknowledged message was forgotten",
    FORGETFUL,
    200,
    "its row was lost after its message was acknowledged, and before anybody was granted it: no witness knows of it",
)
FIRE_TIME_FORGOTTEN = Excuse(
    "a fire time was forgotten",
    FORGETFUL,
    1000,
    "its row was lost before it was granted, or the job itself, which then begins at the ledger's time",
)
NEVER_WRITTEN = Excuse(
    "a fire time died with its daemons",
    ANY,
    80,
    "the ledger was away when it came up, and a daemon that pursued it died before it could write it there",
)
SET_BACK = Excuse(
    "its ledger's clock was set back",
    ANY,
    1,
    "it was due before its job was known, and the ledger opened it when its clock was set back to before that, or had "
    "not come back to the instant that it had shown when the job began",
)
COUNTED_LATER = Excuse(
    "a fire time before its definition counted",
    ANY,
    20,
    "the ledger heard of that schedule late, or by a clock that was ahead: it counts from then",
)
NOT_CAUGHT_UP = Excuse(
    "a fire time was beyond what is caught up", ANY, 20, "no more are caught up in that world, and as many came later"
)
STRANGER = Excuse(
    "a node had never had the job",
    ANY,
    2,
    "the job was removed everywhere and came back; a node that was started then, without memory of it, asked first",
)
NOBODYS = Excuse(
    "nobody is left with the definition that counts",
    ANY,
    2,
    "a node whose file was not edited yet told the ledger of its definition last, and died: a person says which counts",
)
DUE_AGAIN = Excuse(
    "a forgotten run was due again",
    ANY,
    1,
    "retention of seconds forgot it, and by a longer jitter it is due later than what is settled",
)
LIED_TO = Excuse(
    "its view was made up", ANY, 60, "a liar spoke of that very election, or in the name of a member of its view"
)

PASSED = Excuse(
    "a run was passed in its line",
    ANY,
    100,
    "while faults last: by a node that does not know the line yet, or is cut off, or by a claim without an answer",
)

OUTRUN = Excuse(
    "a retry came back to its node",
    ANY,
    1,
    "it lets the others ask first, for the timeout of an election: the clock of each was slower by more than that",
)

DEAF_AT_FIRST = Excuse(
    "a node that has just started hears no elections",
    ANY,
    1,
    "its clock was set since, and so were others whose nodes had answered its hello: it may have heard all that before",
)

EXCUSES = (
    PASSED,
    OUTRUN,
    UNANSWERED,
    GIVEN_BACK,
    DEAF_AT_FIRST,
    CUT_OFF,
    WITNESSES_LOST,
    STEPPED,
    RATE_AHEAD,
    PUBLISHED,
    END_FORGOTTEN,
    FROZEN,
    RESOLVED,
    TRIGGER_FORGOTTEN,
    ACKNOWLEDGED_FORGOTTEN,
    FIRE_TIME_FORGOTTEN,
    NEVER_WRITTEN,
    SET_BACK,
    COUNTED_LATER,
    NOT_CAUGHT_UP,
    STRANGER,
    NOBODYS,
    DUE_AGAIN,
    LIED_TO,
)


def counted(granted: Counter[str]) -> Counter[str]:
    """What counts of the excuses of one world."""
    return Counter({name: min(times, FROM_ONE_WORLD) for name, times in granted.items()})


def exceeded(granted: Counter[str], worlds: Counter[str]) -> list[str]:
    """A message for each exceeded budget. ``granted``: excuses by name; ``worlds``: worlds by kind.

    If there are few worlds, a rare excuse may be frequent by chance. So three standard deviations more are allowed.
    """
    told = []
    for excuse in EXCUSES:
        of = worlds[excuse.of] if excuse.of != ANY else sum(worlds.values())
        expected = excuse.budget * of / 1000
        if granted[excuse.name] > expected + 3 * expected**0.5 + FEW:
            told.append(
                f"BUDGET {excuse.name!r} was granted {granted[excuse.name]} times in {of} worlds, "
                f"and {excuse.budget:g} in 1,000 are allowed: {excuse.why}"
            )
    return told
