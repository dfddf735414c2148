"""The rules in force, and the second row of each job, beside the one that older versions read and write.

An older version (it knows only the rules 1) may have a daemon or runners in the same cluster. While it has a daemon,
all nodes use its rules. Once all members know the rules 2, a node asks for them (``new_rules``). From then on, the row
of each job that the older version reads is a barrier: its horizon is far in the future and the job is suspended. So an
old daemon opens nothing, and its own rules refuse its claims. Old runners continue: their requests (renew, report,
commit, the gate of a started attempt, restore) read neither. The job's real state is in ``standing``. Only the fencing
counter has one place, because both versions increment it.

The runner loads this file before it starts a job, so it imports only its neighbours and the errors.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import (
    ALL,
    OF_BACKFILL,
    OF_BREAKER,
    OF_CHECK,
    OF_ISOLATED,
    OF_JOB,
    OF_NODE,
    OF_POOL,
    OF_REPORTED,
    OF_RERUN,
    REVISION,
    Activation,
    Hold,
    JobRow,
    LedgerTime,
)
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import (
    CLAIM_AHEAD_S,
    DIFFERS,
    EARLY,
    FINISHED,
    NEVER,
    NEW_RULES,
    OK,
    OUTDATED,
    RECEIVED,
    RECOVERING,
    SETTLED,
)
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Activate, NewRules
    from coordd.core.ledger.revision.text import InForce
    from coordd.core.ledger.rows import Store

# The old rules can have granted only runs that are due at most CLAIM_AHEAD_S after the new rules begin; and every node
# has swept meanwhile, so that no node opens such a run under another id.
IDENTITY_AHEAD_S = 10.0

# After the clock has passed the instant from which a definition was to count, earlier due runs are opened at most this
# late (seconds): their time was before the clock got there.
LATE_S = 10.0

# The barrier that older versions read: its horizon (Unix seconds, in a thousand years), and who "suspended" it.
BARRIER_AT = 3.2e10
BARRIER_BY = "coordd rules 2: upgrade this node"

# The ledger keeps under this name when it first heard of a job: its first horizon, as text.
FIRST_HEARD = "first-heard:"


class Standing:
    """The rules in force, and the definitions that count. ``store`` is one transaction."""

    # ---- rules

    def _identity_from(self, store: "Store") -> float:
        """Runs that are due after this instant have their nominal time in their id; NEVER while the old rules are in
        force.

        A ledger that never had a job begins with the new rules.
        """
        kept = store.meta("identity_from")
        if kept:
            return float(kept)
        if store.has_jobs():
            return NEVER
        store.put_meta("rules", str(NEW_RULES))
        store.put_meta("identity_from", "0")
        return 0.0

    def new_rules(self, store: "Store", said: "NewRules", now: LedgerTime) -> Answer:
        """All members know the new rules: from now on they are in force. ok, or recovering.

        If the caller saw them in force before, the ledger has forgotten it: they begin where they began then.
        """
        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        if self._identity_from(store) != NEVER:
            return Answer(OK)
        begin = said.known if said.known >= 0 else now.wall + IDENTITY_AHEAD_S
        store.put_meta("rules", str(NEW_RULES))
        store.put_meta("identity_from", repr(begin))
        for name in store.job_names():
            self._keep_barrier(store, name)
        return Answer(OK, in_s=max(0.0, begin - now.wall))

    def _keep_barrier(self, store: "Store", name: str) -> "JobRow | None":
        """Under the new rules: makes the job's row a barrier against older versions, even if one of them wrote it.

        Returns the new row; None if there is none, or a bad one.

        An attempt that was granted under the old rules may still wait at its gate, which a suspended job keeps closed:
        meanwhile the row is not suspended.
        """
        begin = self._identity_from(store)
        try:
            row = store.job(name)
        except BadRowError:
            return None  # no node opens anything of it
        if begin == NEVER or row is None:
            return row
        if row.horizon >= BARRIER_AT and row.suspended and row.changed_by == BARRIER_BY:
            return row
        if store.standing(name) is None:
            store.put_standing(row)  # an older version created the job since
        waits = any(one.state == RECEIVED and one.received_at <= begin for one in store.active_runs(name))
        if row.horizon >= BARRIER_AT and waits and row.changed_by == BARRIER_BY:
            return row
        barrier = JobRow(name, row.fence, BARRIER_AT, int(not waits), row.version, BARRIER_BY)
        store.put_job(barrier)
        return barrier

    # ---- jobs

    def _known(self, store: "Store", name: str, read: "JobRow | None" = None) -> "JobRow | None":
        """The state of the job; None if the ledger never heard of it. ``read``: the row, if it was read already."""
        row = read or store.job(name)
        if row is None or self._identity_from(store) == NEVER:
            return row
        standing = store.standing(name)
        if standing is None:
            return row  # created by an older version, and not swept yet
        standing.fence = row.fence
        return standing

    def _job(self, store: "Store", name: str, now: LedgerTime, read: "JobRow | None" = None) -> JobRow:
        """As ``_known``, but a job that is new to the ledger gets a row: it starts now."""
        job = self._known(store, name, read)
        if job is None:
            job = JobRow(name, horizon=now.wall)
            self._put_job(store, job)
            store.put_meta(FIRST_HEARD + name, repr(now.wall))
        return job

    def _mended_job(self, store: "Store", name: str, now: LedgerTime) -> JobRow:
        """As ``_job``, for people: a bad row is replaced by a valid one.

        Its tokens continue above the highest one of the job's runs, and above the ledger's clock. The second row is
        kept if it is valid; otherwise the job starts now, with the definition that was activated last.
        """
        try:
            return self._job(store, name, now)
        except BadRowError:
            job = self._rest_of(store, name, now)
        job.fence = max(store.highest_token(name), int(now.wall * 1e6))
        # Asked while the row is there: a ledger that has no jobs begins with the new rules.
        old_rules = self._identity_from(store) == NEVER
        store.drop_job(name)
        if old_rules:
            store.put_job(job)
        else:
            self._put_job(store, job)
        return job

    def _rest_of(self, store: "Store", name: str, now: LedgerTime) -> JobRow:
        try:
            standing = store.standing(name) if self._identity_from(store) != NEVER else None
        except BadRowError:
            standing = None
        job = standing or JobRow(name, horizon=now.wall)
        if standing is None and (activations := store.activations(name)):
            last = activations[-1]
            job.sequence, job.digest, job.schedule = last.sequence, last.digest, last.schedule
            job.activated_at, job.counts_from = last.activated_at, last.counts_from
        return job

    def _swept_job(self, store: "Store", name: str, now: LedgerTime) -> JobRow:
        """As ``_job``, after the corrections of a sweep.

        A definition that was activated while the ledger's clock was ahead counts from now. That instant is stored: with
        a new "now" at every sweep, a slightly late claim would be skipped. A job that was first seen by such a clock
        starts now too.
        """
        job = self._job(store, name, now, self._keep_barrier(store, name))
        moved_back = self._moves_back(store, job, now)
        counts_ahead = job.digest and job.counts_from > now.wall
        if counts_ahead:
            job.counts_from = now.wall
        if moved_back or counts_ahead:
            self._put_job(store, job)
            self._clock_is_right(store, job)
        return job

    def _moves_back(self, store: "Store", job: JobRow, now: LedgerTime) -> bool:
        """Move the horizon of a job back to now if it is ahead of the clock and settles nothing: True if it was.

        Nothing of the job was ever granted then; or the horizon is still the instant at which the ledger first heard of
        it, by a clock that was ahead, and what it was granted since had no fire time.
        """
        if job.horizon <= now.wall or now.recovering_s > 0:
            return False
        if job.fence and store.meta(FIRST_HEARD + job.job) != repr(job.horizon):
            return False
        job.horizon = now.wall
        store.put_meta(FIRST_HEARD + job.job, repr(now.wall))
        return True

    def _clock_is_right(self, store: "Store", job: JobRow) -> None:
        """The job's horizon, or where its definition counts from, was ahead of the clock, and is not any more."""

    def _put_job(self, store: "Store", row: JobRow) -> None:
        if self._identity_from(store) == NEVER:
            store.put_job(row)
            return
        read = store.job(row.job)
        waits = read is not None and read.horizon >= BARRIER_AT and not read.suspended
        store.put_standing(row)
        store.put_job(JobRow(row.job, row.fence, BARRIER_AT, int(not waits), row.version, BARRIER_BY))

    def _told(self, store: "Store", name: str) -> "JobRow | None":
        """A job's row for an export."""
        row = self._known(store, name)
        if row is not None:
            row.past = [past.values() for past in store.activations(name)]
        return row

    def _take(self, store: "Store", row: JobRow) -> None:
        """A job's row from an export; an older version's does not have the earlier definitions."""
        self._put_job(store, row)
        for values in row.past:
            store.put_activation(row.job, Activation(*values))
        if row.digest and not any(values[1] == row.digest for values in row.past):
            counts = (row.sequence, row.digest, row.schedule, row.activated_at, row.counts_from)
            store.put_activation(row.job, Activation(*counts, "import"))

    # ---- definitions

    def _opens(self, store: "Store", job: JobRow, of: Registration, now: LedgerTime) -> "Answer | None":
        """Why a scheduled run without a row must not get one; None if it may."""
        if not of.scheduled:
            return None
        begin = self._identity_from(store)
        if of.identity_from != begin:
            return Answer(OUTDATED)
        if begin != NEVER and job.digest:
            if of.digest != job.digest:
                return Answer(DIFFERS)
            if of.due <= _counts_from(job, now):
                return Answer(FINISHED, state=SETTLED)
            if now.wall - of.due > LATE_S and of.due <= self._was_to_count_from(store, job) <= now.wall:
                return Answer(FINISHED, state=SETTLED)
        ahead_s = of.due - now.wall - CLAIM_AHEAD_S
        # By the ledger's clock: the asking node's may be hours ahead, and its rows would settle future fire times.
        return Answer(EARLY, in_s=ahead_s) if ahead_s > 0 else None

    def _is_over(self, store: "Store", job: "JobRow | None", due: float, now: LedgerTime) -> bool:
        """True if no scheduled run that is due then can get a row any more: it is settled, or was due before the job's
        definition counted. It may have had a row, which retention has forgotten.
        """
        if job is None or now.recovering_s > 0:
            return False
        defined = job.digest != "" and self._identity_from(store) != NEVER
        return due <= job.horizon or (defined and due <= _counts_from(job, now))

    def _was_to_count_from(self, store: "Store", job: JobRow) -> float:
        """The instant from which the definition was to count, as said at its activation.

        ``counts_from`` is earlier if a sweep found it ahead of the clock. The clock may have been wrong: set back, and
        right again since. Then a run that is later than LATE_S is not opened any more.
        """
        activations = store.activations(job.job)
        return activations[-1].counts_from if activations else 0.0

    def _was_scheduled(self, store: "Store", job: JobRow, now: LedgerTime) -> bool:
        """True if a job without a definition had a schedule: the ledger has forgotten the definition, or the job comes
        from the old rules.
        """
        return store.last_fire_at(job.job, now.wall + CLAIM_AHEAD_S) > 0 or job.horizon < self._identity_from(store)

    def _first_counts_from(self, store: "Store", job: JobRow, how: str, now: LedgerTime) -> float:
        """From when the first definition of a job counts.

        Under the old rules jobs had schedules without a definition: such a job continues at its horizon. The horizon of
        any other job tells only when it was first seen, and it may have had no schedule since.
        """
        return job.horizon if how != "returned" and self._was_scheduled(store, job, now) else now.wall

    def activate(self, store: "Store", said: "Activate", now: LedgerTime) -> Answer:
        """That definition of a job counts from now on: ok (token: its sequence), differs (another one still counts).

        ``schedule`` is the digest of the schedule's part. If it is unchanged, no due run is lost; otherwise the
        definition opens only runs that are due after this instant. ``how``: ``changed`` (the node had another one
        before), ``new`` (it never had one: then only a definition that is new to the ledger counts), ``returned`` (the
        node had no schedule of that job since ``sequence``: runs that were due meanwhile are not opened, even by the
        same definition), ``restored`` (the ledger forgot it: ``sequence`` and ``counts_from`` are as the node
        remembers; 0.0: it was not told the latter yet), ``person``. If the ledger remembers no definition of the job,
        it is told the older ones, so that a node whose file is not edited yet does not bring one of them as if it were
        new.
        """
        name, how, sequence = said.job, said.how, said.sequence
        if now.recovering_s > 0 and how != "restored":
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        if self._identity_from(store) == NEVER:
            return Answer(OUTDATED)
        job = self._job(store, name, now)
        began = 0.0
        returns = how == "returned" and sequence >= job.sequence  # and no other node has activated it since
        returned = how == "restored" and sequence > job.sequence and said.counts_from > job.counts_from  # and forgotten
        if job.digest == said.digest and not (returns or returned):
            return Answer(OK, token=job.sequence)
        if how == "restored":
            if sequence <= job.sequence:
                return Answer(DIFFERS, token=job.sequence)
            # Before a sweep has told the node that instant (0.0): not before the definition that it replaced.
            begins = said.counts_from or job.counts_from
        else:
            seen = how in ("new", "returned") and not returns
            if seen and any(past.digest == said.digest for past in store.activations(name)):
                return Answer(DIFFERS, token=job.sequence)
            begins = now.wall
            if job.digest:  # a clock that is behind dates this definition before the one that it replaces
                began = self._was_to_count_from(store, job)
            if how != "returned" and job.digest and said.schedule == job.schedule:
                begins = job.counts_from
            elif not job.digest:
                begins = self._first_counts_from(store, job, how, now)
        older = [] if store.activations(name) else said.before.split()
        job.sequence = max(job.sequence, sequence - (how == "restored")) + 1
        for number, digest in enumerate(older, job.sequence - len(older)):
            store.put_activation(name, Activation(number, digest, "", now.wall, begins, said.by))
        job.digest, job.schedule, job.activated_at, job.counts_from = said.digest, said.schedule, now.wall, begins
        self._put_job(store, job)
        first = max(begins, began)
        store.put_activation(name, Activation(job.sequence, said.digest, said.schedule, now.wall, first, said.by))
        return Answer(OK, token=job.sequence)


