"""The requests of nodes and people to the ledger, and the values in them. runner_requests.py says what a request is.

No runner needs these requests, so this file is not loaded before a job is started.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import Cursor
from coordd.core.ledger.runner_requests import Registration, Request
from coordd.core.ledger.words import OPEN_PAGE, SILENCE_S, AttemptNumber, Policy, Record, Token

# Why a node activates a definition.
HOW = ("new", "changed", "returned", "restored", "person")
# The outcomes that a person may give to an UNKNOWN run.
OUTCOMES = ("success", "failed", "relaunch")


# ---- values


class Watched(Record):
    """A node's own observation of a holder: under this token, the beat has not changed for ``unchanged_s`` seconds of
    the node's CLOCK_BOOTTIME.
    """

    wire = ("token", "beat", "unchanged_s")
    __slots__ = wire

    def __init__(self, *, token: Token, beat: int, unchanged_s: float) -> None:
        self.token = token
        self.beat = beat
        self.unchanged_s = unchanged_s


class Settled(Record):
    """Fire times that need no run any more: those that are due up to ``upto`` (Unix seconds) and have no row.

    ``decision``: one of fires.STRETCH_WORDS; "": nothing is recorded. The caller's schedule has ``count`` fire times
    that are due after ``after``, up to ``upto``; below 0: not counted.
    """

    wire = ("upto", "decision", "after", "count")
    __slots__ = wire

    def __init__(self, upto: float, decision: str = "", after: float = -1.0, count: int = -1) -> None:
        self.upto = upto
        self.decision = decision
        self.after = after
        self.count = count


NOTHING_SETTLED = Settled(0.0)


# ---- before a launch


class Register(Request[Answer]):
    """Write a run's row before its trigger is answered."""

    op = "register"
    wire = ("of",)
    __slots__ = wire

    def __init__(self, *, of: Registration) -> None:
        self.of = of


class Claim(Request[Answer]):
    """A node asks for one attempt.

    ``watched`` is the claimant's own observation of the holder, or None. ``settled``: fire times up to there are
    settled under the job's misfire policy. ``opens``: the row is made if there is none; a node that
    knows a triggered run only from an election says no, and each node of a child's period, which its parents open.
    """

    op = "claim"
    wire = ("of", "attempt", "nonce", "node", "lease_s", "watched", "settled", "opens")
    __slots__ = wire

    def __init__(
        self,
        *,
        of: Registration,
        attempt: AttemptNumber,
        nonce: str,
        node: str,
        lease_s: float,
        watched: "Watched | None" = None,
        settled: "Settled" = NOTHING_SETTLED,
        opens: bool = True,
    ) -> None:
        self.of = of
        self.attempt = attempt
        self.nonce = nonce
        self.node = node
        self.lease_s = lease_s
        self.watched = watched
        self.settled = settled
        self.opens = opens


class Settle(Request[Answer]):
    """End a run that nobody may launch any more, or whose holder is gone."""

    op = "settle"
    wire = ("run", "attempt", "watched")
    __slots__ = wire

    def __init__(self, *, run: str, attempt: AttemptNumber, watched: "Watched | None" = None) -> None:
        self.run = run
        self.attempt = attempt
        self.watched = watched


# ---- the sweep, and the ledger as a whole


class ListOpen(Request[OpenAnswer]):
    """The first page of the open rows, and the state of these jobs.

    ``host``: the node that sweeps ("": nobody who claims). If it does not sweep for ``silence_s``, it does not claim.
    ``since``: the cursor of an earlier answer; then only what has changed since is told, and the ``named`` runs (a line
    each). "", or a cursor that the ledger cannot serve: the first page.
    """

    op = "open"
    writes = False  # except for a job that was never seen before, and when a node was seen last
    wire = ("limit", "host", "silence_s", "since", "named", "jobs")
    __slots__ = wire

    def __init__(
        self,
        *,
        jobs: "tuple[str, ...]" = (),
        limit: int = 0,
        host: str = "",
        silence_s: float = SILENCE_S,
        since: str = "",
        named: str = "",
    ) -> None:
        """``limit``: rows per page, and changes in an answer; 0: OPEN_PAGE."""
        self.limit = limit or OPEN_PAGE
        self.host = host
        self.silence_s = silence_s
        self.since = since
        self.named = named
        self.jobs = jobs


class Page(Request[OpenAnswer]):
    """The page of a sweep after that row."""

    op = "page"
    writes = False
    wire = ("limit", "after")
    __slots__ = wire

    def __init__(self, *, after: Cursor, limit: int = 0) -> None:
        """``limit``: rows per page; 0: OPEN_PAGE."""
        self.limit = limit or OPEN_PAGE
        self.after = after


