"""The applications of a run on a cluster manager: how they are marked, and what an attempt does about those it finds.

In deploy mode "cluster" the driver lives on the cluster, and outlives the process that submitted it. So each
application carries marks (tags of YARN, labels of Kubernetes, a property on Standalone) that are known before it is
submitted. An attempt looks for its run's mark before it submits anything. The tracker loads this file with the standard
library alone.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from coordd.core.ledger.words import FAILURE, LOST, RESOLVED, RETRY, REVOKED, SUCCESS, TIMED_OUT

# The states of an application. ENDED: it is over, and nobody can tell how.
ALIVE = "alive"
SUCCEEDED = "succeeded"
FAILED = "failed"
KILLED = "killed"
ENDED = "ended"

# What an attempt does. UNSEEN: an application of this run was there, and is not shown any more.
ADOPT = "adopt"
TAKE_END = "take_end"
SUBMIT = "submit"
UNSEEN = "unseen"

# The words of a mark, behind "coordd-".
ATTEMPT = "attempt"
TOKEN = "token"  # noqa: S105  # a word
CLUSTER = "cluster"
PREFIX = "coordd-"

# The property with all marks. Spark hides values with the words "token" and "secret" in its logs: this has none.
MARK = "spark.coordd.mark"

# The ledger writes this when a person has decided that a run with an unknown end is to be tried again, and when one
# replays a run that was given up.
REPLAYED = "; replayed by "
BY_PERSON = (f"{RESOLVED}relaunch by ", REPLAYED)


class Application(NamedTuple):
    """One application, as the cluster manager shows it. ``token``, ``attempt``: of the attempt that submitted it; 0 and
    -1 if its marks do not say. Instants in Unix seconds by the manager's clock; 0.0: unknown.
    """

    id: str
    state: str
    run_mark: str = ""
    token: int = 0
    attempt: int = -1
    detail: str = ""
    exit_code: int | None = None
    name: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    ui: str = ""


class Earlier(NamedTuple):
    """An earlier attempt of the run, as the ledger has it."""

    attempt: int
    token: int
    state: str
    application_id: str
    reason: str

    @property
    def settled(self) -> bool:
        """True if no application of this attempt, or of an earlier one, has an end that the ledger does not know: it
        reported the end of its application, or a person decided.
        """
        if any(text in self.reason for text in BY_PERSON):
            return True
        return self.state != LOST and self.application_id != ""


class Decision(NamedTuple):
    """What to do, with which application, and which others to end."""

    word: str
    application: Application | None = None
    others: tuple[Application, ...] = ()


def run_mark(cluster: str, run: str) -> str:
    """The mark of a run's applications: the same on each node, in lower case (as YARN makes it)."""
    return PREFIX + hashlib.sha256(f"{cluster}\0{run}".encode()).hexdigest()[:20]


def cluster_mark(cluster: str) -> str:
    """The mark of all applications of a coordd cluster."""
    return hashlib.sha256(cluster.encode()).hexdigest()[:12]


def yarn_tags(cluster: str, run: str, attempt: int, token: int) -> tuple[str, ...]:
    """The tags of an application on YARN."""
    return (
        run_mark(cluster, run),
        f"{PREFIX}{CLUSTER}-{cluster_mark(cluster)}",
        f"{PREFIX}{ATTEMPT}-{attempt}",
        f"{PREFIX}{TOKEN}-{token}",
    )


def labels(cluster: str, run: str, attempt: int, token: int) -> dict[str, str]:
    """The labels of a driver pod on Kubernetes."""
    return {
        f"{PREFIX}run": run_mark(cluster, run),
        f"{PREFIX}{CLUSTER}": cluster_mark(cluster),
        f"{PREFIX}{ATTEMPT}": str(attempt),
        f"{PREFIX}{TOKEN}": str(token),
    }


def property_mark(cluster: str, run: str, attempt: int, token: int) -> str:
    """All marks in one text: the property MARK of a driver on Standalone."""
    return f"{run_mark(cluster, run)}.{cluster_mark(cluster)}.{attempt}.{token}"


def number(text: object, *, missing: int) -> int:
    """A number in a mark; ``missing`` if it is not a number."""
    said = str(text)
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else missing


def pod_name(mark: str, earlier: Sequence[Earlier]) -> str:
    """The name of the driver pod. All attempts that may submit the same work share it, and Kubernetes accepts a name
    once: so a submission that arrives late is refused.
    """
    return f"{mark}-{sum(one.settled for one in earlier)}"


def decide(found: Sequence[Application], earlier: Sequence[Earlier]) -> Decision:
    """What an attempt does, given all applications of its run that are shown, and the earlier attempts."""
    alive = sorted([one for one in found if one.state == ALIVE], key=_age)
    if alive:
        return Decision(ADOPT, alive[-1], tuple(alive[:-1]))
    settled = [one for one in earlier if one.settled]
    floor = max([one.token for one in settled], default=0)
    known = {one.application_id for one in settled}
    news = [one for one in found if one.id not in known and (not one.token or one.token > floor)]
    if news:
        return Decision(TAKE_END, max(news, key=_age))
    if any(one.state == LOST and one.application_id and one.token > floor for one in earlier):
        return Decision(UNSEEN)
    return Decision(SUBMIT)


