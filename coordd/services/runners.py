"""The runners of this node: started for granted attempts, read, adopted after a restart, buried.

A runner is a separate process and needs no daemon. It appends facts to its file; this service reads them, whether they
are a millisecond old or older than the daemon.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

import structlog
import trio

from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.names import host_of
from coordd.core.ready import Launch
from coordd.core.wire.events import Task, TaskFailed, TaskRetried, TaskRevoked, TaskStarted, TaskSucceeded
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.ports import Launcher
from coordd.services.driver import Driver
from coordd.services.pace import next_turn

log = structlog.get_logger("runners")

# Facts are read at least this often (seconds), in case a poke is lost.
LOOK_S = 1.0

# An interrupted burial starts again after a pause that doubles. So a directory that can never be read costs a line a
# minute, not one a second.
BURY_AGAIN_S = 0.5
BURY_AGAIN_MAX_S = 60.0

# Maximum number of pokes in one round; the rest is readable at once again. A poke with a fact contains the last lines
# of the output: 20 of 500 characters, each up to 6 bytes in JSON.
POKES_MAX = 256
POKE_BYTES_MAX = 128 * 1024

# After the end of an attempt is known, its directory is kept for this many rounds: the runner may still write.
LINGER_LOOKS = 5

# At a shutdown of the machine: after its job's grace a runner has this long (seconds) to report, and this often
# (seconds) it is looked whether one is alive.
REPORT_S = 5.0
ALIVE_LOOK_S = 0.25

# The events of the journal that tell of an attempt's end.
ENDS = (TaskSucceeded, TaskFailed, TaskRevoked, TaskRetried)


def launch_of(spec: dict[str, Any]) -> Launch:
    """The grant that a spec was made for. Raises KeyError if the spec lacks a part of it."""
    return Launch(
        spec["run"],
        spec["job"],
        AttemptNumber(spec["attempt"]),
        Token(spec["token"]),
        spec["nonce"],
        spec["fire_at"],
        spec.get("args", "{}"),
        spec["deadline"],
        spec["lease_s"],
        digest=spec.get("digest", ""),
        policy=spec.get("policy", ""),
        due=float(spec.get("due", 0.0)),
    )


class RunnerHandle:
    """One runner, as the daemon knows it."""

    __slots__ = (
        "application_id",
        "bury_at",
        "bury_pause_s",
        "directory",
        "ended",
        "launch",
        "linger",
        "program",
        "read",
        "reported",
        "started_at",
        "waits",
    )

    def __init__(self, directory: str, launch: Launch, waits: bool) -> None:
        self.directory = directory
        self.launch = launch
        self.waits = waits
        self.program = 0  # its pid, once it has been executed
        self.read = 0  # number of facts that were read
        self.started_at = 0.0
        self.application_id = ""
        self.ended = False
        self.reported = False
        self.bury_at = 0.0  # no burial starts before, in trio's time
        self.bury_pause_s = 0.0  # 0 until the runner has vanished
        self.linger = LINGER_LOOKS


class Runners:
    """Every runner of this node."""

    def __init__(self, launcher: Launcher, build: Callable[[Launch], dict[str, Any]], poke_path: str) -> None:
        self._launcher = launcher
        self._build = build
        self._poke_path = poke_path
        self.driver: Driver  # set by the composition root: the two need each other
        self.runners: dict[str, RunnerHandle] = {}
        self._ends: dict[tuple[str, int, str], Task] = {}  # from the journal, until ``adopt``
        # Starts that this node told under an earlier name: under the present one they would look like a second launch.
        self._told_before: set[tuple[str, int, str]] = set()
        self._records: set[str] = set()  # names of records that the ledger is told of

    # ---- for the driver

    def launch(self, launch: Launch) -> None:
        """Start the runner of a granted attempt."""
        node = self.driver.node
        job = node.definition(launch.job, launch.digest)
        try:
            directory = self._launcher.start(self._build(launch))
        except RefusedError as exc:
            log.error("runner.not_started", run=launch.run, attempt=launch.attempt, reason=str(exc))
            node.launch_refused(launch, str(exc), self.driver.now())
            return
        except (CoorddError, OSError) as exc:  # this node lacks something, or its disk fails
            log.error("runner.not_started", run=launch.run, attempt=launch.attempt, reason=str(exc))
            node.launch_failed(launch, str(exc), self.driver.now())
            return
        except Exception as exc:
            # The boundary of one launch: an unexpected value must end this attempt, and count as one; it must not stop
            # the daemon of one node after another.
            log.exception("runner.not_started", run=launch.run, attempt=launch.attempt)
            why = f"it cannot be started: {type(exc).__name__}: {exc!s:.300}"
            node.launch_refused(launch, why, self.driver.now(), final=False)
            return
        self.runners[directory] = RunnerHandle(directory, launch, waits=bool(job and job.waits))

    def cancel(self, run: str, reason: str) -> None:
        """Tell the runner of a run to end it, if it is on this node."""
        for runner in self.runners.values():
            if runner.launch.run == run and not runner.ended:
                self._launcher.command(runner.directory, "cancel", reason)

    async def shut_down(self, reason: str, waits: Callable[[str, float], None]) -> None:
        """The machine shuts down: the runners end their jobs and report it, so that other nodes need not wait.

        Returns when all of them are gone: the network may go with the daemon's unit, and then nobody hears a report.
        ``waits`` is called now and then with the state, and the time (seconds) that it may take from then on.
        """
        for runner in self.runners.values():
            if not runner.ended:
                self._launcher.command(runner.directory, "shutdown", reason)
        most_s = max(map(self._grace_s, self.runners.values()), default=0.0) + REPORT_S
        until = trio.current_time() + most_s
        while alive := self._alive():
            left_s = until - trio.current_time()
            if left_s <= 0.0:
                log.error("runners.not_ended", runs=alive, waited_s=most_s, effect="their leases must lapse")
                return
            waits(f"the machine stops: {len(alive)} run{'s' if len(alive) != 1 else ''} must end and report it", left_s)
            await trio.sleep(min(ALIVE_LOOK_S, left_s))

    def _alive(self) -> list[str]:
        self._launcher.reap()
        return sorted(one.launch.run for one in self.runners.values() if self._launcher.alive(one.directory))

    def _grace_s(self, runner: RunnerHandle) -> float:
        """How long (seconds) a runner's job has to end; a reload may have changed that for later ones."""
        said: object = None
        with contextlib.suppress(UnavailableError):
            said = self._launcher.spec(runner.directory).get("kill_grace_s")
        grace_s = said if isinstance(said, (int, float)) else self.driver.node.settings.kill_grace_s
        return min(grace_s, runner.launch.lease_s)  # after its lease its report says nothing new

    # ---- life

    def saw(self, event: Task) -> None:
        """An event of this node's journal, before ``adopt``: the end of an attempt whose files are gone counts."""
        if isinstance(event, TaskStarted) and event.node and host_of(event.node) != self.driver.node.hostname:
            self._told_before.add((event.run, event.token, event.nonce))
        if isinstance(event, ENDS):
            self._ends[event.run, event.token, event.nonce] = event

    def adopt(self) -> int:
        """Find the attempts of an earlier daemon, before the node joins; returns how many runners are alive."""
        alive = 0
        self._launcher.clear_away()
        for directory in self._launcher.scan():
            try:
                spec = self._launcher.spec(directory)
                launch = launch_of(spec)
            except (UnavailableError, KeyError) as exc:
                log.error("runner.not_adopted", directory=directory, reason=str(exc))
                continue
            runner = self.runners[directory] = RunnerHandle(directory, launch, waits=bool(spec.get("waits")))
            if not self._ended(directory):
                alive += 1
                self.driver.node.runner_adopted(launch.run, launch.job, launch.attempt, launch.token, runner.waits)
                log.info("runner.adopted", run=launch.run, attempt=launch.attempt, directory=directory)
        self._testify()
        return alive

    def _testify(self) -> None:
        """Attempts without a directory: tell the ledger how they ended, or that they are certainly over."""
        found = {os.path.basename(directory) for directory in self.runners}
        testimonies, now = self.driver.node.testimonies, self.driver.now()
        for name, spec, why in self._launcher.records():
            if name in found:
                continue
            launch = launch_of(spec) if spec else None
            end = self._ends.get((launch.run, launch.token, launch.nonce)) if launch is not None else None
            if end is not None:
                testimonies.ended(name, end, now)
            elif launch is not None and why:
                log.warning("runner.over", run=launch.run, attempt=launch.attempt, reason=why)
                testimonies.over(name, launch, why, now)
            else:
                log.warning("runner.end_not_known", name=name, waits_for="the end of its lease")
                self._launcher.forget_record(name)
                continue
            self._records.add(name)
        self._ends.clear()

    async def run(self) -> None:
        """Listen for pokes, and read facts now and then."""
        sock = self._bind()
        try:
            look_at = 0.0
            while True:
                with trio.move_on_at(look_at):
                    await trio.lowlevel.wait_readable(sock)
                    self._poked(sock)
                if trio.current_time() >= look_at:  # even while pokes arrive all the time
                    self._look()
                    look_at = next_turn(LOOK_S)
        finally:
            sock.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._poke_path)

    # ---- single steps

    def _bind(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        if os.path.exists(self._poke_path):
            os.unlink(self._poke_path)
        sock.bind(self._poke_path)
        os.chmod(self._poke_path, 0o600)
        return sock

    def _poked(self, sock: socket.socket) -> None:
        """Each datagram is the name of a directory; a second line holds a fact that the disk refused."""
        names: dict[str, list[bytes]] = {}
        for _ in range(POKES_MAX):
            try:
                name, _, line = sock.recv(POKE_BYTES_MAX).partition(b"\n")
            except OSError:
                break
            names.setdefault(name.decode(errors="replace"), []).append(line)
        for runner in list(self.runners.values()):
            lines = names.get(os.path.basename(runner.directory))
            if lines is None:
                continue
            self._take_in(runner)
            for line in lines:
                fact = self._launcher.fact(line) if line else None
                if fact is not None and runner.directory in self.runners:
                    self._fact(runner, fact)

    def _look(self) -> None:
        self._launcher.reap()
        self._repeat()
        for reason in self._launcher.notices():
            log.warning("runner.warm_parent_lost", reason=reason, effect="until the next one, attempts start slower")
        for runner in list(self.runners.values()):
            self._take_in(runner)
            if runner.ended:
                self._maybe_forget(runner)
            elif self._launcher.alive(runner.directory):
                self._launcher.restore(runner.directory)
                if self._launcher.wake(runner.directory):
                    effect = "the attempt is guarded again; it ends when its lease does, if its runner stays stopped"
                    log.warning("runner.was_stopped", run=runner.launch.run, directory=runner.directory, effect=effect)
            else:
                self._take_in(runner)  # its last facts may just have been written
                if not runner.ended and runner.directory in self.runners:
                    self._bury(runner)

    def _repeat(self) -> None:
        """Testimonies that had no answer; the records of the others are not needed any more."""
        if self._records:
            testimonies = self.driver.node.testimonies
            for name in self._records - testimonies.waiting.keys():
                self._launcher.forget_record(name)
            self._records &= testimonies.waiting.keys()
            self.driver.feed(testimonies.again)

    def _take_in(self, runner: RunnerHandle) -> None:
        facts = self._launcher.facts(runner.directory)
        for fact in facts[runner.read :]:
            runner.read += 1
            self._fact(runner, fact)
        if runner.reported:
            self._maybe_forget(runner)

    def _fact(self, runner: RunnerHandle, fact: dict[str, Any]) -> None:
        driver, launch = self.driver, runner.launch
        what = fact.get("fact")
        if what == "started":
            if runner.started_at:
                return  # it came with a poke before, and was written later
            runner.started_at = float(fact.get("at", 0.0))
            runner.program = int(fact.get("program", 0))
            if (launch.run, launch.token, launch.nonce) not in self._told_before:
                driver.feed(driver.node.runner_started, launch)
        elif what == "application":
            runner.application_id = str(fact.get("application_id", ""))
        elif what in ("ended", "refused") and not runner.ended:
            runner.ended = True
            runtime_s = float(fact["at"]) - runner.started_at if runner.started_at else None
            driver.feed(
                driver.node.runner_ended,
                launch,
                str(fact.get("state", "retry")),
                fact.get("exit_code"),
                str(fact.get("reason", "")),
                str(fact.get("application_id") or runner.application_id),
                runtime_s,
            )
        elif what == "reported":
            runner.reported = True
        elif what == "untold":
            log.warning("runner.end_not_known", run=launch.run, attempt=launch.attempt, reason=fact.get("reason", ""))

    def _ended(self, directory: str) -> bool:
        return any(fact.get("fact") in ("ended", "refused") for fact in self._launcher.facts(directory))

    def _maybe_forget(self, runner: RunnerHandle) -> None:
        """Once the ledger knows the end and the process is gone, the directory is not needed any more."""
        if self._launcher.alive(runner.directory):
            return
        if not runner.reported and runner.launch.run in self.driver.node.pursuits.pursuits:
            return  # the ledger does not know yet: the node reports it with the next sweep
        if not runner.ended:
            runner.linger -= 1
            if runner.linger > 0:
                return
            self.driver.feed(self.driver.node.runner_gone, runner.launch)
        self.runners.pop(runner.directory, None)
        self._launcher.forget(runner.directory)

    def _bury(self, runner: RunnerHandle) -> None:
        """The runner and its watcher died without a report: end everything that is left of them.

        Called again if the burying process itself was killed; while it works, the attempt counts as alive.
        """
        if self._launcher.buried(runner.directory):
            # Nothing is left, and no disk has the end: a poke with the end may still arrive.
            runner.linger -= 1
            if runner.linger <= 0:
                self.driver.feed(self.driver.node.runner_gone, runner.launch)
                self.runners.pop(runner.directory, None)
                self._launcher.forget(runner.directory)
            return
        now = trio.current_time()
        if now < runner.bury_at:
            return
        if not runner.bury_pause_s:
            log.warning("runner.vanished", run=runner.launch.run, attempt=runner.launch.attempt)
        failure = ""
        try:
            self._launcher.bury(runner.directory)
        except UnavailableError as exc:
            failure = str(exc)
        runner.bury_pause_s = min(max(BURY_AGAIN_S, 2 * runner.bury_pause_s), BURY_AGAIN_MAX_S)
        runner.bury_at = now + runner.bury_pause_s
        if failure:
            log.error("runner.not_buried", run=runner.launch.run, reason=failure, tries_again_in_s=runner.bury_pause_s)