class ListEnded(Request[OpenAnswer]):
    """The runs of these jobs that have ended at ``since`` (Unix seconds, by the ledger's clock) or later, oldest first.

    The ledger looks at ``limit`` ended runs, of all jobs; ``after`` of the answer has the end of the last one.
    """

    op = "ended"
    writes = False
    wire = ("limit", "since", "jobs")
    __slots__ = wire

    def __init__(self, *, since: float, jobs: "tuple[str, ...]" = (), limit: int = 0) -> None:
        """``limit``: rows that are looked at; 0: OPEN_PAGE."""
        self.limit = limit or OPEN_PAGE
        self.since = since
        self.jobs = jobs


class PassOver(Request[Answer]):
    """Settle fire times that no node will launch: their start_within (seconds) has passed, and no row waits for one."""

    op = "pass_over"
    wire = ("job", "digest", "identity_from", "start_within_s", "settled")
    __slots__ = wire

    def __init__(self, *, job: str, digest: str, identity_from: float, start_within_s: float, settled: Settled) -> None:
        self.job = job
        self.digest = digest
        self.identity_from = identity_from
        self.start_within_s = start_within_s
        self.settled = settled


class Fill(Request[Answer]):
    """Open one fire time for the backfill ``plan`` (its id). ``left`` 0: the plan has no further fire time; ``of`` then
    tells only the job.
    """

    op = "fill"
    wire = ("plan", "left", "of")
    __slots__ = wire

    def __init__(self, *, plan: str, left: int = 1, of: Registration) -> None:
        self.plan = plan
        self.left = left
        self.of = of


class Rerun(Request[Answer]):
    """Open one run because its parent's run ``root`` was run once more, with its children."""

    op = "rerun"
    wire = ("root", "of")
    __slots__ = wire

    def __init__(self, *, root: str, of: Registration) -> None:
        self.root = root
        self.of = of


class NewRules(Request[Answer]):
    """All members know the new rules. ``known``: where the new rules began when they were last in force (Unix seconds),
    below 0.0 if never.
    """

    op = "new_rules"
    wire = ("known",)
    __slots__ = wire

    def __init__(self, *, known: float) -> None:
        self.known = known


class Activate(Request[Answer]):
    """That definition of a job counts from now on. ``how`` is one of HOW; see the rule.

    ``before``: the digests that the node knows to be older, oldest first, with a space between them. ``revision``: the
    number of the published revision that the definition comes from (0: from none).
    """

    op = "activate"
    wire = ("job", "digest", "schedule", "how", "by", "sequence", "counts_from", "before", "revision")
    __slots__ = wire

    def __init__(
        self,
        *,
        job: str,
        digest: str,
        schedule: str,
        how: str,
        by: str,
        sequence: int = 0,
        counts_from: float = 0.0,
        before: str = "",
        revision: int = 0,
    ) -> None:
        assert how in HOW, f"{job}: activated as {how}"
        self.job = job
        self.digest = digest
        self.schedule = schedule
        self.how = how
        self.by = by
        self.sequence = sequence
        self.counts_from = counts_from
        self.before = before
        self.revision = revision


class Adopt(Request[Answer]):
    """That revision of the job definitions is in force from now on, in place of revision ``replaces`` (0: of none).

    ``digest``: of its job files. ``jobs``: its definitions as text (core/ledger/revision/text.py). ``newest``: no later
    revision was published, so every other definition that the ledger has is withdrawn.
    """

    op = "adopt"
    wire = ("number", "digest", "replaces", "by", "uid", "jobs", "newest")
    __slots__ = wire

    def __init__(
        self, *, number: int, digest: str, replaces: int, by: str, uid: int = 0, jobs: str, newest: bool = True
    ) -> None:
        self.number = number
        self.digest = digest
        self.replaces = replaces
        self.by = by
        self.uid = uid
        self.jobs = jobs
        self.newest = newest


class Prune(Request[Answer]):
    """Forget at most ``limit`` runs that ended longer ago than ``keep_s``; the answer's ``token`` is the number."""

    op = "prune"
    wire = ("keep_s", "limit")
    __slots__ = wire

    def __init__(self, *, keep_s: float, limit: int = 1000) -> None:
        self.keep_s = keep_s
        self.limit = limit


class Vouch(Request[Answer]):
    """In a quarantine: this node has restored all that it knows.

    ``grants`` is its mark in ``life``, the ledger's life before this one; "": it has none.
    """

    op = "vouch"
    wire = ("host", "life", "grants")
    __slots__ = wire

    def __init__(self, *, host: str, life: str, grants: int) -> None:
        self.host = host
        self.life = life
        self.grants = grants


class Close(Request[Answer]):
    """Refuse every request from now on. ``force``: even if attempts hold leases."""

    op = "close"
    wire = ("force", "by")
    __slots__ = wire

    def __init__(self, *, force: bool = False, by: str) -> None:
        self.force = force
        self.by = by


class AcceptEpoch(Request[Answer]):
    """End the quarantine: a person knows that nothing was lost. Only if there is one."""

    op = "accept_epoch"
    wire = ()
    __slots__ = wire


# ---- people


