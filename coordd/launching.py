"""Turns a granted attempt into a runner's spec, from the job's definition, the site's configuration and the grant."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from coordd import __version__
from coordd.adapters import logs, secrets
from coordd.adapters.cluster import properties
from coordd.adapters.cluster.http import ANSWER_S
from coordd.adapters.cluster.opening import LOOKED_UP_BY, LOOKED_UP_WITH, STANDALONE, YARN, has_lookup, open_manager
from coordd.adapters.disk.copies import SqliteCopies
from coordd.adapters.disk.files import write_atomic
from coordd.adapters.drivers.far_ui import FarUi
from coordd.adapters.drivers.ui import SparkUi
from coordd.adapters.faststart import archive
from coordd.adapters.faststart.prepared import DIRECTORY, Prepared, new_directory
from coordd.adapters.kerberos import identity
from coordd.adapters.launch.allowed import SECRETS_PATH
from coordd.adapters.launch.units import Units
from coordd.adapters.onhost import absent, mount_points, named_files, place_of
from coordd.adapters.process import BOOT
from coordd.adapters.remote.stores import open_store
from coordd.adapters.spark import (
    AttemptInfo,
    ProgramSpec,
    SparkDefaults,
    build,
    build_sample,
    command_problem,
    find_java,
    redacted,
    remarks,
)
from coordd.adapters.triggers.queues import MessageQueues
from coordd.adapters.triggers.remote_files import look as look_at_files
from coordd.config.sections import Config
from coordd.config.tracing import endpoint
from coordd.connecting import Connections, make_mirror, make_passing
from coordd.core.jobs.applications import run_mark
from coordd.core.jobs.arguments import built_in, fill_launch, placeholders, unpacked
from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.lineage import parent_properties
from coordd.core.names import host_of
from coordd.core.node.node import Node
from coordd.core.node.shown import Shown
from coordd.core.ready import Launch
from coordd.core.runs.knowledge import DRIVER, EXECUTORS
from coordd.core.trace import trace_id, traceparent
from coordd.errors import CoorddError, UnavailableError
from coordd.ports import Applications, Driven, DriverUi, SpanExporter
from coordd.services.applications.reconciling import Reconciling
from coordd.services.checks.startable import Ask, Question
from coordd.services.control.doctor import WARN, Check, check
from coordd.services.driver import Driver
from coordd.services.faststart.archives import Archives
from coordd.services.faststart.pool import Pool
from coordd.services.guarding.listener import GuardListener
from coordd.services.ledger import LedgerService
from coordd.services.logs.files import log_path
from coordd.services.observing import Outlets
from coordd.services.progress.service import ASK_S, Progress
from coordd.services.runners import Runners
from coordd.services.sinks.service import Sinks
from coordd.services.tracing import service as tracing
from coordd.services.tracing.spans import program_span
from coordd.services.triggering.calls import Calls

# The maximum size of an attempt's output; then the older half is dropped.
LOG_BYTES_MAX = 64 * 2**20

# Drivers get these certificates in their conf. A bundle of all authorities of the system does not belong there.
AUTHORITY_BYTES_MAX = 64 * 1024

BOOT_TRACKER = BOOT.replace("coordd.runner.__main__", "coordd.runner.cluster.tracker")
BOOT_CONNECT = BOOT.replace("coordd.runner.__main__", "coordd.runner.connect.program")


def make_exporter(config: Config, environ: Mapping[str, str] = os.environ) -> SpanExporter | None:
    """What sends traces, if they are configured and the `otel` extra is there."""
    wanted = endpoint.endpoint(config.tracing.otlp, environ)
    if not wanted or endpoint.problem(config.tracing.otlp, environ):
        return None
    from coordd.adapters.tracing.otlp import OtlpExporter  # it loads OpenTelemetry

    try:
        return OtlpExporter(wanted, cluster=config.cluster.name, node=config.node.name, version=__version__)
    except Exception as exc:  # OpenTelemetry reads more of its environment than we do; jobs do not depend on traces
        tracing.log.warning(
            "tracing.off", reason=f"OpenTelemetry does not start with this environment (OTEL_…): {exc!r:.300}"
        )
        return None


def make_reconciling(driver: Driver, ledger: LedgerService, builder: LaunchBuilder) -> Reconciling:
    """What looks up runs whose drivers are on a cluster."""
    cluster = builder.config.cluster.name
    return Reconciling(
        driver, ledger, builder.applications, cluster=cluster, settle_s=lambda: builder.config.spark.settle
    )


def make_guard(config: Config, ledger: LedgerService, connections: Connections) -> GuardListener | None:
    """The listener for drivers on other machines, if [guard] says so."""
    if not config.guard.listen:
        return None

    def tls() -> Any:  # read for each connection, so that a new certificate needs no restart
        return secrets.tls_listener(connections.cluster.tls_cert, connections.cluster.tls_key)

    return GuardListener(config.guard.address, ledger, tls if config.guard.tls else None)


def make_calls(config: Config, driver: Driver, ledger: LedgerService, connections: Connections) -> Calls | None:
    """The listener for HTTP calls that start runs, if [triggers] says so."""
    if not config.triggers.listen:
        return None

    def tls() -> Any:
        return secrets.tls_listener(connections.cluster.tls_cert, connections.cluster.tls_key)

    def secret(path: str) -> str:
        return secrets.password(path, "")

    return Calls(config.triggers.address, driver, ledger, secret, tls if config.triggers.tls else None)


def make_outlets(
    config: Config, driver: Driver, ledger: LedgerService, runners: Runners, builder: LaunchBuilder
) -> Outlets:
    """The ways to receivers elsewhere: of logs and segments, of traces, and of copies of events; and to Spark's UIs."""
    state_dir = config.node.state_dir
    shutil.rmtree(os.path.join(state_dir, "sinks"), ignore_errors=True)  # what a killed daemon had on its way
    sinks = Sinks(driver, runners, SqliteCopies(os.path.join(state_dir, "copies.db")), open_store, state_dir)
    exporter = builder.exporter = make_exporter(config)
    if exporter is not None:
        logs.traced(lambda run: trace_id(config.cluster.name, run))
    progress = Progress(driver, ledger, runners, builder.driver_ui)
    mirror = make_mirror(config, builder._connections)
    archives = Archives(builder.archives_directory, builder.archives)
    guard = make_guard(config, ledger, builder._connections)
    calls = make_calls(config, driver, ledger, builder._connections)
    queues = MessageQueues(lambda: builder._connections.cluster)
    shutil.rmtree(builder.prepared_directory, ignore_errors=True)  # servers of a killed daemon have ended with it
    builder.pool.stopped = lambda: takes_no_runs(driver.node)
    builder.pool.held = lambda name: driver.node.drains.of_job(name) is not None
    reconciling = make_reconciling(driver, ledger, builder)
    return Outlets(
        sinks,
        exporter,
        mirror,
        progress,
        reconciling,
        archives,
        builder.pool,
        look_at_files,
        queues,
        make_passing(config, ledger),
        guard,
        calls,
    )


