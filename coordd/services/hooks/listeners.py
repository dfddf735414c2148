"""Who is told of events: hooks, and the triggers of jobs that wait for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import EVENT, Trigger
from coordd.core.triggers.arrivals import Arrival, args_of
from coordd.core.triggers.duplicates import run_of_arrival
from coordd.services.hooks.happenings import Happening, short

# Events that need not be about a job; then a trigger's `jobs` do not choose among them.
OF_NO_JOB = ("node.", "cluster.", "check.", "breaker.")


class Listener(Protocol):
    """A hook, or a trigger of the kind `event`."""

    @property
    def job_name(self) -> str:
        """The job whose runs tell it."""

    @property
    def digest(self) -> str:
        """Of all that it says: with another one it is new, and is not told of what was before."""

    @property
    def by(self) -> str:
        """What asks for its runs, for their rows."""

    def wants(self, event: str) -> bool:
        """True if it waits for events of that name."""

    def takes(self, event: str, job: object, *, ended: bool) -> bool:
        """True if it waits for this event, about this job. ``ended``: a run's row has ended so."""


class EventTrigger(NamedTuple):
    """A trigger of a job: an event is one run of the job."""

    job: Job
    trigger: Trigger

    @property
    def job_name(self) -> str:
        return self.job.name

    @property
    def digest(self) -> str:
        """Of the trigger alone: an edit of the rest of the job loses no event."""
        return self.trigger.digest

    @property
    def by(self) -> str:
        return f"trigger {self.trigger.name}"

    def wants(self, event: str) -> bool:
        return event in self.trigger.on

    def takes(self, event: str, job: object, *, ended: bool) -> bool:
        if not self.wants(event) or job == self.job_name:  # its own breaker stops it, and its own runs go on for ever
            return False
        return not self.trigger.jobs or job in self.trigger.jobs or (not job and event.startswith(OF_NO_JOB))

    def runs(self, happening: Happening) -> list[str]:
        """The run of the event, and others by which another node may have told it."""
        keys = (happening.key, *happening.known_as)
        return [run_of_arrival(self.job, self.trigger, _arrival(happening, key)) for key in keys]

    def args(self, happening: Happening) -> str:
        """The arguments of the run. Raises RefusedError."""
        return args_of(self.job, self.trigger, _arrival(happening, happening.key))


def _arrival(happening: Happening, key: str) -> Arrival:
    said = {name: short(happening.fields.get(name)) or "" for name in ("job", "run", "state", "node")}
    return Arrival(f"{happening.event} {key}", {"key": key, "event": happening.event, **said})


def of_jobs(jobs: Mapping[str, Job]) -> list[EventTrigger]:
    """The triggers that wait for events, of all jobs; one that is not enabled is told nothing."""
    return [EventTrigger(job, one) for _, job in sorted(jobs.items()) for one in job.triggers if one.kind == EVENT]
