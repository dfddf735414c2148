"""One daemon does one run after the other, with one fault in each run. Locks, the ledger and the daemon judge it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import exists, kill_at_once, until

from syscalls.faults import Page, Plan, Seen, compile_c

# A case that works takes a second or two. A case in which a node must leave a job alone takes half a minute.
LIMIT_S = 90.0

# After each attempt whose runner could not be started, a node waits up to 30 s before it checks whether it can start
# one.
END_LIMIT_S = 2 * LIMIT_S

LIFES = ("ends", "waits")


class Outcome(NamedTuple):
    """The result of one case. ``problems`` is empty if everything was right."""

    life: str
    plan: Plan
    seen: Seen
    attempts: int
    seconds: float
    problems: list[str]

    def __str__(self) -> str:
        what = f"{self.seen.call} errno {self.seen.error}" if self.seen.fired else "never came"
        return f"{self.life}: {self.plan} ({what}), {self.attempts} attempts, {self.seconds:.1f} s: {self.problems}"


class Trial:
    """A daemon. Each of its processes can be made to fail. Its budget is one run: a lost slot stops all later runs."""

    def __init__(self, cluster: Cluster, *, use_cgroup: bool) -> None:
        self.cluster = cluster
        self.node: Node = cluster.nodes[0]
        library = compile_c("faults", cluster.path, library=True)
        self.victim = compile_c("victim", cluster.path, library=False)
        self.page = Page(cluster.path / "page")
        (cluster.path / "locks").mkdir()
        self.log = cluster.path / "log"
        self.log.touch()
        self.node.env = {"LD_PRELOAD": str(library), "FAULTS": str(self.page.path), "FAULTS_ROLE": "0"}
        if not use_cgroup:
            self.node.env["FAULTS_NO_CGROUP"] = "1"
        for life in LIFES:
            self.cluster.job_file(life, JOB.format(victim=self.victim, directory=cluster.path, life=life))
        self.number = 0
        self.node.start()

    def case(self, life: str, plan: Plan) -> Outcome:
        """One run from its trigger to its end, with one fault in it."""
        self.number += 1
        run = f"{life}#{self.number}"
        began = time.monotonic()
        problems: list[str] = []
        self.page.set(plan)
        try:
            self._trigger(life, run)
            if life == "waits":
                self._kill_both(run)
            until(lambda: self._over(run), END_LIMIT_S, why=f"{run} comes to its end")
        except AssertionError as exc:
            problems.append(f"{exc}; its row: {self._row(run)}")
        seen = self.page.seen()
        self.page.clear()
        try:
            self._keep_daemon()
            until(self._is_cleared, LIMIT_S, why="the attempts' directories are cleared away")
        except AssertionError as exc:
            problems.append(f"{exc}: {self._runs_left()}")
        problems += self._judge(run)
        if problems:
            self._clean_up()
        attempts = len(self._lines(run, "start"))
        return Outcome(life, plan, seen, attempts, time.monotonic() - began, problems)

    # ---- steps

    def _trigger(self, life: str, run: str) -> None:
        """Trigger the run until the ledger has it. If the daemon is killed meanwhile, start it and ask it again."""

        def ask() -> bool:
            self._keep_daemon()
            with contextlib.suppress(OSError, CallError):
                self.node.call("run.trigger", job=life, id=run.partition("#")[2])
            return bool(self._row(run))

        until(ask, LIMIT_S, why=f"{run} is in the ledger")

    def _kill_both(self, run: str) -> None:
        """Kill runner and watcher at once, as soon as the first attempt's program and its children run."""

        def ready() -> bool:
            self._keep_daemon()
            return bool(self._lines(run, "ready")) or bool(self._row_is_over(run))

        until(ready, LIMIT_S, why=f"the program of {run} runs")

        def ours() -> set[int]:
            names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
            return {pid for pid in names if _is_ours(pid, run) and exists(pid)}

        # A fault may have ended one of the two before. If neither is left, the run is over or is tried again.
        until(lambda: ours() or self._row_is_over(run), LIMIT_S, why=f"runner and watcher of {run} are seen")
        pids = ours()
        kill_at_once(lambda: {pid for pid in pids if exists(pid)})

    def _over(self, run: str) -> bool:
        self._keep_daemon()
        return self._row_is_over(run)

    def _row(self, run: str) -> dict[str, Any]:
        try:
            return self.cluster.row(run)
        except (OSError, sqlite3.Error):
            return {}  # no ledger yet, or a process was killed while it used the ledger: the caller asks again

    def _row_is_over(self, run: str) -> bool:
        return self._row(run).get("state") in ("success", "failure", "lost", "unknown", "revoked", "missed")

    def _keep_daemon(self) -> None:
        """If the plan has killed the daemon, start the next daemon, which must go on."""
        if self.node.up:
            return
        assert self.page.seen().error < 0, f"the daemon has ended:\n{self.node.log()[-3000:]}"
        self.page.clear()
        self.node.start()

    def _is_cleared(self) -> bool:
        self._keep_daemon()
        return not self._runs_left()

    def _runs_left(self) -> list[str]:
        """The attempts that the daemon must still handle. The rest of a directory is left to the next daemon."""
        return [path.parent.name for path in (self.node.runtime_dir / "runs").glob("*/spec.json")]

    # ---- the judge

    def _judge(self, run: str) -> list[str]:
        problems = []
        row = self._row(run)
        if row.get("state") != "success":
            problems.append(f"its end is {row.get('state')}: {row.get('reason')}")
        if self._lines(run, "overlap"):
            problems.append("an attempt began while an earlier one was alive")
        started = self._lines(run, "start")
        if len(started) != len(set(started)):
            problems.append(f"an attempt ran twice: {started}")
        if not self._is_free(run):
            problems.append("something of it is alive")
        if not self.node.up:
            problems.append("the daemon has ended")
        if self._has_traceback():
            problems.append(f"the daemon's log has a traceback:\n{self.node.log()[-3000:]}")
        return problems

    def _has_traceback(self) -> bool:
        """True if the daemon's log has a traceback that no fault explains.

        trio prints one when the byte that wakes its loop cannot be sent (it expects no error but a full buffer). The
        result is queued by then: the loop takes it when it next wakes.
        """
        log = self.node.log()
        return log.count(TRACEBACK) > len(WAKE_FAILED.findall(log))

    def take_out_wakes(self) -> None:
        """Take the tracebacks that a fault explains out of the log: a cluster that is closed accepts none."""
        self.node.log_path.write_text(WAKE_FAILED.sub("", self.node.log()))

    def _lines(self, run: str, word: str) -> list[str]:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [attempt for of, attempt, said in lines if (of, said) == (run, word)]

    def _is_free(self, run: str) -> bool:
        path = self.cluster.path / "locks" / run
        if not path.exists():
            return True
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _clean_up(self) -> None:
        """After a failure: clean up, so that the next case is not affected."""
        kill_at_once(self.cluster.processes)
        self.node.process = None
        shutil.rmtree(self.node.runtime_dir / "runs", ignore_errors=True)
        self.node.log_path.rename(f"{self.node.log_path}.{self.number}")
        self.node.start()


