"""The source of a node's job definitions: the job files, or a function that makes tables of jobs.

Whatever goes wrong at a source, the definitions that the node has stay, and ``problem`` says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
import trio

from coordd.config import tables
from coordd.config.jobfile import JobSet, load_jobs
from coordd.config.sections import Config
from coordd.errors import ConfigError, JobFileError, UnavailableError
from coordd.ports import Definitions, Kept
from coordd.services.control.doctor import FAIL, OK, WARN, check
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService
from coordd.services.pace import in_thread

log = structlog.get_logger("jobs")


class Source:
    """The job files of a directory. Also what all sources share."""

    published = False  # the ledger activates the definitions, not this node
    use: Callable[[JobSet], None]
    driver: Driver
    ledger: LedgerService

    def __init__(self, config: Config) -> None:
        self.config = config
        self.jobs = JobSet()
        self._problems: dict[str, str] = {}  # by what went wrong

    @property
    def backend(self) -> str:
        """Its name in the configuration."""
        return self.config.jobs.backend

    @property
    def revision(self) -> int:
        """The number of the published revision that this node has; 0: none."""
        return 0

    @property
    def problem(self) -> str:
        """The problems of the source, as a sentence; "" without any."""
        return "; ".join([self._problems[kind] for kind in sorted(self._problems)])

    def start(self) -> JobSet:
        """The definitions at the daemon's start; never raises because of the source."""
        self.jobs = self._read(self.config)
        return self.jobs

    def reload(self, config: Config, *, no_jobs: bool = False) -> JobSet:
        """The definitions under a new configuration. The caller uses them, or raises too. ``no_jobs``: a person wants
        none, if none is left.

        Raises JobFileError or ConfigError, and nothing has changed: a job that could be used before is spoilt, or
        everything is gone.
        """
        jobs = self._read(config)
        problem = tables.spoilt(jobs, self.jobs)
        if problem:
            raise JobFileError(f"{problem}; nothing was changed")
        if self.jobs.jobs and not jobs.jobs:
            gone = self._gone(config, jobs, no_jobs=no_jobs)
            if gone:
                raise ConfigError(f"{gone}; nothing was changed")
        return jobs

    def _gone(self, config: Config, jobs: JobSet, *, no_jobs: bool) -> str:
        """Why this node does not give up all its jobs: their directory may not be mounted. "": it does."""
        directory, count = config.node.jobs_dir, len(self.jobs.jobs)
        if "" in jobs.problems:
            problem = jobs.problems[""][0].message if os.path.isdir(directory) else "there is no such directory"
            return f"{directory}: {problem}, and {count} jobs were loaded from it; mount or create it"
        if no_jobs:
            return ""
        return (
            f"{directory} has no job file, and {count} jobs were loaded from it: is it mounted? If all jobs are to go: "
            "coordctl reload --no-jobs"
        )

    def taken(self, config: Config, jobs: JobSet) -> None:
        """The caller of ``reload`` uses them now."""
        self.config, self.jobs = config, jobs

    async def run(self) -> None:
        """Look for new definitions, for ever; files are read when a person asks."""
        await trio.sleep_forever()

    def attach(self, use: Callable[[JobSet], None], driver: Driver, ledger: LedgerService) -> None:
        """Before ``run``: the daemon takes new definitions by ``use``."""
        self.use, self.driver, self.ledger = use, driver, ledger

    def view(self) -> dict[str, Any]:
        """For ``status``."""
        return {"backend": self.backend, "problem": self.problem or None}

    def told(self, job: str) -> str:
        """For ``why``: where the definition of a job comes from, if that explains anything; "" for job files."""
        return ""

    def checks(self) -> list[dict[str, str]]:
        """For ``doctor``."""
        path = self.config.node.jobs_dir
        return [check("jobs", OK if os.path.isdir(path) else WARN, path, f"create the directory {path}")]

    def _read(self, config: Config) -> JobSet:
        return load_jobs(config.node.jobs_dir, config)

    def _say(self, kind: str, problem: str, **details: Any) -> None:
        """Keep a problem ("": it is over), and log it once."""
        if self._problems.get(kind, "") == problem:
            return
        if problem:
            self._problems[kind] = problem
            log.error("jobs.source_failed", backend=self.backend, problem=problem, **details)
        else:
            del self._problems[kind]
            log.info("jobs.source_works", backend=self.backend, was=kind)


