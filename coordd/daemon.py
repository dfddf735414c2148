"""The composition root: builds everything; owns the nurseries, the order of start and stop, and the signals."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
import trio

from coordd import __version__
from coordd.adapters.disk import journal as journal_files
from coordd.adapters.disk.alarm_file import AlarmFile
from coordd.adapters.disk.audit_files import AuditChain, check as check_audit
from coordd.adapters.disk.backlog import SqliteBacklog
from coordd.adapters.disk.definitions import DefinitionsFile
from coordd.adapters.disk.files import NodeState, StateFile, make_directory
from coordd.adapters.disk.job_definitions import JobDefinitionsFile
from coordd.adapters.disk.requests import RequestFiles
from coordd.adapters.kernel.descent import in_a_run
from coordd.adapters.launch.units import probe as probe_units
from coordd.adapters.recording import RecordingLauncher
from coordd.adapters.systemd import SystemdNotifier, machine_is_stopping
from coordd.config import safety
from coordd.config.for_core import named, needs_restart, regrouped, restarted_with, settings_of, what_changed
from coordd.config.jobfile import JobSet
from coordd.config.sections import Config
from coordd.config.settings import load
from coordd.connecting import Connections, job_source, url_of_ledger
from coordd.core.jobs.job import Job
from coordd.core.node.definitions import Had
from coordd.core.node.node import Node
from coordd.core.ready import Now
from coordd.core.wire.chain import Checked
from coordd.core.wire.events import task_of
from coordd.core.wire.windows import Windows
from coordd.errors import CoorddError, UnavailableError
from coordd.launching import LaunchBuilder, make_outlets
from coordd.services.audit import Audit, audit_view
from coordd.services.checks.startable import Startable
from coordd.services.control import disclosure, doctor
from coordd.services.control.methods import UNAVAILABLE_METHODS, Methods
from coordd.services.control.server import ControlServer
from coordd.services.driver import Driver, Keeper
from coordd.services.health import Health
from coordd.services.ledger import LedgerService, boottime
from coordd.services.logs.retention import Retention
from coordd.services.metrics.unread import dump_unread
from coordd.services.observing import Observing
from coordd.services.outbox import Outbox
from coordd.services.plugged.booting import Boot
from coordd.services.runners import Runners
from coordd.services.views.troubles import Troubles

log = structlog.get_logger("daemon")

# How many bytes of the journal's end are read at a start: about as many attempts as a witness remembers.
RECALLED_BYTES_MAX = 4 * 1024 * 1024

# A start takes up to this long (seconds) after its boot steps; a stop less, after its runs.
START_S = 60.0

# In a burst of elections, the default (700) spends a fifth of the time on searching for cycles that do not exist.
GC_THRESHOLD = 20_000

# At a stop it is asked for at most this long (seconds) whether the whole machine stops.
STOP_S = 8.0

# `doctor` waits this long (seconds) for the file systems that jobs need.
DOCTOR_S = 15.0

# Exit codes (sysexits.h).
EXIT_UNAVAILABLE = 69
EXIT_CONFIG = 78


class Daemon:
    """One coordd daemon."""

    def __init__(self, config: Config, config_path: str | None) -> None:
        """Build everything that does not need the event loop.

        Raises:
            ConfigError: the configuration cannot be used.
            UnavailableError: a directory cannot be written, or a file cannot be read.
        """
        self.config = self._at_start = config
        self._config_path = config_path
        self._started_at = boottime()
        self._stopping = self._begun = False
        self._refused = ""  # why the boot steps end the start
        self.notifier = SystemdNotifier()
        for path, mode in ((config.node.state_dir, 0o700), (config.node.runtime_dir, 0o755)):
            make_directory(path, mode)
        state = self._open_state()
        config = self.config = self._at_start = self._named(config)
        self.node = self._make_node(state)
        about = {"node": config.node.name, "cluster": config.cluster.name, "socket": config.control.socket}
        self.boot = Boot(config.boot, about, self._waits)
        self._ledgers = state.ledgers
        self.connections = Connections(config.cluster, self.node.full_hostname, state.ledgers, state.pin)
        self.connections.jobs, self.connections.leased_s = self._jobs_now, lambda: self.node.leased_s
        self.connections.known.heard = self.node.heard
        self.bus = self.connections.bus
        self.source = job_source(config, self.connections)
        self.jobs: JobSet = self.source.start()
        self._log_problems(self.jobs)
        self.ledger = LedgerService(
            self.connections.open_ledger, config.cluster.ledger_timeout, open_any=self.connections.open_any_ledger
        )
        runtime_dir = config.node.runtime_dir
        warm_for = config.cluster.ledger if config.node.fast_start else ""
        self._launcher = RecordingLauncher(runtime_dir, config.node.state_dir, log.warning, warm_for=warm_for)
        self.builder = LaunchBuilder(config, self.node, self._launcher.directory, self.connections)
        self.startable = Startable(self.builder.asking)
        self.runners = Runners(self._launcher, self.builder.spec, os.path.join(runtime_dir, "facts.sock"))
        self.driver = self._make_driver()
        self.runners.driver = self.driver
        self.source.attach(self._use, self.driver, self.ledger)
        self.troubles = Troubles(self.driver, self.ledger)
        self._audit = Audit(lambda record: self.driver.journal_control(**record))
        self.methods = self._make_methods()
        self.control = self._make_control()
        self.retention = Retention(
            lambda: self.config.history, self._journal, self.builder.log_dir, self.connections.open_ledger, time.time
        )
        self.health = Health(
            self.driver,
            self.ledger,
            self.troubles,
            self.notifier,
            control_path=config.control.socket,
            startable=self.startable,
            check_room=self._launcher.check_room,
            clean=self.retention.clean,
            look=self._save_ledger_mark,
        )
        outlets = make_outlets(config, self.driver, self.ledger, self.runners, self.builder)
        self.observing = Observing(config, self.driver, self.ledger, self.troubles, self.health, self.methods, outlets)

    # ---- building

    def _open_state(self) -> NodeState:
        """Open all that outlives the process, and read what the node itself needs of it."""
        state_dir = self.config.node.state_dir
        self._journal = journal_files.Journal(os.path.join(state_dir, "journal"))
        for sentence in self._journal.repaired:
            log.warning("journal.repaired", what=sentence)
        self._alarms = AlarmFile(os.path.join(state_dir, "alarms.json"))
        self._requests = RequestFiles(os.path.join(state_dir, "requests"))
        self._definitions = DefinitionsFile(os.path.join(state_dir, "definitions.json"))
        self._job_definitions = JobDefinitionsFile(os.path.join(state_dir, "job-definitions.bin"))
        self._audit_path = os.path.join(state_dir, "audit.json")
        self._state_file = StateFile(os.path.join(state_dir, "node.json"))
        state = self._state_file.load(
            wall_s=time.time(), highest_clock=partial(journal_files.highest_clock, self._journal.directory)
        )
        self._kept_name = state.name or self.config.node.name
        if state.warning:
            log.warning("state.made_up", what=state.warning)
        self._boots = state.boots + 1
        return state

    def _named(self, config: Config) -> Config:
        config, self._name_warning = named(config, self._kept_name)
        if self._name_warning:
            log.warning("node.name_changed", warning=self._name_warning)
        return config

    def _make_node(self, state: NodeState) -> Node:
        config, rng = self.config, random.SystemRandom()
        node = Node(
            hostname=config.node.name,
            pid=os.getpid(),
            incarnation=f"{self._boots}-{rng.getrandbits(64):016x}",
            settings=settings_of(config, __version__),
            clock_mark=state.clock_mark,
            rng=rng,
            pin=state.pin[0],
            acquainted="" if state.pin[0] else state.ledgers.get(url_of_ledger(config.cluster), ""),
        )
        node.topics.add("drill")  # an election about nothing, to see who would win
        return node

    def _make_driver(self) -> Driver:
        connected = self.connections.loses_connection
        driver = Driver(
            self.node,
            bus=self.bus,
            ledger=self.ledger,
            journal=self._journal,
            keeper=Keeper(
                self._save_mark,
                self._requests.keep,
                self._requests.forget,
                self._save_pin,
                self._alarms.save,
                self._definitions.save,
            ),
            launch=self.runners.launch,
            cancel=self.runners.cancel,
            windows=Windows(boottime(), time.time(), self.node.clock, self.node.full_hostname) if connected else None,
        )
        if connected:
            backlog = SqliteBacklog(os.path.join(self.config.node.state_dir, "backlog.db"))
            try:
                backlog.look()
            except UnavailableError as exc:
                log.error("backlog.not_readable", reason=str(exc))
            driver.outbox = Outbox(self.bus.publish, backlog, renew=driver.renewed)
        driver.chain = AuditChain(self._journal, self._audit_path)
        driver.handlers["drill"] = lambda elected: log.info("election.won", id=elected.id, topic=elected.topic)
        return driver

    def _make_methods(self) -> Methods:
        return Methods(
            self.driver,
            self.ledger,
            self.troubles,
            ledger_url=self.connections.ledger_url,
            started_at=self._started_at,
            log_dir=self.builder.log_dir,
            job_problems=self._problems,
            reload=self.reload,
            argv=self.builder.argv,
            doctor=self._doctor,
            audit=lambda since, limit: audit_view(self._check_audit(since, limit)),
            source=self.source,
            about=partial(journal_files.about, self._journal.directory),
            looks=self._audit,
            unsigned=safety.unsigned(self.config.cluster),
            boot=self.boot.view,
        )

    def _make_control(self) -> ControlServer:
        config = self.config
        return ControlServer(
            config.control.socket,
            self.methods.table(),
            operator_group=config.control.operator_group,
            viewer_group=config.control.viewer_group,
            unavailable=UNAVAILABLE_METHODS,
            shown=disclosure.shown,
            told=disclosure.sentence,
            audit=self._audit,
            in_a_run=in_a_run,
        )

    # ---- life

    async def run(self) -> int:
        """Run until a signal stops it; returns the exit code."""
        self._warn()
        if os.getuid() == 0:
            log.warning("daemon.runs_as_root", advice="a separate user is safer: see systemd/coordd.service")
        listener = self.control.bind()
        exit_code = 0
        try:
            # The outer nursery outlives the inner one: messages that are sent while stopping still leave.
            async with trio.open_nursery() as outer:
                async with trio.open_nursery() as inner:
                    await outer.start(self._signals, inner.cancel_scope)  # a stop of the machine takes long, too
                    inner.start_soon(self.control.serve, listener)
                    inner.start_soon(self._start, outer, inner)
                if self._refused or self.driver.fatal.is_set():
                    exit_code = EXIT_UNAVAILABLE if self._refused else EXIT_CONFIG
                    reason = self._refused or self.driver.fatal_reason
                    log.error("daemon.refused", reason=reason)
                    print(f"coordd: {reason}", file=sys.stderr)
                elif self._begun:
                    await self._farewell()
                outer.cancel_scope.cancel()
            if self.driver.outbox is not None:
                await self.driver.outbox.finish()
        finally:
            self._close()
        return exit_code

    async def _start(self, outer: trio.Nursery, inner: trio.Nursery) -> None:
        """Take the boot steps, and begin: only now is there anything that other nodes can hear."""
        methods = self.control.methods
        self.control.methods = self.boot.gated(methods)
        self._refused = await self.boot.prepare()
        if self._refused:
            inner.cancel_scope.cancel()
            return
        self.control.methods = methods
        self._begun = True
        outer.start_soon(self.bus.receive, self.driver.deliver, self._peer_dead, self.driver.bus_changed)
        if self.driver.outbox is not None:
            outer.start_soon(self.driver.outbox.run)
        outer.start_soon(self.ledger.run, self.driver.ledger_answers)
        inner.start_soon(self.driver.run)
        inner.start_soon(self.methods.relay.run)
        self._begin()
        for serve in (
            self.runners.run,
            self.health.run,
            self.troubles.run,
            self.observing.run,
            self.source.run,
            self.boot.run,
        ):
            inner.start_soon(serve)
        inner.start_soon(self._fatal, inner.cancel_scope)

    def _warn(self) -> None:
        """Log settings that give something up, and settings that this version does not implement."""
        if not self.config.cluster.mingle:
            log.warning(
                "mingle.off",
                lost="clock and tokens of the others are not asked for at the start, and a second node of this "
                "name is not noticed",
            )
        for problem in safety.warnings(self.config):
            log.warning("config.weak", text=str(problem))

    def _begin(self) -> None:
        """Adopt what an earlier daemon left, then mingle."""
        node, driver = self.node, self.driver
        driver.on_state = self._state_changed
        self._save_mark(node.clock_mark)
        now = driver.now()
        known, lost = self._definitions.load()
        node.rulebook.definitions.published = self.source.published
        node.rulebook.definitions.had = {job: Had(*one) for job, one in known.items()}
        earlier, unread = self._job_definitions.load()
        node.rulebook.definitions.recall(earlier)
        for event, problem in (("definitions.not_readable", lost), ("job_definitions.not_readable", unread)):
            if problem:
                log.error(event, reason=problem)
        self._take_jobs(self.jobs.jobs, now)
        kept, unread = self._alarms.load()
        if unread:
            log.error("alarms.not_readable", reason=unread)
        node.alarms.recall(kept)
        self.recall()
        self.runners.adopt()
        waiting, bad = self._requests.load()
        for of in waiting:
            node.recover_request(of, now)
        for path in bad:
            log.error("request.not_readable", path=path)
        gc.collect()
        gc.freeze()  # objects of the start are never collected: no collection needs to look at them again
        gc.set_threshold(GC_THRESHOLD)
        if self.connections.loses_connection:
            driver.feed(node.bus_changed, False)  # until it is connected
        peers = self.bus.peers()
        driver.feed(node.start, None if peers is None else tuple(peers))

    def recall(self) -> None:
        """Read the journal for attempts: two starts of one attempt, recent ends, and rows to restore if the ledger went
        back.
        """
        take = self.node.recall if self.connections.ledger_can_go_back else self.node.alarms.saw
        try:
            for record in journal_files.newest(self._journal.directory, RECALLED_BYTES_MAX):
                self.troubles.recall(record)
                if (event := task_of(record)) is not None:
                    take(event)
                    self.node.outcomes.saw(event, event.timestamp)
                    self.runners.saw(event)
        except UnavailableError as exc:
            log.error("journal.not_recalled", reason=str(exc), lost="fewer rows to restore if the ledger goes back")

    def _state_changed(self, state: str) -> None:
        if state == "ready":
            self.notifier.notify("READY=1", f"STATUS={self.health.line()}")
            took_s, socket = round(boottime() - self._started_at, 3), self.config.control.socket
            log.info("daemon.ready", node=self.node.full_hostname, socket=socket, seconds=took_s)
        else:
            self.health.say()

    def _waits(self, sentence: str, most_s: float) -> None:
        """The start or the stop takes longer: tell systemd, which would end it."""
        more = f"EXTEND_TIMEOUT_USEC={int((most_s + START_S) * 1e6)}"
        self.notifier.notify(f"STATUS={sentence}", more, "WATCHDOG=1")

    async def _signals(self, inner: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        with trio.open_signal_receiver(*watched) as received:
            task_status.started()
            async for number in received:
                if number in (signal.SIGTERM, signal.SIGINT):
                    if self._stopping:
                        log.warning("daemon.stopped_now")
                        os._exit(1)
                    self._stopping = True
                    log.info("daemon.stopping", signal=signal.Signals(number).name)
                    inner.cancel()
                elif number == signal.SIGHUP and self._begun and not inner.cancel_called:
                    with self._audit.by_signal("reload", "SIGHUP"):  # refused: the old configuration stays
                        self.reload()
                elif number == signal.SIGUSR1:
                    log.info("daemon.state", **self.methods.status_now())
                    dump_unread(self.driver, self.driver.bus)

    async def _fatal(self, inner: trio.CancelScope) -> None:
        await self.driver.fatal.wait()
        inner.cancel()

    def _peer_dead(self, name: str) -> None:
        self.driver.feed(self.node.peer_dead, name)

    async def _farewell(self) -> None:
        """Say good-bye and flush; runners continue, unless the whole machine stops."""
        self.notifier.notify("STOPPING=1", "STATUS=stopping")
        stopping = False
        with trio.CancelScope(shield=True):  # each step has its own limit
            self.driver.feed(self.node.stop)
            with trio.move_on_after(STOP_S):
                if self.runners.runners:
                    stopping = await trio.to_thread.run_sync(machine_is_stopping, abandon_on_cancel=True)
            if stopping:
                log.info("daemon.machine_stops", runs=len(self.runners.runners))
                await self.runners.shut_down("the machine stops", self._waits)
            await trio.sleep(0.05)  # time for the last messages to leave

    def _close(self) -> None:
        if self.driver.outbox is not None:
            self.driver.outbox.close()
        self._launcher.close()
        self.bus.close()
        self.ledger.close()
        self._save_ledger_mark()
        try:
            self._journal.close()
        except UnavailableError as exc:  # the next start closes its segment
            log.error("journal.not_closed", reason=str(exc))
        self.control.close()

    # ---- configuration

    def reload(self, no_jobs: bool = False) -> dict[str, Any]:
        """Reload everything or nothing: if one file is invalid, everything stays as it was, and the problem is
        reported.

        Raises:
            ConfigError: nothing has changed; the message names file and key.
        """
        self.notifier.notify("RELOADING=1")
        try:
            result = self._reload(no_jobs)
        except CoorddError as exc:
            log.error("config.not_reloaded", reason=str(exc))
            self.notifier.notify("READY=1", f"STATUS=reload refused, the old configuration stays: {exc}")
            raise
        self.notifier.notify("READY=1", f"STATUS={self.health.line()}")
        log.info("config.reloaded", **result)
        return result

    def _reload(self, no_jobs: bool) -> dict[str, Any]:
        config = self._named(load(self._config_path, os.environ))
        fixed = needs_restart(self._at_start, config)
        config = restarted_with(self._at_start, config)
        jobs = self.source.reload(config, no_jobs=no_jobs)
        self.connections.use(config.cluster)
        before, self.config = self.jobs.jobs, config
        self.source.taken(config, jobs)
        self.node.reconfigured(settings_of(config, __version__))
        self.builder.config = config
        self.observing.use(config)
        self._use(jobs)
        open_runs = self.node.pursuits.pursuits
        return {
            **what_changed(before, jobs),
            "regrouped": regrouped(before, jobs.jobs, open_runs),
            "needs_restart": fixed,
        }

    def _use(self, jobs: JobSet) -> None:
        """These are the definitions from now on."""
        self.jobs = jobs
        self._log_problems(jobs)
        self.driver.feed(self._take_jobs, jobs.jobs)

    def _take_jobs(self, jobs: dict[str, Job], now: Now) -> None:
        """The node uses these job files, and keeps the definitions for its next life."""
        wanted = {**jobs, **self.observing.hook_jobs(self.config, jobs)}
        self.node.cannot_launch(self.startable.take(wanted))
        self.node.rulebook.definitions.revision = self.source.revision
        self.node.set_jobs(wanted, now)
        try:
            self._job_definitions.save(self.node.rulebook.definitions.kept())
        except UnavailableError as exc:  # a later reload tries again; until then an earlier file is there
            log.error("job_definitions.not_kept", reason=str(exc))

    def _jobs_now(self) -> Mapping[str, Job]:
        return self.jobs.jobs

    def _problems(self) -> dict[str, list[str]]:
        return {name: [str(problem) for problem in problems] for name, problems in self.jobs.problems.items()}

    def _log_problems(self, jobs: JobSet) -> None:
        for problems in jobs.problems.values():
            for problem in problems:
                (log.error if problem.severity == "error" else log.warning)("job.problem", problem=str(problem))

    # ---- disk

    def _save_mark(self, mark: int) -> None:
        self._saved_mark = mark
        known, seen = self.connections.known, self.connections.ledger_mark
        if seen and known.pin:  # otherwise it would count as a ledger that was used
            self._ledgers = {**self._ledgers, self.connections.ledger_url: seen}
        name = self._at_start.node.name if self._at_start.called_by_host else ""
        self._state_file.save(self._boots, mark, self._ledgers, (known.pin, known.pinned_at), name)

    def _save_pin(self, pin: str) -> None:
        self.connections.known.use(pin)
        self._save_mark(self._saved_mark)

    def _save_ledger_mark(self) -> None:
        """Store the epoch of the ledger when it is a new one."""
        seen = self.connections.ledger_mark if self.connections.known.pin else ""
        if seen and self._ledgers.get(self.connections.ledger_url) != seen:
            try:
                self._save_mark(self._saved_mark)
            except UnavailableError as exc:
                log.error("state.not_saved", reason=str(exc))

    def _check_audit(self, since: float, limit: int) -> Checked:
        """Runs in a thread. Raises UnavailableError."""
        oldest = self.retention.oldest()
        return check_audit(self._journal.directory, self._audit_path, since=since, limit=limit, oldest=oldest)

    def _doctor(self) -> list[dict[str, str]]:
        """Runs in a thread: the checks that a person would make first."""
        uid = os.getuid()
        checks = [doctor.check("runs as", doctor.OK if uid else doctor.WARN, f"uid {uid}", "run it as a separate user")]
        node = self.config.node
        if self._name_warning:
            checks.append(doctor.check("name", doctor.WARN, self._name_warning, "set [node] name, then restart"))
        checks += [*doctor.room_checks(node.state_dir), *self.source.checks()]
        checks += doctor.opened_checks(self.connections.open_ledger)
        checks.append(doctor.bus_check(self.bus))
        checks.append(doctor.audit_check(lambda: self._check_audit(math.inf, 1).breaks))
        if (warm := self._launcher.warm) is not None:
            checks.append(doctor.warm_check(warm.pid, warm.problem))
        checks.append(doctor.units_check(*probe_units(node.units)))
        absent = self.startable.again(DOCTOR_S)
        checks += [
            *doctor.plugin_checks(self.health.brought.problems()),
            *self.boot.checks(),
            *self.observing.checks(),
            *self.builder.remarks(absent),
        ]
        return checks + doctor.job_checks(self.jobs.jobs, self._problems(), self.builder.refused(), absent)
