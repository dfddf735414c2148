"""Published revisions: all nodes read the newest one, and the ledger puts it in force for all of them in one step.

A node says (``vote``) whether it can read the newest revision, and which definitions it finds. If all members that are
alive have found the same, any node asks the ledger to put it in force (core/ledger/revision). Every node learns that
from its next sweep, and takes the definitions. A node that cannot keeps its own; they are stale, so it opens nothing by
schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import structlog
import trio

from coordd.config import tables
from coordd.config.jobfile import JobSet
from coordd.config.sections import Config
from coordd.core.jobs.job import jobs_digest
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Adopt
from coordd.core.ledger.revision.text import NO_REVISION, InForce, definitions, read
from coordd.core.ledger.rows import REVISION
from coordd.core.ledger.words import BAD, OK
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Definitions, Kept, Published, RevisionStore, Seal, Vote
from coordd.services.backends.source import Elsewhere
from coordd.services.ledger import boottime

log = structlog.get_logger("jobs")

# How often (seconds) the store is looked at.
LOOK_S = 2.0
# After this node has put a revision in force: the next sweep tells it.
HURRY_S = 0.2

# A member that has not voted for this long (seconds) is a problem that people should see.
SILENT_S = 15.0

# The ledger may have forgotten the revision in force, or this node may not have swept yet: it waits (seconds).
FORGOTTEN_S = 10.0

# More reasons in one sentence do not help.
REASONS_MAX = 3


class Candidate(NamedTuple):
    """A revision as this node reads it; ``problem``: why it cannot use it, or ""."""

    of: Published
    jobs: JobSet
    problem: str
    config: Config

    @property
    def vote(self) -> Vote:
        return Vote(self.problem, "" if self.problem else jobs_digest(self.jobs.jobs))


class PublishedSource(Elsewhere):
    """The revisions in a store."""

    published = True

    def __init__(
        self,
        config: Config,
        kept: Definitions,
        store: RevisionStore,
        seal: Seal,
        verify: Callable[[Published, bool], str],
    ) -> None:
        """``verify``: why nobody with a key of the cluster has sealed a revision, or "". True: a person names its
        number to publish it again.
        """
        super().__init__(config, kept, store.url)
        self.store = store
        self._seal, self._verify = seal, verify
        self._wake = trio.Event()
        self._hurry = False
        self._candidate: Candidate | None = None
        self._pending: tuple[int, float] = (0, 0.0)  # the newest revision, and since when it waits
        self._ahead_from: float | None = None  # since when the ledger names an older revision than this node has
        self.waits: list[str] = []  # why the newest revision is not in force

    # ---- what people see

    @property
    def in_force(self) -> InForce:
        """As the last sweep found it."""
        hold = self.driver.node.drains.holds.get(REVISION)
        return read(hold.note) if hold is not None else NO_REVISION

    @property
    def revision(self) -> int:
        """The number of the one that this node has; 0: none."""
        return self.kept.number

    def view(self) -> dict[str, Any]:
        return {
            **super().view(),
            "revision": self.kept.number,
            "in_force": self.in_force.number,
            "waiting": self._pending[0] or None,
        }

    def told(self, job: str) -> str:
        in_force = self.in_force.number
        waiting = self._pending[0] if self._pending[0] > in_force else 0
        change = self._change(job) if waiting else ""
        if job in self.jobs.jobs and not change and in_force == self.kept.number:
            return ""
        said = f"revision {in_force} is in force" if in_force else "no revision is in force"
        if self.kept.number != in_force:
            said += f", and this node has {f'revision {self.kept.number}' if self.kept.number else 'none'}"
        if waiting:
            why = f": {'; '.join(self.waits[:REASONS_MAX])}" if self.waits else ""
            said += f"; {waiting} waits{f', {change}' if change else ''}{why}"
        elif self.problem:
            said += f"; {self.problem}"
        return f"The jobs of this node come from {self.backend}: {said} (coordctl config list)."

    def _change(self, job: str) -> str:
        """What the newest revision, which waits, would make of a job; "" if nothing, or it is not read yet."""
        candidate, present = self._candidate, self.jobs.jobs.get(job)
        if candidate is None or candidate.of.number != self._pending[0]:
            return ""
        if job in candidate.jobs.problems:
            return f"in which {job} is wrong"
        newer = candidate.jobs.jobs.get(job)
        if newer is None:
            return f"which has no {job}"
        if present is None:
            return f"which has {job}"
        return f"which changes {job}" if newer.digest != present.digest else ""

    def _about(self) -> str:
        return f"revision {self.kept.number} of {self._place}" if self.kept.number else f"no revision of {self._place}"

    def _named(self) -> str:
        return f"revision {self.kept.number}"

    # ---- life

    def start(self) -> JobSet:
        self._recall()
        return super().start()

    async def run(self) -> None:
        while True:
            if self.driver.node.state in ("ready", "draining"):
                await self.look()
            with trio.move_on_after(HURRY_S if self._hurry else LOOK_S):
                await self._wake.wait()
            self._wake = trio.Event()

    async def look(self) -> None:
        """Look once; this node takes at once what it has put in force."""
        self._hurry = False
        try:
            await self._look()
        except Exception as exc:
            # The boundary: others can write to the store, and what they write must not end the daemon.
            self._say("look", f"{self._place}: cannot use what it holds: {exc!r:.200}", exc_info=True)
        else:
            self._say("look", "")

    async def _look(self) -> None:
        """Take the revision in force, vote on the newest, and put it in force if all agree."""
        in_force = self.in_force
        try:
            if in_force.number > self.kept.number or (
                in_force.number == self.kept.number and in_force.digest != self.kept.digest
            ):
                await self._take(in_force)
            else:
                self._say("take", "")
            await self._consider(in_force)
        except UnavailableError as exc:
            have = f"revision {self.kept.number} stays" if self.kept.number else "this node has no jobs"
            self._say("store", f"{exc}; {have}")
        else:
            self._say("store", "")
        with contextlib.suppress(UnavailableError):  # of the ledger; the next look asks again
            await self._bring_back(in_force)

    async def _take(self, in_force: InForce) -> None:
        """The ledger has put it in force."""
        if self._candidate is not None and self._candidate.of.digest != in_force.digest:
            self._candidate = None
        candidate = await self._read_revision(in_force.number)
        problem = candidate.problem
        if not problem and candidate.of.digest != in_force.digest:
            problem = f"the ledger names the digest {in_force.digest:.12}, and the store has {candidate.of.digest:.12}"
        if problem:
            mine = f"revision {self.kept.number}" if self.kept.number else "nothing"
            self._say(
                "take",
                f"revision {in_force.number} is in force, and this node cannot use it: {problem}; it keeps {mine}, and"
                " opens no changed job by schedule",
            )
            return
        self._say("take", "")
        await self._keep(Kept(self._place, candidate.of.texts, in_force.number, in_force.digest))
        if candidate.config is not self.config:  # a reload came between
            candidate = await self._read_revision(in_force.number)
        self.jobs = candidate.jobs
        log.info("jobs.revision_taken", revision=in_force.number, jobs=len(self.jobs.jobs), digest=in_force.digest)
        self.use(self.jobs)

    async def _read_revision(self, number: int) -> Candidate:
        """Read and judge a revision, outside the loop. The last one is remembered."""
        known = self._candidate
        if known is None or known.of.number != number or known.config is not self.config:
            known = await trio.to_thread.run_sync(self._judged, number, self.config, abandon_on_cancel=True)
            self._candidate = known
        return known

    def _judged(self, number: int, config: Config) -> Candidate:
        """Runs in a thread."""
        of, jobs = self.store.read(number), JobSet()
        try:
            jobs = tables.read(self._texts(of), f"revision {number}", config)
            problem = tables.first_error(jobs)
        except ValueError as exc:
            problem = str(exc)
        return Candidate(of, jobs, problem, config)

    def _texts(self, of: Published, *, named: bool = False) -> dict[str, str]:
        """The texts that were published. Raises ValueError: why they are not believed."""
        problem = self._verify(of, named)
        if problem:
            raise ValueError(problem)
        texts = tables.checked_texts(of.texts)
        if tables.digest_of(texts) != of.digest:
            raise ValueError("its texts do not have its digest: publish it again")
        return texts

    # ---- the newest revision

    async def _consider(self, in_force: InForce) -> None:
        newest = await trio.to_thread.run_sync(self.store.newest, abandon_on_cancel=True)
        if newest <= in_force.number:
            self._pending, self.waits = (0, 0.0), []
            self._say("newest", "")
            return
        now = boottime()
        if self._pending[0] != newest:
            self._pending = (newest, now)
        candidate = await self._read_revision(newest)
        mine = candidate.vote
        vote = partial(self.store.vote, newest, self.driver.node.full_hostname, mine)
        await trio.to_thread.run_sync(vote, abandon_on_cancel=True)
        votes = await trio.to_thread.run_sync(self.store.votes, newest, abandon_on_cancel=True)
        refused, silent = self._against(mine, votes)
        self.waits = [*refused, *silent]
        if refused or (silent and now - self._pending[1] > SILENT_S):
            self._not_in_force(newest, in_force)
        elif not self.waits:
            self._say("newest", await self._adopt(candidate, in_force))

    def _against(self, mine: Vote, votes: dict[str, Vote]) -> tuple[list[str], list[str]]:
        """The members that cannot use the revision, or read it differently; and those that have not said it yet."""
        node = self.driver.node
        refused = [f"{node.hostname} cannot use it: {mine.problem}"] if mine.problem else []
        silent = []
        for member in sorted(node.members.values(), key=lambda one: one.name):
            if member.state not in (ALIVE, SUSPECT):
                continue
            vote = votes.get(member.name)
            if vote is None:
                silent.append(f'{member.hostname} has not said that it can use it (is its [jobs] backend "redis"?)')
            elif vote.problem:
                refused.append(f"{member.hostname} cannot use it: {vote.problem}")
            elif not mine.problem and vote.jobs != mine.jobs:
                refused.append(
                    f"{member.hostname} reads other definitions from it than {node.hostname}: are coordd and tzdata the"
                    " same on both?"
                )
        return refused, silent

    def _not_in_force(self, newest: int, in_force: InForce) -> None:
        more = f"; and {len(self.waits) - REASONS_MAX} more" if len(self.waits) > REASONS_MAX else ""
        stays = f"revision {in_force.number} stays in force" if in_force.number else "no revision is in force"
        self._say(
            "newest",
            f"revision {newest} is not put in force: {'; '.join(self.waits[:REASONS_MAX])}{more}. {stays}; correct it"
            " and publish again, or coordctl config rollback",
        )

    async def _adopt(self, candidate: Candidate, in_force: InForce) -> str:
        """Ask the ledger to put it in force. Returns why this node does not, or "" (it may ask again)."""
        node = self.driver.node
        heard_s = boottime() - self._pending[1]
        if node.braked or self.driver.bus.state != "connected" or heard_s < 2 * node.settings.heartbeat_interval_s:
            return ""  # it may not know all members
        if 0 < in_force.number < self.kept.number:
            return ""  # the ledger has forgotten one, and is told of it first
        of = candidate.of
        answer = await self._ask(of.number, of.digest, in_force, candidate.jobs, newest=True, by=of.by, uid=of.uid)
        if answer.word == OK:
            self._hurry = True
            log.info("jobs.revision_in_force", revision=of.number, replaces=in_force.number, by=of.by, digest=of.digest)
        return answer.by if answer.word == BAD else ""

    async def _bring_back(self, in_force: InForce) -> None:
        """The ledger went back, and names an older revision than this node has, or none; and no newer one comes into
        force. Unchanged definitions keep their place. A node that cannot use all jobs that it has kept leaves it to
        others: it does not know their definitions.
        """
        if in_force.number >= self.kept.number:
            self._ahead_from = None
            self._say("forgotten", "")
            return
        now = boottime()
        self._ahead_from = self._ahead_from or now
        if now - self._ahead_from < FORGOTTEN_S:
            return
        self._ahead_from = None
        problem = tables.first_error(self.jobs)
        if not problem:
            log.warning("jobs.revision_forgotten", revision=self.kept.number, in_force=in_force.number)
            by = self.driver.node.hostname
            answer = await self._ask(self.kept.number, self.kept.digest, in_force, self.jobs, newest=False, by=by)
            problem = answer.by if answer.word == BAD else ""
        forgotten = (
            f"the ledger has forgotten revision {self.kept.number}, and this node cannot bring it back: {problem}"
        )
        self._say("forgotten", forgotten if problem else "")

    async def _ask(
        self, number: int, digest: str, in_force: InForce, jobs: JobSet, *, newest: bool, by: str, uid: int = 0
    ) -> Answer:
        """Ask the ledger to put these definitions in force. The newest revision withdraws all others, an older
        one those that this node knows to be gone.
        """
        scheduled = {name: (job.digest, job.schedule_digest) for name, job in jobs.jobs.items() if job.opens}
        text = definitions(scheduled, () if newest else self.driver.node.rulebook.definitions.had)
        adopt = Adopt(number=number, digest=digest, replaces=in_force.number, by=by, uid=uid, jobs=text, newest=newest)
        answer = await self.ledger.write(adopt)
        self.driver.feed(self.driver.node.look_again)
        return answer

    # ---- what people publish

    def texts_again(self, of: Published, *, named: bool) -> dict[str, str]:
        """The texts of an earlier revision, to be sealed again. Raises RefusedError if nobody of the
        cluster has sealed them. ``named``: a person named its number.
        """
        try:
            return self._texts(of, named=named)
        except ValueError as exc:
            raise RefusedError(
                f"nothing was published: revision {of.number}: {exc}",
                kind="not_sealed",
                hint="coordctl config list, then coordctl config rollback NUMBER with a sound one; or config publish",
            ) from exc

    async def publish(self, texts: dict[str, str], *, by: str, uid: int, note: str) -> tuple[Published, JobSet]:
        """A new revision. Raises RefusedError if this node cannot use it, UnavailableError without the store."""
        jobs = await trio.to_thread.run_sync(partial(tables.read, texts, "revision", self.config))
        problem = tables.first_error(jobs)
        if problem:
            raise RefusedError(f"nothing was published: {problem}", kind="bad_job", hint="coordd check-config DIR")
        write = partial(
            self.store.publish,
            texts,
            tables.digest_of(texts),
            self._seal,
            above=max(self.in_force.number, self.kept.number),
            by=by,
            uid=uid,
            note=note,
        )
        made = await trio.to_thread.run_sync(write)
        self._wake.set()
        return made, jobs
