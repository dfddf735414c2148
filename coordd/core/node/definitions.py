"""The definition of a job that counts: the one that was activated last, according to the ledger.

People change a job file on one node after the other, and each node reads its own file. So a definition counts from the
moment when a node activates it in the ledger, for all nodes. A node activates a definition only if it had another one
before (or had none, and the ledger has not seen this one). So a node that was forgotten or away does not bring an old
definition back: it reports its own as stale, and opens no scheduled run of the job.

The definitions of a published revision are activated by the ledger, all in one step (core/ledger/revision). Then a node
activates none of its own, but a definition that the ledger has forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from coordd.core.context import Context
from coordd.core.jobs.job import Job
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import Current, OpenAnswer
from coordd.core.ledger.requests import Activate
from coordd.core.ledger.words import DIFFERS, NEVER, OK
from coordd.core.ready import Now

# Maximum number of activations at a time; others follow with the next sweep.
AT_A_TIME = 200

ASKED = "its definition is being activated"
NOT_IN_FORCE = "the revision that this node has is not in force: see `coordctl config list`"


class Had(NamedTuple):
    """The definition of a job that this node had last, and its sequence number in the ledger (0: it never counted).

    ``digest`` is "" while the job, or its schedule, is missing here: a new schedule then counts from that moment.
    ``counts_from`` then has when it was found missing, by the ledger's clock (Unix seconds; 0.0: not known).
    """

    digest: str
    sequence: int = 0
    counts_from: float = 0.0


class Definitions:
    """Compares this node's scheduled jobs with the definitions that count."""

    __slots__ = ("_ctx", "_earlier", "asked", "brought_back", "had", "published", "revision", "stale")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._earlier: tuple[Job, ...] = ()
        self.published = False  # they are those of a published revision
        self.revision = 0  # its number
        self.had: dict[str, Had] = {}  # kept over a restart
        self.asked: dict[str, Had] = {}  # job -> the activated definition, until the ledger answers
        self.brought_back: set[str] = set()  # jobs that were missing here and have begun to count since
        self.stale: dict[str, str] = {}  # job -> why this node opens no scheduled run of it

    def swept(self, answer: OpenAnswer) -> None:
        """The definitions that count, from the ledger. New definitions are activated."""
        self.stale = {}
        if answer.identity_from == NEVER:
            return
        for name, job in self._ctx.jobs.items():
            if name not in answer.jobs:
                continue
            if not job.opens:
                if name not in self.had:
                    self._keep(name, Had(""))
                continue
            current = answer.current.get(name)
            sequence = current.sequence if current else 0
            same = current if current is not None and current.digest == job.digest else None
            if same is not None and not (self._returns(name, same) or self._came_back(name, same)):
                self._look_who_brought_it(name, same)
                self._keep(name, Had(job.digest, same.sequence, same.counts_from))
            elif name in self.asked:
                self.stale[name] = ASKED
            elif self._is_mine(name, job, sequence):
                if len(self.asked) < AT_A_TIME:
                    self._bring(name, job, current)
                self.stale[name] = ASKED
            elif self.published:
                self.stale[name] = NOT_IN_FORCE
            else:
                self.stale[name] = (
                    f"another definition of it counts since (number {sequence}): bring this node's job file up to date,"
                    f" or run `coordctl job activate {name}` here"
                )

    def take(self, jobs: Mapping[str, Job], now: Now) -> dict[str, Job]:
        """Take new job files; returns the old ones."""
        before, self._ctx.jobs = self._ctx.jobs, dict(jobs)
        self._ctx.keep_past((*self._earlier, *before.values()))
        self._earlier = ()
        self._look({name for name, job in before.items() if job.opens}, now)
        return before

    def recall(self, earlier: Iterable[Job]) -> None:
        """Before the job files are taken: the definitions that this node had in an earlier life."""
        self._earlier = tuple(earlier)

    def kept(self) -> list[Job]:
        """The definitions that a later life of this node may need: the present ones, after the earlier ones."""
        return [*(one for past in self._ctx.past.values() for one in past), *self._ctx.jobs.values()]

    def _look(self, were_here: Container[str], now: Now) -> None:
        """Note the jobs that have no schedule here any more; also one that was back for less than a sweep."""
        since = now.wall - self._ctx.skew_s(now)
        had_it = [name for name, had in self.had.items() if had.digest or name in were_here]
        for name in (name for name in had_it if not self._is_here(name)):
            self._keep(name, Had("", self.had[name].sequence, since))
            self.brought_back.discard(name)
        for name, had in self.asked.items():
            if not self._is_here(name):
                self.asked[name] = Had("", had.sequence, since)  # whatever the answer: it was gone meanwhile

    def _is_here(self, name: str) -> bool:
        job = self._ctx.jobs.get(name)
        return job is not None and job.opens

    def _look_who_brought_it(self, name: str, current: Current) -> None:
        """Note a job that was missing here if it has begun to count since: another node has brought it back. (Its
        sequence is a higher one, or this node would bring it back.)
        """
        had = self.had.get(name, Had(""))
        if not had.digest and current.counts_from > had.counts_from > 0.0:
            self.brought_back.add(name)

    def _returns(self, name: str, current: Current) -> bool:
        """The job was gone here, and no other node has brought it back since: its definition counts under no higher
        sequence, or under one from before it was gone.

        Not so in a published revision: the ledger itself ends and begins its definitions, and a job may be missing here
        only because the store, and this node's copy, could not be read for a while.
        """
        had = self.had.get(name)
        if self.published or had is None or had.digest:
            return False
        return had.sequence >= current.sequence or current.counts_from <= had.counts_from

    def _came_back(self, name: str, current: Current) -> bool:
        """The job had been away and was back, and the ledger went back and has forgotten that. Fire times of that time
        would be opened.
        """
        had = self.had.get(name, Had(""))
        known = had.digest == current.digest
        return known and had.sequence > current.sequence and had.counts_from > current.counts_from

    def _answered(self, name: str, answer: Answer, _sent_at: float, now: Now) -> None:
        """The ledger's answer to an activation."""
        had = self.asked.pop(name)
        if answer.word == OK:
            self._keep(name, Had(had.digest, answer.token, had.counts_from))
            self._ctx.note("job.activated", job=name, digest=had.digest, sequence=answer.token)
        elif answer.word == DIFFERS:
            self._keep(name, Had(had.digest))
        if answer.word in (OK, DIFFERS):
            self._ctx.arm(now.mono, "sweep_soon")  # what counts now is swept

    def _is_mine(self, name: str, job: Job, sequence: int) -> bool:
        """True if this node must activate its definition: it had another one before, or the ledger has forgotten this
        one. Of a published revision only in the second case: this node may be late, and a newer one be in force.
        """
        had = self.had.get(name)
        if self.published:
            return had is not None and had.digest == job.digest and had.sequence > sequence
        return had is None or had.digest != job.digest or had.sequence > sequence

    def _bring(self, name: str, job: Job, current: Current | None) -> None:
        had = self.had.get(name)
        by = self._ctx.full_hostname
        if had is not None and had.digest == job.digest:
            self._ask(name, had, job.schedule_digest, "restored", by)
        elif had is not None and not had.digest:
            same = current is not None and current.digest == job.digest
            sequence = max(had.sequence, current.sequence) if current is not None and same else had.sequence
            self._ask(name, Had(job.digest, sequence), job.schedule_digest, "returned", by)
        else:
            how = "new" if had is None else "changed"
            self._ask(name, Had(job.digest, had.sequence if had else 0), job.schedule_digest, how, by)

    def _ask(self, name: str, had: Had, schedule: str, how: str, by: str) -> None:
        activate = Activate(
            job=name,
            digest=had.digest,
            schedule=schedule,
            how=how,
            by=by,
            sequence=had.sequence,
            counts_from=had.counts_from,
            before=" ".join(past.digest for past in self._ctx.past.get(name, ())),
            revision=self.revision,
        )
        self.asked[name] = had
        self._ctx.ask(activate, partial(self._answered, name))

    def _keep(self, name: str, had: Had) -> None:
        if self.had.get(name) != had:
            self.had[name] = had
            self._ctx.out.definitions = dict(self.had)
