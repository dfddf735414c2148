"""The visible state of a node: read-only.

The parts of a node share a ``Context``; nothing outside the core touches it. To change a node, call one of its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coordd.core.context import Context, Settings
from coordd.core.jobs.job import Job
from coordd.core.members.membership import Member
from coordd.core.ready import Now


class Shown:
    """The readable side of a node."""

    ctx: Context

    # ---- who it is

    @property
    def concurrency(self) -> Mapping[str, int]:
        """What the strategies of jobs say at present, by job."""
        return self.ctx.concurrency

    @property
    def budget(self) -> int:
        """How many drivers may compute here at present."""
        return self.ctx.computing

    @property
    def hostname(self) -> str:
        """Its name in the cluster."""
        return self.ctx.hostname

    @property
    def pid(self) -> int:
        """Of its daemon."""
        return self.ctx.pid

    @property
    def full_hostname(self) -> str:
        """``hostname.pid``."""
        return self.ctx.full_hostname

    @property
    def incarnation(self) -> str:
        """Of this life."""
        return self.ctx.incarnation

    @property
    def settings(self) -> Settings:
        """As they are now."""
        return self.ctx.settings

    @property
    def state(self) -> str:
        """starting, mingling, ready, draining or stopping."""
        return self.ctx.state

    @property
    def processed(self) -> int:
        """Attempts that have ended here."""
        return self.ctx.processed

    # ---- clocks

    @property
    def clock(self) -> int:
        """The logical clock: the highest stamp that it has given or heard."""
        return self.ctx.clock.value

    @property
    def clock_mark(self) -> int:
        """Up to where stamps may be given, as the disk should have it."""
        return self.ctx.clock.mark

    @property
    def clock_off(self) -> bool:
        """True if its wall clock is too wrong to say what is due."""
        return self.ctx.clock_off

    def skew_s(self, now: Now) -> float:
        """How far its wall clock is ahead of the ledger's."""
        return self.ctx.skew_s(now)

    def ledger_wall(self, now: Now) -> float:
        """The ledger's wall clock, as far as it knows that (Unix seconds); its own before they were compared."""
        return self.ctx.ledger_wall(now)

    # ---- jobs

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The job files as this node has them."""
        return MappingProxyType(self.ctx.jobs)

    @property
    def jobs_digest(self) -> str:
        """Of all of them."""
        return self.ctx.jobs_digest

    def definition(self, job: str, digest: str) -> Job | None:
        """The job's definition with that digest, also an earlier one that is kept for runs that still have it."""
        return self.ctx.definition(job, digest)

    @property
    def drives_elsewhere(self) -> bool:
        """True if a definition, or an earlier one that is kept, has its driver on the cluster."""
        kept = (job for past in self.ctx.past.values() for job in past)
        return any(job.drives_elsewhere for job in (*self.ctx.jobs.values(), *kept))

    def due_of(self, run: str) -> float:
        """When a scheduled run of a known job is due (Unix seconds); otherwise 0.0."""
        return self.ctx.due_of(run)

    @property
    def launch_problems(self) -> Mapping[str, str]:
        """Job -> why this node cannot start it."""
        return MappingProxyType(self.ctx.launch_problems)

    @property
    def abstains_from(self) -> Mapping[str, str]:
        """Job -> the check for which it takes none of its runs."""
        return MappingProxyType(self.ctx.abstaining)

    @property
    def unfit(self) -> str:
        """Why it should launch nothing at all; "" when it may."""
        return self.ctx.unfit

    @property
    def aside(self) -> str:
        """Why it leaves runs to other nodes for a while: its own have failed; "" if it does not."""
        return self.ctx.aside

    @property
    def failing(self) -> str:
        """The same as soon as it is announced."""
        return self.ctx.failing

    @property
    def journal_failure(self) -> str:
        """Why its journal cannot be written; "" when it can."""
        return self.ctx.impaired

    @property
    def runtime_failure(self) -> str:
        """Why its runtime directory cannot be written; "" when it can."""
        return self.ctx.runtime_failure

    # ---- the ledger

    @property
    def ledger(self) -> str:
        """The identity of its ledger; "" while it is not known."""
        return self.ctx.ledger

    @property
    def pinned(self) -> bool:
        """It has used that ledger."""
        return self.ctx.pinned

    @property
    def braked(self) -> str:
        """Why it may launch nothing from that ledger now; "" when it may."""
        return self.ctx.braked

    @property
    def rules(self) -> int:
        """The ledger rules in force."""
        return self.ctx.rules

    def past(self, job: str) -> tuple[Job, ...]:
        """The earlier definitions of a job that this node keeps, newest last."""
        return self.ctx.past.get(job, ())

    @property
    def identity_from(self) -> float:
        """Runs that are due after this (Unix seconds) have their nominal time in their id."""
        return self.ctx.identity_from

    @property
    def bad_rows(self) -> Mapping[str, str]:
        """Rows of the ledger that cannot be used, by run or job, and why."""
        return MappingProxyType(self.ctx.bad_rows)

    @property
    def leased_s(self) -> float:
        """The longest lease of the attempts that run in the cluster."""
        return self.ctx.leased_s

    def token_seen(self, job: str) -> int:
        """The highest token of the job that this node knows of; 0 without any."""
        return self.ctx.tokens.get(job, 0)

    # ---- other nodes

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by hostname, without this node."""
        return MappingProxyType(self.ctx.membership.members)

    @property
    def isolated(self) -> bool:
        """True if it hears nobody."""
        return self.ctx.membership.isolated

    def member_counts(self) -> dict[str, int]:
        """The numbers of members alive (including this node), suspect and lost."""
        return self.ctx.membership.count()