class Elsewhere(Source):
    """A source that is not on this machine's disk: a copy of the last definitions is."""

    def __init__(self, config: Config, kept: Definitions, place: str) -> None:
        super().__init__(config)
        self._file = kept
        self._place = place
        self.kept = Kept(place, {})  # what the present definitions were made of

    def checks(self) -> list[dict[str, str]]:
        advice = "what this node has stays in use; see docs/runbook.md: job definitions do not come"
        return [check("jobs", FAIL if self.problem else OK, self.problem or self._about(), advice)]

    def told(self, job: str) -> str:
        if job in self.jobs.jobs and not self.problem:
            return ""
        return f"The jobs of this node come from {self._about()}" + (f"; {self.problem}." if self.problem else ".")

    def _about(self) -> str:
        """Where the definitions come from."""
        return f"{self.backend}: {self._place}"

    def _recall(self) -> None:
        """Before anything else: the copy, if it is of this place."""
        kept, unread = self._file.load()
        if unread:
            log.error("jobs.copy_not_readable", reason=unread)
        if kept is not None and kept.source == self._place:
            self.kept = kept

    async def _keep(self, kept: Kept) -> None:
        self.kept = kept
        try:
            await in_thread(partial(self._file.save, kept))
        except UnavailableError as exc:  # a start while the place is away would find the copy before
            log.error("jobs.copy_not_kept", reason=str(exc))

    def _read(self, config: Config) -> JobSet:
        return tables.read(self.kept.jobs, self._named(), config)

    def _named(self) -> str:
        """The present definitions, for messages."""
        return self._place


class Called(Elsewhere):
    """A function of a site or a package. It is asked at the start, after a reload, and every ``refresh`` seconds."""

    def __init__(
        self, config: Config, kept: Definitions, target: str, ask: Callable[[str, float], dict[str, Any]]
    ) -> None:
        """``ask``: (target, timeout in seconds), blocks; raises UnavailableError."""
        super().__init__(config, kept, target)
        self._ask = ask
        self._wake = trio.Event()

    def start(self) -> JobSet:
        self._recall()
        try:
            said = self._ask(self._place, self.config.jobs.timeout)
        except UnavailableError as exc:
            self._say("call", f"{exc}; {self._stays()}")
        else:
            self.kept = Kept(self._place, said)
        return super().start()

    def taken(self, config: Config, jobs: JobSet) -> None:
        super().taken(config, jobs)
        self._wake.set()  # the function may say something else, and is asked outside the loop

    async def run(self) -> None:
        await self._keep(self.kept)
        while True:
            with trio.move_on_after(self.config.jobs.refresh or float("inf")):
                await self._wake.wait()
            self._wake = trio.Event()
            await self.look()

    async def look(self) -> None:
        """Ask once, and use what it says if that spoils no job."""
        ask = partial(self._ask, self._place, self.config.jobs.timeout)
        try:
            said = await in_thread(ask, abandon_on_cancel=True)
        except UnavailableError as exc:
            self._say("call", f"{exc}; {self._stays()}")
            return
        self._say("call", "")
        if said == self.kept.jobs:
            self._say("jobs", "")
            return
        config = self.config
        try:
            jobs = await in_thread(partial(tables.read, said, self._place, config))
        except UnavailableError as exc:
            self._say("jobs", f"{exc}; {self._stays()}")
            return
        problem = tables.spoilt(jobs, self.jobs)
        if not problem and self.jobs.jobs and not jobs.jobs:
            problem = f"{self._place}: expected jobs, found none"
        if problem:
            self._say("jobs", f"{problem}; {self._stays()}")
            return
        self._say("jobs", "")
        if config is self.config:  # otherwise a reload came between, and has asked for another look
            await self._keep(Kept(self._place, said))
            self.jobs = jobs
            self.use(jobs)

    def _stays(self) -> str:
        count = len(self.kept.jobs)
        return f"the {count} jobs from before stay" if count else "this node has no jobs"