def _age(one: Application) -> tuple[int, float, str]:
    """The newest token counts; without marks, the newest application."""
    return one.token, one.started_at, one.id


# ---- a run whose end is unknown

# What a node does about it. WAIT: nothing now; END: ask for the end of the applications; REPORT: tell the ledger.
WAIT = "wait"
END = "end"
REPORT = "report"

# The ledger writes this about an attempt of which it only knows that its lease is over. Every other reason comes from
# a runner or a watcher that has ended all processes of the attempt.
ONLY_LAPSED = "its lease lapsed"


class Unknown(NamedTuple):
    """A run whose end is unknown, as the ledger has it. ``quiet_s``: the time since it last changed."""

    attempt: int
    token: int
    application_id: str
    reason: str
    cancelled: bool
    relaunches: int
    relaunches_max: int
    quiet_s: float

    @property
    def timed_out(self) -> str:
        """What its runner said if it ended the attempt for its timeout, and could not see the end of its application;
        else "".
        """
        return self.reason.split(";")[0] if self.reason.startswith(TIMED_OUT) else ""


class Verdict(NamedTuple):
    """``state``, ``exit_code``, ``application_id``: of the report. ``applications``: to be ended."""

    word: str
    why: str
    state: str = ""
    application_id: str = ""
    exit_code: int | None = None
    applications: tuple[Application, ...] = ()


def judge(
    run: Unknown, found: Sequence[Application], earlier: Sequence[Earlier], *, settle_s: float, forgets: str | None
) -> Verdict:
    """What a node does about a run whose end is unknown, given what the cluster manager shows.

    ``forgets``: why the cluster manager may have forgotten an application ("": it cannot; None: it was not asked).
    """
    decision = decide(found, earlier)
    one = decision.application
    if decision.word == ADOPT:
        assert one is not None
        if run.cancelled or (run.timed_out and one.token <= run.token):
            why = "the run is cancelled" if run.cancelled else run.timed_out
            alive = tuple([other for other in found if other.state == ALIVE])
            return Verdict(END, f"{one.id} is being ended: {why}", applications=alive)
        if run.relaunches >= run.relaunches_max:
            return Verdict(WAIT, f"{one.id} is alive, but the run was lost {run.relaunches} times and may be no more")
        return Verdict(REPORT, f"{one.id} is alive: the next attempt adopts it", RETRY, one.id)
    if decision.word == TAKE_END:
        assert one is not None
        return _reported(run, one)
    seen = run.application_id or next((e.application_id for e in earlier if not e.settled and e.application_id), "")
    if run.cancelled and seen:
        return Verdict(REPORT, f"{seen} is not shown any more after the run was cancelled", REVOKED, seen)
    if run.timed_out and seen:
        return Verdict(REPORT, f"{run.timed_out}: {seen} is not shown any more", FAILURE, seen)
    if seen:
        return Verdict(WAIT, f"{seen} was seen, and the cluster manager does not show it any more")
    if ONLY_LAPSED in run.reason or not run.reason:
        return Verdict(WAIT, "no application is shown, and whether its submitter is dead cannot be told")
    if run.quiet_s < settle_s:
        return Verdict(WAIT, f"no application is shown; one may appear for {settle_s - run.quiet_s:.0f} s more")
    if forgets is None or forgets:
        return Verdict(WAIT, f"no application is shown, and one may have been forgotten: {forgets or 'nobody knows'}")
    why = f"nothing was submitted: its submitter is dead, and within {settle_s:g} s no application was shown"
    if run.timed_out and not run.cancelled:
        return Verdict(REPORT, f"{run.timed_out}: {why}", FAILURE)
    return Verdict(REPORT, why, REVOKED if run.cancelled else RETRY)


def needs_memory(verdict: Verdict) -> bool:
    """True if the verdict depends on whether the cluster manager may have forgotten an application."""
    return verdict.word == WAIT and "one may have been forgotten" in verdict.why


def _reported(run: Unknown, one: Application) -> Verdict:
    if one.state == SUCCEEDED:
        return Verdict(REPORT, f"{one.id} succeeded", SUCCESS, one.id, 0)
    if one.state == ENDED:
        return Verdict(WAIT, f"{one.id} has ended, and the cluster manager does not say how")
    if run.cancelled:
        return Verdict(REPORT, f"{one.id} {one.state} after the run was cancelled", REVOKED, one.id, one.exit_code)
    code = one.exit_code or 1
    if run.timed_out:
        return Verdict(REPORT, f"{run.timed_out}: {one.id} {one.state}", FAILURE, one.id, code)
    return Verdict(REPORT, f"exit code {code}: {one.id} {one.state}: {one.detail}".rstrip(": "), FAILURE, one.id, code)
