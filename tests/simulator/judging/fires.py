"""F: each fire time ends in at most one decision, and keeps it. Judged at each operation of the ledger.

The judge counts fire times by itself, from the job files of the world. It compares the record of the ledger after an
operation with the record before it. A ledger that went back, retention, and a clock that was set right may take
back what was recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.jobs.job import scheduled_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.fires import Stretch
from coordd.core.ledger.requests import Activate, Claim, PassOver, Register
from coordd.core.ledger.rows import is_backfill
from coordd.core.ledger.runner_requests import Request

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.rows import JobRow, Row
    from simulator.world import World

# More fire times than this never pass at once in a world.
FIRES_MAX = 10_000


def job_asked_about(request: Request[Any]) -> str:
    """The job whose fire times an operation may settle; "" for all other operations."""
    if isinstance(request, (Claim, Register)):
        return request.of.job
    return request.job if isinstance(request, (Activate, PassOver)) else ""


class Fires:
    """What the ledger of one world had recorded when it was last looked at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._jobs: dict[str, tuple[float, list[Stretch]]] = {}  # job -> its horizon, its stretches
        self._least: dict[str, float] = {}  # job -> the least that the ledger's clock showed since the last look at it

    def forget(self) -> None:
        """The ledger went back, or retention has forgotten something: begin again."""
        self._jobs.clear()

    def operation(self, request: Request[Any], before: Row | None, row: Row | None) -> None:
        """Check one operation that was executed. ``before`` and ``row``: the row of its run."""
        name = job_asked_about(request)
        world = self.world
        wall = world.server.wall()
        self._least = {job: min(least, wall) for job, least in self._least.items()}
        job = world.server.job(name) if name else None
        if job is None:
            return
        known = world.server.ledger.fires(name).stretches
        horizon, earlier = self._jobs.get(name, (job.horizon, known))
        self._jobs[name] = job.horizon, known
        self._in_order(name, known)
        least = self._least.get(name, wall)
        for one in earlier:
            self._is_kept(name, one, known, least)
        self._least[name] = wall
        # A decision about a time to come was made by a clock that was ahead; a sweep may have taken it back since.
        ahead = row is not None and row.due_at > least
        if (
            before is None
            and row is not None
            and row.scheduled
            and not is_backfill(row)
            and world.server.recovering_s(wall) <= 0  # then the horizon may be wrong, and a row wins
            and (word := word_of(known if ahead else earlier, row.due_at))
        ):
            world.violate(f"F {row.run} has got a row, and its fire time was {word} before")
        if job.horizon > horizon:
            self._says_why(name, job, horizon, known)

    def _in_order(self, name: str, known: list[Stretch]) -> None:
        ends = [at for one in known for at in (one.after, one.upto)]
        if ends != sorted(ends) or any(one.after >= one.upto for one in known):
            self.world.violate(f"F two stretches of {name} overlap: {[(s.after, s.upto, s.decision) for s in known]}")

    def _is_kept(self, name: str, one: Stretch, known: list[Stretch], least: float) -> None:
        """A decision stays, but not one that a clock that was ahead has made about times to come. A sweep takes it
        back, which came when the clock showed ``least``, or later.
        """
        upto = min(one.upto, least)
        for at in (one.upto, (one.after + one.upto) / 2):
            if at <= upto and word_of(known, at) != one.decision:
                self.world.violate(f"F {name} at {at:.3f} was {one.decision}, and is {word_of(known, at) or 'nothing'}")

    def _says_why(self, name: str, job: JobRow, horizon: float, known: list[Stretch]) -> None:
        """The horizon has passed some fire times: each of them has a row or a decision."""
        defined: Job | None = self.world.known_jobs.get(job.digest)
        if defined is None or defined.schedule is None:
            return
        for due in fires_between(defined.schedule, max(horizon, job.counts_from), job.horizon, FIRES_MAX):
            run = scheduled_run(name, due - defined.offset_s)
            if self.world.server.row(run) is None and not word_of(known, due):
                self.world.violate(f"F {run} is settled, and nothing says what became of it")


def word_of(known: list[Stretch], due: float) -> str:
    """The decision about a due time without a row; "" if there is none."""
    return next((one.decision for one in known if one.after < due <= one.upto), "")