def _in_unit(unit: dict[str, Any] | None, program: ProgramSpec) -> dict[str, Any]:
    """The part of a runner's spec that is about its unit. Its secrets are in no file of the daemon's, which another
    user could not read.
    """
    return {} if unit is None else {"unit": unit, "unit_secrets": program.secrets, "cgroup": ""}


def takes_no_runs(node: Node) -> bool:
    """True while people have stopped this node, or all jobs."""
    return node.drains.pause is not None or node.drains.of_node(node.hostname) is not None


def python_program(boot: str) -> list[str]:
    """A program of ours: a bare Python, without the site's modules and without what the environment says to Python."""
    return [sys.executable, "-I", "-S", "-E", "-c", boot]


def connect_argv(program: ProgramSpec, submit: list[str]) -> list[str]:
    """What starts a server of Spark Connect, and then its client. ``submit``: the server's argv."""
    return [*python_program(BOOT_CONNECT), json.dumps({"client": program.client}), "--", *submit]


def _kind(job: Job) -> object:
    """Jobs of one kind can be started on the same machines, but for the files that they name."""
    launch, env = job.launch, tuple(sorted(job.launch.env.items()))
    if isinstance(launch, Command):
        return launch.argv[0], env, job.run_as
    named = any(key in launch.conf for key in identity.KEYTABS)
    proxied = bool(launch.proxy_user)
    client = (launch.connect, launch.pipeline)  # these need more of this machine
    identified = (launch.keytab, launch.principal, named, proxied, job.run_as)
    return env, launch.properties_file, launch.master, launch.deploy_mode, *identified, *client


