"""Who is told of events: hooks, and the triggers of jobs that wait for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import EVENT, Trigger
from coordd.core.triggers.arrivals import Arrival, args_of, run_of
from coordd.services.hooks.happenings import Happening, short


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

    job_name: str
    trigger: Trigger

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
        return self.wants(event) and (not self.trigger.jobs or job in self.trigger.jobs)

    def runs(self, happening: Happening) -> list[str]:
        """The run of the event, and others by which another node may have told it."""
        keys = (happening.key, *happening.known_as)
        return [run_of(self.job_name, self.trigger.name, f"{happening.event} {key}") for key in keys]

    def args(self, job: Job, happening: Happening) -> str:
        """The arguments of the run. Raises RefusedError."""
        said = {name: short(happening.fields.get(name)) or "" for name in ("job", "run", "state", "node")}
        values = {"key": happening.key, "event": happening.event, **said}
        return args_of(job, self.trigger, Arrival(happening.key, values))


def of_jobs(jobs: Mapping[str, Job]) -> list[EventTrigger]:
    """The triggers that wait for events, of all jobs that are enabled."""
    return [
        EventTrigger(name, one)
        for name, job in sorted(jobs.items())
        if job.enabled
        for one in job.triggers
        if one.kind == EVENT
    ]
