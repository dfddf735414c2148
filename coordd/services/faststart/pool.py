"""Prepares servers of Spark Connect ahead of the fire times of jobs with connect = "pool".

One server for one run, at most a few on a node. Only the node that wins a run uses its server; the others end theirs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio

from coordd.core.jobs.arguments import placeholders
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.core.jobs.schedule import next_fire
from coordd.errors import CoorddError
from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.faststart.seams import PreparedServer
from coordd.services.pace import turn

log = structlog.get_logger("pool")

# How often (seconds) the jobs are looked at.
LOOK_S = 5.0

# A server is prepared this long (seconds) before the fire time, and kept this long after it.
AHEAD_S = 60.0
KEPT_S = 30.0

# After a failure a job has no server for this long (seconds).
PAUSE_S = 300.0


class _Warm:
    """A server that waits for the run of a job."""

    def __init__(self, server: PreparedServer, digest: str, due: float) -> None:
        self.server = server
        self.digest = digest
        self.due = due


class Pool:
    """``prepare`` starts a server for a job (it blocks shortly, and raises CoorddError); ``most``: how many at a time;
    ``stopped`` and ``held`` may be set: True while this node takes no runs, and while that job is suspended.
    """

    def __init__(
        self, jobs: Callable[[], Mapping[str, Job]], prepare: Callable[[Job], PreparedServer], most: Callable[[], int]
    ) -> None:
        self._jobs = jobs
        self._prepare = prepare
        self._most = most
        self.stopped: Callable[[], bool] = lambda: False
        self.held: Callable[[str], bool] = lambda _: False
        self._lock = threading.Lock()  # attempts are launched in other threads too
        self._warm: dict[str, _Warm] = {}
        self._leaving: list[PreparedServer] = []  # given away, or closed
        self._served: dict[str, float] = {}  # the fire time that a job's last server was for
        self._problems: dict[str, tuple[str, float]] = {}  # why a job has none, and until when
        self.counts = {"prepared": 0, "taken": 0, "unused": 0}

    async def run(self) -> None:
        """Look again and again; at the end, all that nobody has taken end."""
        try:
            while True:
                try:
                    await trio.to_thread.run_sync(self.look, time.time())
                except Exception:  # the boundary of one look: a job without a server starts one itself
                    log.exception("pool.look_failed")
                await turn(LOOK_S)
        finally:
            self.close()

    def look(self, now: float) -> None:
        """End unwanted servers, prepare those that are needed soon. Blocking. ``now``: Unix seconds."""
        known = self._jobs()
        wanted = {} if self.stopped() else {name: job for name, job in known.items() if can_be_prepared(job)}
        jobs = {name: job for name, job in wanted.items() if not self.held(name)}
        with self._lock:
            self._served = {name: due for name, due in self._served.items() if name in known}
            self._problems = {name: told for name, told in self._problems.items() if name in known}
            self._leaving = [server for server in self._leaving if not server.ended()]
            for name, warm in list(self._warm.items()):
                job = jobs.get(name)
                if job is None or job.digest != warm.digest or now > warm.due + KEPT_S:
                    self._end(name, "unused")
                elif warm.server.ended():
                    del self._warm[name]
                    self._fail(name, "its server ended before its run; try the job once without connect", now)
        for due, name in sorted(self._soon(jobs, now)):
            if len(self._warm) >= self._most():
                return
            self._add(jobs[name], due, now)

    def _soon(self, jobs: Mapping[str, Job], now: float) -> list[tuple[float, str]]:
        found = []
        for name, job in jobs.items():
            if name in self._warm or now < self._problems.get(name, ("", 0.0))[1] or job.schedule is None:
                continue
            due = next_fire(job.schedule, max(now, self._served.get(name, 0.0)))
            if due is not None and due <= now + AHEAD_S:
                found.append((due, name))
        return found

    def _add(self, job: Job, due: float, now: float) -> None:
        self._served[job.name] = due
        try:
            server = self._prepare(job)
        except CoorddError as exc:
            self._fail(job.name, str(exc), now)
            return
        self._problems.pop(job.name, None)
        self.counts["prepared"] += 1
        with self._lock:
            self._warm[job.name] = _Warm(server, job.digest, due)

    def _fail(self, name: str, why: str, now: float) -> None:
        self._problems[name] = (why, now + PAUSE_S)
        log.warning("pool.not_prepared", job=name, reason=why, again_in_s=PAUSE_S)

    def take(self, job: Job) -> dict[str, Any]:
        """What the spec of an attempt says about its server; {} if there is none, and the attempt starts one."""
        with self._lock:
            warm = self._warm.get(job.name)
            if warm is None or warm.digest != job.digest or warm.server.ended():
                return {}
            given = warm.server.give()
            del self._warm[job.name]
            self._leaving.append(warm.server)
            self.counts["taken"] += 1
            return dict(given)

    def close(self) -> None:
        """End all that nobody has taken."""
        with self._lock:
            for name in list(self._warm):
                self._end(name, "unused")

    def _end(self, name: str, why: str) -> None:
        server = self._warm.pop(name).server
        server.close()
        self._leaving.append(server)
        self.counts[why] += 1

    def checks(self) -> list[Check]:
        """For `doctor`."""
        with self._lock:
            problems, warm = dict(self._problems), dict(self._warm)
        found = [
            check(
                "prepared server",
                WARN,
                f"{name}: {why}; its runs start one themselves",
                "see docs/spark.md: start sooner",
            )
            for name, (why, _) in problems.items()
        ]
        if warm:
            waiting = ", ".join(f"{name} ({'ready' if w.server.ready else 'starting'})" for name, w in warm.items())
            found.append(check("prepared server", OK, f"waiting: {waiting}"))
        return found


def can_be_prepared(job: Job) -> bool:
    """True if the server of a job's run is known before the run: it has no placeholders, and runs as the daemon."""
    launch = job.launch
    if not isinstance(launch, SparkSubmit) or not launch.connect or job.run_as or job.limits != type(job.limits)():
        return False
    texts = [launch.master, launch.name, launch.properties_file, launch.keytab, launch.principal, launch.proxy_user]
    texts += [*launch.files, *launch.jars, *launch.py_files, *launch.conf.values(), *launch.env.values()]
    return not any(placeholders(text) for text in texts)