TRACEBACK = "Traceback (most recent call last):"
WAKE_FAILED = re.compile(
    # the daemon's own lines, which begin with {, may come in between
    r"^Traceback \(most recent call last\):\n(?:(?:  |\{).*\n)*"
    r"  File \"[^\n]*/trio/_core/_wakeup_socketpair\.py\", line \d+, in wakeup_thread_and_signal_safe\n"
    r"(?:(?:    |\{).*\n)+OSError: ",
    re.MULTILINE,
)

JOB = """
overlap = "allow"
on_lost = "relaunch"
[retry]
attempts = 5
delay = 0
[command]
argv = ["{victim}", "{directory}", "{life}"]
"""


def _is_ours(pid: int, run: str) -> bool:
    """True if this process is a runner or a watcher of that run, as its command line shows."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return run.encode() in words and any(b"coordd.runner" in word for word in words)


@contextlib.contextmanager
def trial(*, use_cgroup: bool) -> Iterator[Trial]:
    """A trial that leaves nothing behind."""
    with cluster_of(1, budget=1, lease=5.0, renew=0.5, ledger_timeout=0.5, kill_grace=2.0, heartbeat=0.5) as cluster:
        arena = Trial(cluster, use_cgroup=use_cgroup)
        yield arena
        arena.take_out_wakes()
