"""The operations of a sweep: all open rows in pages, or what has changed since a cursor.

The ledger numbers each change of a run or a job that a sweep shows, and remembers the last FEED_MAX of them, of each
run and job the newest. A *cursor* is a life of the ledger (its epoch) and a number. A caller with a cursor is told what
has changed since, which runs have no open row any more, and the runs and jobs that it names. A renewal has no number:
silence in the feed does not mean that a holder is silent, so who watches one names its row.

A cursor of another life, or one that is older than what is remembered, is not served: the answer is the first page,
with a new cursor. docs/protocol.md, section 6, has the argument.
"""

from coordd.core.ledger.identity import IDENTITY
from coordd.core.ledger.marks.rule import Marking
from coordd.core.ledger.rows import FEED_MAX, OF_JOB, OF_RUN, Cursor
from coordd.core.ledger.sound import BAD_MAX, printable
from coordd.core.ledger.standing import Holds
from coordd.core.ledger.words import CLAIM_AHEAD_S, TERMINAL
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.open_answer import OpenAnswer
    from coordd.core.ledger.requests import ListEnded, ListOpen, Page
    from coordd.core.ledger.rows import LedgerTime, Store


class Sweeping(Holds, Marking):
    """open, page and ended."""

    def open(self, store: "Store", said: "ListOpen", now: "LedgerTime") -> "OpenAnswer":
        """The open rows, or what has changed since a cursor; the states of jobs; the holds. A job that was never seen
        before starts now, by the ledger's time.
        """
        from coordd.core.ledger.open_answer import OpenAnswer  # here, because no runner sweeps

        newest = store.changes()  # before the corrections of this very sweep: the next one tells them once more
        if now.epoch and said.host:
            self._called(store, said.host, said.silence_s, now)
        after = self._served(said.since, newest, store, now)
        changed = store.changed(after, said.limit) if after is not None else []
        more = len(changed) == said.limit
        upto = changed[-1][0] if more else newest
        jobs = [name.removeprefix(OF_JOB) for _, name in changed if name.startswith(OF_JOB)]
        answer = OpenAnswer(
            [],
            {},
            now.wall,
            now.recovering_s,
            now.epoch,
            holds=self._common_holds(store, now),
            cursor=f"{self._life(store, now)} {upto}",
            gone=None if after is None else [],
            more=more,
        )
        for name in dict.fromkeys([*said.jobs, *jobs]):
            self._tell_job(store, name, answer, now)
        if after is None:
            self._tell_page(store, said.limit, None, answer, now)
        else:
            runs = [name.removeprefix(OF_RUN) for _, name in changed if name.startswith(OF_RUN)]
            for run in dict.fromkeys([*runs, *filter(None, said.named.split("\n"))]):
                self._tell_run(store, run, answer, now)
        answer.identity_from = self._identity_from(store)
        return answer

    def _life(self, store: "Store", now: "LedgerTime") -> str:
        """Which ledger has numbered the changes; one in a file has no epochs, and goes by its identity."""
        return now.epoch or store.meta(IDENTITY)

    def _served(self, since: str, newest: int, store: "Store", now: "LedgerTime") -> "int | None":
        """The number in a cursor; None if the caller must begin again: the cursor is of another life, or older than
        what the ledger remembers, or the ledger is in quarantine.
        """
        life, _, number = since.rpartition(" ")
        if now.recovering_s > 0 or life != self._life(store, now) or not number.isdecimal():
            return None
        return int(number) if newest - FEED_MAX <= int(number) <= newest else None

    def _tell_job(self, store: "Store", name: str, answer: "OpenAnswer", now: "LedgerTime") -> None:
        from coordd.core.ledger.open_answer import Current, JobState

        try:
            job = self._swept_job(store, name, now)
        except BadRowError as exc:
            answer.bad[name] = str(exc)  # its schedule opens nothing; other jobs are not affected
            return
        newest = store.last_fire_at(name, now.wall + CLAIM_AHEAD_S)
        answer.jobs[name] = JobState(
            horizon=job.horizon, last_fire_at=newest, suspended=self._is_suspended(store, job, now), fence=job.fence
        )
        if job.suspended and (hold := self._hold_of(store, job)) is not None:
            answer.holds[OF_JOB + name] = hold
        if job.digest:
            answer.current[name] = Current(sequence=job.sequence, digest=job.digest, counts_from=job.counts_from)

    def _tell_run(self, store: "Store", run: str, answer: "OpenAnswer", now: "LedgerTime") -> None:
        """Its row, or that it has no open one."""
        from coordd.core.ledger.open_answer import OpenRun

        try:
            row = store.run(run)
        except BadRowError as exc:
            if len(answer.bad) < BAD_MAX:
                answer.bad[printable(run)] = str(exc)
            return
        if row is None or row.state in TERMINAL:
            answer.gone.append(run)
        else:
            answer.runs.append(OpenRun(row, now))

    def _tell_page(
        self, store: "Store", limit: int, after: "Cursor | None", answer: "OpenAnswer", now: "LedgerTime"
    ) -> None:
        from coordd.core.ledger.open_answer import OpenRun

        rows, answer.after = store.open_runs(limit, after)
        answer.runs += [OpenRun(row, now) for row in rows]

    def page(self, store: "Store", said: "Page", now: "LedgerTime") -> "OpenAnswer":
        """The next page of a sweep: after that row, even if it no longer exists."""
        from coordd.core.ledger.open_answer import OpenAnswer

        answer = OpenAnswer([], {}, now.wall, now.recovering_s, now.epoch, identity_from=self._identity_from(store))
        self._tell_page(store, said.limit, said.after, answer, now)
        return answer

    def ended(self, store: "Store", said: "ListEnded", now: "LedgerTime") -> "OpenAnswer":
        """Runs of these jobs that have ended since an instant. Nothing else is told."""
        from coordd.core.ledger.open_answer import OpenAnswer, OpenRun

        rows = store.ended_since(said.since, said.limit)
        last = Cursor(not_before=rows[-1].ended_at, run=rows[-1].run) if len(rows) == said.limit else None
        runs = [OpenRun(row, now) for row in rows if row.job in said.jobs]
        return OpenAnswer(
            runs, {}, now.wall, now.recovering_s, now.epoch, after=last, identity_from=self._identity_from(store)
        )