def _differs(launch: SparkSubmit) -> str:
    """The first text that says where applications are looked up and differs from run to run; "" if there is none."""
    texts = {"master": launch.master, **{f"env.{name}": launch.env.get(name, "") for name in LOOKED_UP_WITH}}
    texts |= {f"conf.{key}": text for key, text in launch.conf.items() if key.startswith(LOOKED_UP_BY)}
    return next((f"spark.{key}" for key, text in texts.items() if placeholders(text)), "")


def _with_secrets_there(program: ProgramSpec) -> list[str]:
    return [SECRETS_PATH if program.secrets_path and word == program.secrets_path else word for word in program.argv]


class LaunchBuilder:
    """Makes the runner specs of this node."""

    def __init__(
        self, config: Config, node: Shown, directory: Callable[[str, int, int], str], connections: Connections
    ) -> None:
        self.config = config
        self._connections = connections
        self._node = node
        self._directory = directory
        self.log_dir = os.path.join(config.node.state_dir, "logs")
        self.exporter: SpanExporter | None = None  # if traces are sent
        self.pool = Pool(self._of_this_node, self.prepare, lambda: self.config.spark.prepared)
        self.archives_directory = os.path.join(config.node.state_dir, archive.DIRECTORY)

    def spec(self, launch: Launch) -> dict[str, Any]:
        """The spec for a runner.

        Raises UnavailableError (something is missing on this node) or RefusedError (arguments do not fit).
        """
        job = self._node.definition(launch.job, launch.digest)
        if job is None:
            now = self._node.jobs.get(launch.job)
            raise UnavailableError(
                f"the definition of {launch.job} was {'changed' if now else 'removed'} after the attempt was granted:"
                f" expected digest {launch.digest or '(none)'}, found {now.digest if now else 'no such job'}; the"
                " attempt is given back"
            )
        cluster = self.config.cluster
        unit = Units(self.config.node.units).ask(job, launch.run, launch.attempt, launch.token)
        program = self._program(job, launch, unpacked(launch.args), write=unit is None)
        return {
            **_in_unit(unit, program),
            **self._connect(job, program, in_unit=unit is not None),
            "run": launch.run,
            "job": launch.job,
            "attempt": launch.attempt,
            "token": launch.token,
            "nonce": launch.nonce,
            "node": self._node.full_hostname,
            "fire_at": launch.fire_at,
            "due": launch.due,
            "due_at": launch.due_at,
            "args": launch.args,
            "waits": job.waits,
            "deadline": launch.deadline,
            "lease_s": launch.lease_s,
            "renew_interval_s": cluster.renew_interval,
            "ledger_timeout_s": cluster.ledger_timeout,
            "kill_grace_s": cluster.kill_grace,
            "on_lost": job.on_lost,
            "timeout_s": job.timeout_s,
            "never_on_codes": job.retry.never_on_codes,
            "never_on_patterns": job.retry.never_on_patterns,
            "breaker_patterns": job.breaker.patterns if job.breaker is not None else (),
            "ledger": self._connections.ledger_url,
            "ledger_options": self._connections.ledger_options(),
            "digest": launch.digest,
            "policy": launch.policy,
            "scheduled": launch.run.startswith(f"{job.name}@"),
            "elsewhere": self._elsewhere(job),
            "tracked": self._is_tracked(job),
            "argv": self._argv(
                job, launch.run, program, program.argv if unit is None else _with_secrets_there(program)
            ),
            "env": program.env,
            "cwd": program.cwd,
            "directory": self._directory(launch.run, launch.attempt, launch.token),
            "log_path": log_path(self.log_dir, launch.run, launch.attempt),
            "log_bytes_max": LOG_BYTES_MAX,
        }

    def _connect(self, job: Job, program: ProgramSpec, *, in_unit: bool) -> dict[str, Any]:
        """The part of a runner's spec that is about a server of Spark Connect: one that was prepared, or its own."""
        if not program.client:
            return {}
        return (self.pool.take(job) if not in_unit else {}) or {"submits": True}

    @property
    def prepared_directory(self) -> str:
        """The files of prepared servers."""
        return os.path.join(self.config.node.runtime_dir, DIRECTORY)

    def prepare(self, job: Job) -> Prepared:
        """Start a server for a run to come. Blocking. Raises UnavailableError."""
        assert isinstance(job.launch, SparkSubmit)
        directory = new_directory(self.prepared_directory)
        program = build(job, job.launch, self._defaults(), AttemptInfo("", 0, 0, "", "", 0.0, directory=directory))
        python = program.client[0]
        return Prepared(directory, program.argv, program.env, python, program.secrets, program.secrets_path)

    def _elsewhere(self, job: Job) -> str:
        """What a run of this job has on other machines: one of the words of core/runs/knowledge.py."""
        launch = job.launch
        if not isinstance(launch, SparkSubmit):
            return ""
        if launch.deploy_mode == "cluster":
            return "" if self._is_tracked(job) else DRIVER  # the ledger holds it, and a look-up follows
        return "" if self._master(launch).startswith("local") else EXECUTORS

    def _master(self, launch: SparkSubmit) -> str:
        return launch.master or self.config.spark.master

    def _is_tracked(self, job: Job) -> bool:
        return isinstance(job.launch, SparkSubmit) and job.drives_elsewhere and has_lookup(self._master(job.launch))

    def applications(self, job: Job, row: Row | None = None) -> Applications | None:
        """The way to the applications of a run, or (without a row) of all runs of a job; None if its cluster manager
        shows none by run. Blocking.

        Raises CoorddError.
        """
        if not self._is_tracked(job):
            return None
        assert isinstance(job.launch, SparkSubmit)
        if row is None and (differs := _differs(job.launch)):
            raise UnavailableError(
                f"{job.name}: its applications cannot be looked up without a run: {differs} has placeholders"
            )
        of = AttemptInfo(job.name, 0, 0, "", "", 0.0)
        if row is not None:
            of = AttemptInfo(row.run, int(row.attempt), int(row.token), "", host_of(row.node), row.fire_at)
        return self._manager(job, of, row.args if row is not None else "")

    def driver_ui(self, driven: Driven, launch: Launch, job: Job) -> DriverUi | None:
        """The way to the driver of an attempt of this node; None: it is on a cluster that leads to no driver."""
        assert isinstance(job.launch, SparkSubmit)
        if not (self._is_tracked(job) or self._master(job.launch) == YARN):
            return None if job.drives_elsewhere else SparkUi(driven)
        of = AttemptInfo(launch.run, launch.attempt, launch.token, "", driven.host, launch.fire_at)
        return FarUi(driven, partial(self._manager, job, of, launch.args, ASK_S))

    def _manager(self, job: Job, of: AttemptInfo, args: str, answer_s: float = ANSWER_S) -> Applications:
        """The cluster manager, by the settings that an attempt's spark-submit gets. Raises CoorddError."""
        assert isinstance(job.launch, SparkSubmit)
        launch = fill_launch(job.launch, self._values(job, of, unpacked(args) if args else {}))
        assert isinstance(launch, SparkSubmit)
        program = build(job, launch, self._defaults(), of)
        conf = properties.parse(program.secrets)
        spark = self.config.spark
        return open_manager(
            self._master(launch),
            conf,
            program.env,
            answer_s=answer_s,
            kept_s=spark.retention,
            yarn_command=spark.yarn_command,
        )

    def _values(self, job: Job, of: AttemptInfo, args: Mapping[str, str]) -> dict[str, str]:
        """What fills the placeholders of an attempt."""
        return {**job.params, **args} | built_in(
            run=of.run,
            job=job.name,
            fire_at=of.fire_at,
            timezone=job.timezone,
            attempt=of.attempt,
            token=of.token,
            node=of.node,
        )

    def _argv(self, job: Job, run: str, program: ProgramSpec, submit: list[str]) -> list[str]:
        """The program: spark-submit itself, the tracker that calls it, or what starts a server and its client."""
        if program.client:
            return connect_argv(program, submit)
        if not self._is_tracked(job):
            return submit
        options = {
            "mark": run_mark(self.config.cluster.name, run),
            "master": submit[submit.index("--master") + 1],
            "settle_s": self.config.spark.settle,
            "submits": job.retry.submits,
            "yarn_command": self.config.spark.yarn_command,
        }
        return [*python_program(BOOT_TRACKER), json.dumps(options), "--", *submit]

    def argv(self, job: Job, args: dict[str, str]) -> list[str]:
        """The command, for `run trigger --dry-run`."""
        launch = Launch(f"{job.name}#dry-run", job.name, AttemptNumber(0), Token(0), "", 0.0, "{}", 0.0, job.lease_s)
        program = self._program(job, launch, args, write=False)
        return redacted(list(program.client) or program.argv)

    def _program(self, job: Job, launch: Launch, args: dict[str, str], *, write: bool = True) -> ProgramSpec:
        directory = self._directory(launch.run, launch.attempt, launch.token)
        attempt_info = AttemptInfo(
            launch.run,
            launch.attempt,
            launch.token,
            launch.nonce,
            self.config.node.name,
            launch.fire_at,
            self.config.control.socket,
            directory,
            self._traceparent(launch),
            self._parent(job, launch),
            self.config.cluster.name,
            self._guard(job),
        )
        filled = fill_launch(job.launch, self._values(job, attempt_info, args))
        program = build(job, filled, self._defaults(), attempt_info)
        if write and (why := self._no_identity(job, filled, program)):
            raise UnavailableError(why)
        if program.secrets_path and write:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            write_atomic(program.secrets_path, program.secrets.encode())
        return program

    def _traceparent(self, launch: Launch) -> str:
        """The span that the program's own spans belong to; "" without traces."""
        if self.exporter is None:
            return ""
        trace = trace_id(self.config.cluster.name, launch.run)
        return traceparent(trace, program_span(trace, launch.attempt), sampled=self.exporter.sampled(trace))

    def _parent(self, job: Job, launch: Launch) -> dict[str, str]:
        """This run as the parent of what a Spark application tells; {} if nobody wants it."""
        wanted = job.launch.lineage if isinstance(job.launch, SparkSubmit) else False
        if not (self.config.lineage.spark if wanted is None else wanted):
            return {}
        return parent_properties(self.config.lineage_namespace, launch.run)

    def _guard(self, job: Job) -> dict[str, str]:
        """What a driver on a cluster is told of the listeners; {} if there are none. Raises UnavailableError."""
        guard, authority = self.config.guard, self.config.cluster.tls_ca
        told = guard.told(self.config.node.name)
        if not told or not isinstance(job.launch, SparkSubmit) or not self._is_tracked(job):
            return {}
        if self._master(job.launch).startswith(STANDALONE):
            return {}  # a Standalone master runs no Python in deploy mode cluster, and shows conf to everybody
        conf = {"spark.coordd.guard": told}
        if guard.tls and authority:
            try:
                with open(authority, encoding="ascii") as file:
                    conf["spark.coordd.guard.authority"] = file.read(AUTHORITY_BYTES_MAX + 1)
            except (OSError, UnicodeDecodeError) as exc:
                raise UnavailableError(f"[cluster] tls_ca: {authority}: {exc}") from exc
            if len(conf["spark.coordd.guard.authority"]) > AUTHORITY_BYTES_MAX:
                raise UnavailableError(
                    f"[guard] tls: drivers are told the certificates in [cluster] tls_ca, and {authority} has more than"
                    f" {AUTHORITY_BYTES_MAX} bytes: name a file with the authority of the listeners alone"
                )
        return conf

    def _defaults(self) -> SparkDefaults:
        return SparkDefaults.of(self.config.spark)._replace(archives=self.archives_directory)

    def asking(self) -> Ask:
        """For one look: what to ask about a job, so that it is known whether this node can start it. spark-submit or
        Java may be missing, a program or a file may not exist.
        """
        units, mounts = Units(self.config.node.units), mount_points()
        said: dict[object, str] = {}  # most jobs are alike: each kind is looked at once
        programs: dict[object, ProgramSpec] = {}

        def once(what: object, look: Callable[[], str]) -> str:
            if what not in said:
                said[what] = look()
            return said[what]

        def ask(job: Job) -> Iterator[Question]:
            launch, kind = job.launch, _kind(job)
            yield Question("units", "whether it may have a unit", partial(units.problem, job))
            for key, path in named_files(job):
                yield Question(place_of(path, mounts), f"{key} {path}", partial(absent, job, key, path))
            if isinstance(launch, Command):
                about = f"the PATH of {launch.argv[0]}"
                look = partial(command_problem, launch, job.run_as, self._defaults())
                yield Question(kind, about, partial(once, kind, look))
                return
            about = "spark-submit, Java, or a file that they read"
            yield Question(kind, about, partial(once, kind, lambda: self._unbuilt(job, kind, programs)))
            place: object = ("ticket", kind)
            about = "its Kerberos ticket"
            if launch.keytab:
                place, about = place_of(launch.keytab, mounts), f"keytab {launch.keytab}"
            identify = partial(once, ("identity", kind), lambda: self._no_identity(job, launch, programs[kind]))
            yield Question(place, about, identify)

        return ask

    def refused(self) -> dict[str, str]:
        """Why this node may not run some of its jobs in a unit: root forbids it, or there are no units. Not of jobs
        whose tags leave them to other nodes.
        """
        units = Units(self.config.node.units)
        return {name: problem for name, job in self._of_this_node().items() if (problem := units.problem(job))}

    def _of_this_node(self) -> dict[str, Job]:
        """The jobs that their tags do not leave to other nodes."""
        tags = set(self.config.node.tags)
        return {name: job for name, job in self._node.jobs.items() if set(job.tags) <= tags}

    def _unbuilt(self, job: Job, kind: object, programs: dict[object, ProgramSpec]) -> str:
        """Why there is no command for jobs of this kind; "" if there is, and then ``programs`` has it."""
        try:
            programs[kind] = build_sample(job, self._defaults())
        except CoorddError as exc:
            return str(exc)
        return ""

    def _no_identity(self, job: Job, launch: SparkSubmit | Command, program: ProgramSpec) -> str:
        if not isinstance(launch, SparkSubmit) or (self.config.spark.properties_file and not launch.keytab):
            return ""  # what a properties file says about keytabs is not read
        master = launch.master or self.config.spark.master
        return identity.problem(launch, master, program.env, job.run_as, time.time())

    def archives(self) -> list[archive.Archive]:
        """The class archives that jobs of this node can use; they may not exist. Blocking. Raises UnavailableError."""
        found: dict[str, archive.Archive] = {}
        for job in self._of_this_node().values():
            launch = job.launch
            if not isinstance(launch, SparkSubmit) or not launch.fast_start or job.run_as:
                continue
            try:
                program = build_sample(job, self._defaults())
                one = archive.archive_of(self.archives_directory, program.argv[0], find_java(program.env), program.env)
            except CoorddError:
                continue  # ``asking`` has it
            found.setdefault(one.path, one)
        if found:
            archive.make_directory(self.archives_directory)
        return list(found.values())

    def remarks(self, besides: Collection[str]) -> list[Check]:
        """For `doctor`: the weak points of the identities of Spark jobs, and settings of the site that do not count,
        besides jobs that cannot be started.
        """
        found = []
        for name, job in self._node.jobs.items():
            if name in besides or not isinstance(job.launch, SparkSubmit):
                continue
            try:
                program = build_sample(job, self._defaults())
            except CoorddError:
                continue  # ``asking`` has it
            said = identity.remarks(job.launch, program.env, job.run_as, time.time())
            said += remarks(job.launch, self._defaults(), program)
            found += [check(f"job {name}", WARN, text, advice) for text, advice in said]
        return found