# The ledger's own values that are holds begin so.
_META = "hold:"


class Holds(Standing):
    """What people have stopped, until an instant or until they end it. ``store`` is one transaction.

    Three kinds of holds, each under a key: ALL (every job), ``node:NAME`` (a drained node), ``job:NAME`` (a suspended
    job). A hold ends by itself when the ledger's clock reaches ``until``. The first operation that notices removes it.

    A suspended job also has a flag in its row, which older versions read and write. Its hold counts only for the
    version of the row that it was written for. If an older version suspends the job, there is no hold: no limit, no
    note.
    """

    def _hold(self, store: "Store", key: str, now: LedgerTime) -> "Hold | None":
        """The hold under that key; None if there is none, or none any more."""
        text = store.meta(_META + key)
        hold = Hold.read(text) if text else None
        if hold is not None and hold.has_ended(now):
            self._put_hold(store, key, None)
            return None
        return hold

    def _revision(self, store: "Store", now: LedgerTime) -> "InForce":
        """The published revision that is in force."""
        from coordd.core.ledger.revision.text import read

        hold = self._hold(store, REVISION, now)
        return read(hold.note if hold is not None else "")

    def _note(self, store: "Store", key: str) -> str:
        """The note of a hold that has no end; "" if there is none."""
        text = store.meta(_META + key)
        return Hold.read(text).note if text else ""

    def _put_hold(self, store: "Store", key: str, hold: "Hold | None") -> None:
        """Write it; None removes it."""
        text = hold.text() if hold is not None else ""
        if store.meta(_META + key) != text:
            store.put_meta(_META + key, text)
            if key.startswith(OF_JOB):
                store.number(key)

    def _is_suspended(self, store: "Store", job: JobRow, now: LedgerTime) -> bool:
        """True if the job itself is suspended. A suspension that has reached its end is removed from the row."""
        if not job.suspended:
            return False
        hold = self._hold_of(store, job)
        if hold is None or not hold.has_ended(now):
            return True
        job.suspended = 0
        job.version += 1
        self._put_hold(store, OF_JOB + job.job, None)
        self._put_job(store, job)
        return False

    def _hold_of(self, store: "Store", job: JobRow) -> "Hold | None":
        """The hold of a suspended job; None if an older version has suspended it."""
        text = store.meta(_META + OF_JOB + job.job)
        hold = Hold.read(text) if text else None
        return hold if hold is not None and hold.version == job.version else None

    def _nothing_starts(self, store: "Store", job: JobRow, now: LedgerTime) -> bool:
        """True if no run of the job may start: it is suspended, or all jobs are."""
        return self._is_suspended(store, job, now) or self._hold(store, ALL, now) is not None

    def _common_holds(self, store: "Store", now: LedgerTime) -> "dict[str, Hold]":
        """The holds on all jobs and on nodes, sizes of pools, plans of backfills and re-runs, breakers of jobs,
        checks and the revision in force, by key.
        """
        kinds = (OF_NODE, OF_POOL, OF_BACKFILL, OF_BREAKER, OF_ISOLATED, OF_CHECK, OF_REPORTED, OF_RERUN)
        keys = [ALL, REVISION, *(key[len(_META) :] for kind in kinds for key in store.metas_like(_META + kind))]
        found = {key: self._hold(store, key, now) for key in keys}
        return {key: hold for key, hold in found.items() if hold is not None}

    def _every_hold(self, store: "Store") -> "dict[str, Hold]":
        """For an export: all of them, ended ones too."""
        return self.marks(store, "")

    def mark(self, store: "Store", key: str) -> "Hold | None":
        """The hold of that key, also if its end is over."""
        text = store.meta(_META + key)
        return Hold.read(text) if text else None

    def marks(self, store: "Store", prefix: str) -> "dict[str, Hold]":
        """The same for all keys that begin so."""
        return {key[len(_META) :]: Hold.read(text) for key, text in store.metas_like(_META + prefix).items()}


def _counts_from(job: JobRow, now: LedgerTime) -> float:
    """From when the job's definition counts. If it was activated while the clock was ahead, it counts from now on."""
    return min(job.counts_from, now.wall)