class Revoke(Request[Answer]):
    """Forbid a run that has not started, whether it has a row or not.

    ``due``: the due time of a scheduled run, if the caller knows its job's jitter (0.0: the time in its id).
    """

    op = "revoke"
    wire = ("run", "by", "of")
    __slots__ = wire

    def __init__(self, *, run: str, by: str, due: float = 0.0) -> None:
        self.run = run
        self.by = by
        self.of = unseen(run, by, due)


class Cancel(Request[Answer]):
    """End a running attempt."""

    op = "cancel"
    wire = ("run", "by")
    __slots__ = wire

    def __init__(self, *, run: str, by: str) -> None:
        self.run = run
        self.by = by


class Resolve(Request[Answer]):
    """Resolve a run whose end is unknown: one of OUTCOMES."""

    op = "resolve"
    wire = ("run", "outcome", "by")
    __slots__ = wire

    def __init__(self, *, run: str, outcome: str, by: str) -> None:
        assert outcome in OUTCOMES, f"{run}: resolved as {outcome}"
        self.run = run
        self.outcome = outcome
        self.by = by


class Replay(Request[Answer]):
    """One more attempt of a run that was given up (a dead letter), under this definition and policy (its words).

    ``attempt``: the one with which it was given up. ``children``: the runs that run once more after it
    (core/ledger/rerun/plan.py); "": none. ``whole``: it may have ended in any way but a person's revocation, and has
    all tries of its policy before it.
    """

    op = "replay"
    wire = ("run", "attempt", "digest", "policy", "by", "children", "whole")
    __slots__ = wire

    def __init__(
        self,
        *,
        run: str,
        attempt: AttemptNumber,
        digest: str,
        policy: str,
        by: str,
        children: str = "",
        whole: bool = False,
    ) -> None:
        self.run = run
        self.attempt = attempt
        self.digest = digest
        self.policy = policy
        self.by = by
        self.children = children
        self.whole = whole


class Discard(Request[Answer]):
    """A person needs nothing more of a run that was given up (a dead letter) with this attempt."""

    op = "discard"
    wire = ("run", "attempt", "by", "note")
    __slots__ = wire

    def __init__(self, *, run: str, attempt: AttemptNumber, by: str, note: str) -> None:
        self.run = run
        self.attempt = attempt
        self.by = by
        self.note = note


class Suspend(Request[Answer]):
    """Suspend a job, or resume it. ``until`` (Unix seconds): it ends by itself then; 0.0: it does not.

    ``given``: resume it only if ``by`` has suspended it, and the hold of this key has the note ``noted`` ("": there is
    no such hold).
    """

    op = "suspend"
    wire = ("job", "suspended", "by", "uid", "until", "note", "given", "noted")
    __slots__ = wire

    def __init__(
        self,
        *,
        job: str,
        suspended: bool,
        by: str,
        uid: int = 0,
        until: float = 0.0,
        note: str = "",
        given: str = "",
        noted: str = "",
    ) -> None:
        self.job = job
        self.suspended = suspended
        self.by = by
        self.uid = uid
        self.until = until
        self.note = note
        self.given = given
        self.noted = noted


class Keep(Request[Answer]):
    """Hold all jobs or a node, or end that; ``key`` as in core/ledger/rows.py. ``until``: as in Suspend.

    ``given``: only if the hold of this key has the note ``noted`` ("": there is no such hold).
    """

    op = "keep"
    wire = ("key", "held", "by", "uid", "until", "note", "given", "noted")
    __slots__ = wire

    def __init__(
        self,
        *,
        key: str,
        held: bool,
        by: str,
        uid: int = 0,
        until: float = 0.0,
        note: str = "",
        given: str = "",
        noted: str = "",
    ) -> None:
        self.key = key
        self.held = held
        self.by = by
        self.uid = uid
        self.until = until
        self.note = note
        self.given = given
        self.noted = noted


class PlanBackfill(Request[Answer]):
    """Begin the backfill of a job; ``text``: core/ledger/backfill/plan.py. "": cancel the one that runs."""

    op = "plan"
    wire = ("job", "text", "by", "uid")
    __slots__ = wire

    def __init__(self, *, job: str, text: str, by: str, uid: int = 0) -> None:
        self.job = job
        self.text = text
        self.by = by
        self.uid = uid


def unseen(run: str, by: str, due: float) -> Registration:
    """The registration that follows from a run's id alone. ``due``: see Revoke. The ledger dates a triggered run."""
    fire_at = nominal_time(run)
    at, due = (0.0, 0.0) if fire_at is None else (fire_at, due)
    job = run.partition("#")[0].partition("@")[0]
    return Registration(run, job, "", Policy(), at, scheduled=fire_at is not None, by=by, due=due)


def nominal_time(run: str) -> "float | None":
    """The fire time in a scheduled run's id; None for a triggered run."""
    from datetime import datetime  # needed only when somebody revokes a run without a row

    if "#" in run:
        return None
    try:
        instant = datetime.fromisoformat(run.partition("@")[2].partition("~")[0])  # a member of a group ends with ~N
    except ValueError:
        return None
    return instant.timestamp() if instant.tzinfo else None
