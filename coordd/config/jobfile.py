"""Job files: each TOML file becomes a frozen Job, or a list of problems that disables only that job.

``on_lost = "hold"`` and ``retry.attempts`` above 1 are compatible: an attempt with a known exit code is retried; a lost
attempt waits for a person, whatever ``retry`` says.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any

import msgspec

from coordd.config import jobkeys, ownership, values
from coordd.config.checks.reading import read_of_job
from coordd.config.following import expanding, relations
from coordd.config.hooks.sinks import read_job_sinks
from coordd.config.sections import FILES, Config
from coordd.config.settings import read_config, timing_conflict
from coordd.config.tomlfile import Places, Problem, read_toml
from coordd.config.triggers import reading as triggers
from coordd.core.breaker import Loud
from coordd.core.jobs.after import lookback_s
from coordd.core.jobs.arguments import check_launch, nearest
from coordd.core.jobs.job import After, Blackout, Breaker, Command, Job, Retry, Schedule, SparkSubmit
from coordd.core.jobs.schedule import jitter_offset, next_fire, parse_cron, parse_instant, parse_schedule
from coordd.core.jobs.secrecy import exposed
from coordd.core.ledger.breaker.text import COUNTED, MATCHED
from coordd.core.names import NAME, NAME_RULE

# One node reads at most this many job files; a directory with more is a mistake.
JOBS_MAX = 10_000

# The hint for a key of the job that stands under [command.env].
ABOVE = "If the job's is meant, put it above the first [table]"

# The warning about a secret on a command line, and the maximum number of such warnings per file.
EXPOSED = (
    "Every user of the host can read a program's arguments, and this file is copied to every node: put it into the"
    " file that [spark] env_file of coordd.toml names (the program reads it from its environment), of a Spark job into"
    " [spark].conf (which goes into a file of mode 0600), or into a file of its own, and give the path"
)
EXPOSED_MAX = 20

# Of a server of Spark Connect: each run has its own address and token.
CONNECT_CONF = (
    "spark.connect.grpc.binding.address",
    "spark.connect.grpc.binding.port",
    "spark.connect.authenticate.token",
    "spark.remote",
    "spark.api.mode",
)

# Spark's own settings for a keytab and its principal.
IDENTITY_CONF = ("spark.kerberos.keytab", "spark.kerberos.principal", "spark.yarn.keytab", "spark.yarn.principal")


class JobSet(msgspec.Struct, frozen=True):
    """A directory of job files, by job name. A job with warnings is in both dicts; "" is the directory itself."""

    jobs: dict[str, Job] = {}
    problems: dict[str, list[Problem]] = {}


def load_jobs(directory: str, config: Config) -> JobSet:
    """Read every ``*.toml`` file of a directory; never raises because of their content."""
    try:
        names = sorted([name for name in os.listdir(directory) if not name.startswith(".")])
    except FileNotFoundError:
        missing = Problem(directory, "", None, "there is no such directory, so there are no jobs", severity="warning")
        return JobSet(problems={"": [missing]})
    except OSError as exc:
        return JobSet(problems={"": [Problem(directory, "", None, f"it cannot be read: {exc.strerror or exc}")]})
    jobs: dict[str, Job] = {}
    problems: dict[str, list[Problem]] = {}
    files = [name for name in names if name.endswith(".toml")]
    if len(files) > JOBS_MAX:
        problems[""] = [Problem(directory, "", None, f"expected at most {JOBS_MAX} job files, found {len(files)}")]
    unread = [name for name in names if not name.endswith(".toml") and name.lower().endswith(".toml")]
    if unread:
        told = f"no job file, as its name does not end with .toml: {values.printable(', '.join(unread[:5]))}"
        problems.setdefault("", []).append(Problem(directory, "", None, told, severity="warning"))
    within = ownership.Directory(directory)
    for file in files[:JOBS_MAX]:
        name = values.printable(file.removesuffix(".toml"))
        job, wrong = load_job(os.path.join(directory, file), config, within)
        if job is not None:
            jobs[name] = job
        if wrong:
            problems[name] = wrong
    return related(JobSet(jobs, problems), directory)


def related(found: JobSet, source: str) -> JobSet:
    """The jobs without those that can never run beside the others."""
    jobs, problems = dict(found.jobs), dict(found.problems)
    wrongs = [("after", *wrong) for wrong in relations.problems(found.jobs)]
    for key, job, text, fatal in [*wrongs, *triggers.problems(found.jobs)]:
        place = values.printable(f"{source}/{job}.toml")
        told = Problem(place, key, None, text, severity="error" if fatal else "warning")
        problems[job] = [*problems.get(job, ()), told]
        if fatal:
            jobs.pop(job, None)
    return JobSet(jobs, problems)


def load_job(path: str, config: Config, within: ownership.Directory | None = None) -> tuple[Job | None, list[Problem]]:
    """Read one job file. Returns the job unless one of the problems is an error. ``within``: as in ``read_toml``."""
    content, table, problem = read_toml(path, "job", within)
    return (None, [problem]) if problem else made(path, content, table, config)


def made(path: str, content: str, table: Mapping[str, Any], config: Config) -> tuple[Job | None, list[Problem]]:
    """A job from its table. ``path`` names the job, and its source for messages; ``content``: the text, for lines."""
    reading = _Reading(path, content)
    job = reading.job(table, config)
    return (None if reading.failed() else job), reading.problems


def check(path: str | None, environ: Mapping[str, str]) -> list[Problem]:
    """All problems of a configuration, and then of its job files if the jobs come from files."""
    config, problems = read_config(path, environ)
    if config is None:
        return problems
    if config.jobs.backend != FILES:
        return []
    by_name = load_jobs(config.node.jobs_dir, config).problems
    return [problem for name in sorted(by_name) for problem in by_name[name]]


# ---- the whole file


class _Reading:
    """One job file, and the problems found in it."""

    def __init__(self, path: str, content: str) -> None:
        self.path = path
        self.places = Places(content)
        self.problems: list[Problem] = []

    def failed(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)

    def wrong(self, key: str, message: str, *, warning: bool = False) -> None:
        """Add a problem; ``key`` as people write it: lease, spark.conf."""
        section, _, last = key.rpartition(".")
        line = self.places.line_of(section, last) or self.places.line_of("", key.partition(".")[0])
        self.problems.append(
            Problem(values.printable(self.path), key, line, message, severity="warning" if warning else "error")
        )

    def table(
        self, table: Mapping[str, Any], readers: Mapping[str, values.Reader], section: str = ""
    ) -> dict[str, Any]:
        def report(key: str, message: str) -> None:
            above = f"; {key} belongs above [{section[:-1]}]" if key not in readers and key in jobkeys.TOP else ""
            self.wrong(section + key, message + above)

        return values.read_table(table, readers, report)

    def tried(self, key: str, read: Callable[[], Any], instead: Any) -> Any:
        try:
            return read()
        except ValueError as exc:
            self.wrong(key, str(exc))
            return instead

    def job(self, table: Mapping[str, Any], config: Config) -> Job | None:
        """The job; None, or a partial job, if there are problems."""
        name = os.path.basename(self.path).removesuffix(".toml")
        if not NAME.fullmatch(name):
            shown = values.printable(name)[:100]
            self.wrong("", f'a job is named after its file: expected {NAME_RULE}, found "{shown}"')
            return None
        said = self.table(table, jobkeys.TOP)
        expanding.settle(table, said, self.wrong)
        jobkeys.settle_params(table, said)
        launch = self.launch(table, said)
        schedule = self.schedule(name, said)
        fields = {key.field: said[name] for name, key in jobkeys.PLAIN.items() if name in said}
        enabled = fields.get("enabled", True)
        retry = self.retry(said.get("retry", {}))
        breaker = self.breaker(said["breaker"]) if "breaker" in said else None
        checks, uses = read_of_job(said.get("check", []), name, config.checks, partial(self.wrong, "check"))
        sinks = read_job_sinks(said.get("sink", []), config, partial(self.wrong, "sink"))
        self.relations(said, launch, schedule, config)
        self.parents(name, said, config)
        found = triggers.read_triggers(said.get("trigger", []), said, name, self.wrong, config)
        self.limits(said, config)
        if launch is None:
            return None
        computes = isinstance(launch, SparkSubmit) and launch.deploy_mode == "client"
        defaults = {
            "placement": "spread" if computes else "first",
            "lease_s": config.cluster.lease,
            "pool_size": config.pools.get(said.get("pool", ""), 0),
        }
        job = Job(
            name=name,
            digest="",
            launch=launch,
            schedule=schedule if enabled else None,
            held=None if enabled else schedule,
            schedule_text=said.get("schedule", ""),
            retry=retry,
            breaker=breaker,
            triggers=found,
            checks=checks,
            uses=uses,
            sinks=sinks,
            **{**defaults, **fields},
        )
        return msgspec.structs.replace(job, digest=digest(job, own_lease="lease" in said))

    def launch(self, table: Mapping[str, Any], said: Mapping[str, Any]) -> SparkSubmit | Command | None:
        sections = [section for section in ("spark", "command") if section in table]
        if len(sections) != 1:
            self.wrong("spark", f"expected either [spark] or [command], found {'both' if sections else 'neither'}")
            return None
        section = sections[0]
        if section not in said:
            return None  # not a table
        launch = self.spark(said["spark"]) if section == "spark" else self.command(said["command"])
        if not isinstance(said.get("params"), jobkeys.AnyParam):
            for key, message in check_launch(launch, said.get("params", {})):
                self.wrong(f"{section}.{key}", message)
        key, words = ("args", launch.args) if isinstance(launch, SparkSubmit) else ("argv", launch.argv)
        for place, what in islice(exposed(words), EXPOSED_MAX):
            self.wrong(f"{section}.{key}", f"item {place + 1} looks like {what}. {EXPOSED}", warning=True)
        for key in sorted(jobkeys.TOP.keys() & launch.env.keys()):  # TOML gives a key to the table above it
            self.wrong(f"{section}.env.{key}", f"a variable of the program, not the job's {key}. {ABOVE}", warning=True)
        return launch

    def spark(self, table: Mapping[str, Any]) -> SparkSubmit:
        said = self.table(table, jobkeys.SPARK, "spark.")
        programs = [key for key in ("application", "pipeline") if key in table]
        if not programs:
            self.wrong(
                "spark.application",
                "expected application (an absolute path or a URI) or pipeline (the path of a spec), found nothing",
            )
        elif len(programs) == 2:
            self.wrong("spark.pipeline", "expected either application or pipeline, found both: a run has one program")
        fields = {"class_name" if key == "class" else key: value for key, value in said.items()}
        return SparkSubmit(**fields)

    def command(self, table: Mapping[str, Any]) -> Command:
        said = self.table(table, jobkeys.COMMAND, "command.")
        if "argv" not in table:
            self.wrong("command.argv", "expected a program and its arguments, found nothing")
        return Command(**{"argv": (), **said})

    def retry(self, table: Mapping[str, Any]) -> Retry:
        said = self.table(table, jobkeys.RETRY, "retry.")
        for key, message in jobkeys.without_attempts(table, said):
            self.wrong(f"retry.{key}", message, warning=True)
        never_on = said.get("never_on", ())
        default = Retry()
        return Retry(
            attempts=said.get("attempts", default.attempts),
            relaunches=said.get("relaunches", default.relaunches),
            submits=said.get("submits", default.submits),
            delay_s=said.get("delay", default.delay_s),
            backoff=said.get("backoff", default.backoff),
            never_on_codes=tuple([item for item in never_on if isinstance(item, int)]),
            never_on_patterns=tuple([item for item in never_on if isinstance(item, str)]),
            jitter=said.get("jitter", default.jitter),
        )

    def breaker(self, table: Mapping[str, Any]) -> Breaker:
        said = self.table(table, jobkeys.BREAKER, "breaker.")
        on, default = said.get("on", COUNTED), Breaker()
        if isinstance(on, dict):
            groups = tuple([(count, (word,)) for word, count in on.items()])
            if "after" in said:
                self.wrong("breaker.after", "after has no effect beside a table under on", warning=True)
            patterns: tuple[str, ...] = ()
        else:
            patterns = tuple([item for item in on if isinstance(item, str) and item not in COUNTED])
            counted = [str(item) for item in on if item not in patterns]
            groups = ((said.get("after", 3), (*counted, *((MATCHED,) if patterns else ()))),)
        open_for = said.get("open_for", default.open_for_s)
        longest = said.get("open_for_max", max(default.open_for_max_s, open_for))
        if longest < open_for:
            self.wrong("breaker.open_for_max", "expected a duration of at least open_for")
        elif "open_for_max" in said and (useless := jobkeys.without_growth(table)):
            self.wrong("breaker.open_for_max", useless, warning=True)
        return Breaker(
            groups=groups,
            patterns=patterns,
            window_s=said.get("window", 0.0),
            open_for_s=open_for,
            open_for_max_s=longest,
            growth=said.get("growth", default.growth),
            when_open=said.get("when_open", default.when_open),
            enforce=said.get("enforce", default.enforce),
            loud=said.get("loud", default.loud),
        )

    def schedule(self, name: str, said: Mapping[str, Any]) -> Schedule | None:
        timezone = said.get("timezone", "UTC")
        start = self.instant("start", said.get("start"), timezone, 0.0)
        end = self.instant("end", said.get("end"), timezone, math.inf)
        if end <= start:
            self.wrong("end", "expected an instant after start")
        blackout = tuple([self.blackout(table, timezone) for table in said.get("blackout", ())])
        if "schedule" not in said:
            for key in ("start", "end", "jitter", "blackout", "misfire"):
                if key in said:
                    self.wrong(key, jobkeys.without_schedule(key, said), warning=True)
            return None
        if not float(said.get("jitter", 0.0)).is_integer():
            self.wrong("jitter", jobkeys.fraction("jitter", said["jitter"]), warning=True)
        schedule: Schedule | None = self.tried(
            "schedule",
            lambda: _parsed(
                said["schedule"], timezone, start, end, jitter_offset(name, said.get("jitter", 0.0)), blackout
            ),
            None,
        )
        if schedule is not None and not self.failed() and not _fires(schedule):
            self.wrong("schedule", f'"{said["schedule"]}" never fires between start and end, outside of blackout')
        return schedule

    def instant(self, key: str, value: Any, timezone: str, instead: float) -> float:
        if value is None:
            return instead
        at: float = self.tried(key, lambda: parse_instant(value, timezone), instead)
        return at

    def blackout(self, table: Mapping[str, Any], timezone: str) -> Blackout:
        said = self.table(table, jobkeys.BLACKOUT, "blackout.")
        if set(table) == {"from", "to"}:
            start = self.instant("blackout.from", said.get("from"), timezone, 0.0)
            end = self.instant("blackout.to", said.get("to"), timezone, math.inf)
            if end <= start:
                self.wrong("blackout.to", "expected an instant after from")
            return Blackout(start=start, end=end)
        if set(table) == {"cron", "duration"}:
            cron = self.tried("blackout.cron", lambda: parse_cron(said.get("cron", "")), "")
            return Blackout(cron=cron, duration_s=said.get("duration", 0.0))
        self.wrong("blackout", f"expected from and to, or cron and duration; found {', '.join(table) or 'nothing'}")
        return Blackout()

    def relations(
        self, said: Mapping[str, Any], launch: SparkSubmit | Command | None, schedule: Schedule | None, config: Config
    ) -> None:
        """Checks between keys."""
        if "lease" in said:
            timing = timing_conflict(said["lease"], config.cluster, "lease")
            if timing:
                self.wrong("lease", timing)
        if isinstance(launch, SparkSubmit) and launch.deploy_mode == "cluster":
            master = launch.master or config.spark.master
            guarded = bool(config.guard.listen)
            if fault := jobkeys.cluster_fault(said.get("on_lost", "relaunch"), launch, master, guarded=guarded):
                self.wrong(*fault)
        if isinstance(launch, SparkSubmit):
            self.identity(launch, config)
            self.allowed(launch, config.spark.conf_allow)
            self.start(launch)
            if launch.pipeline or launch.connect:
                self.connect(launch)
        for key in ("run_as", "limits"):
            if said.get(key) and config.node.units == "off":
                self.wrong(key, f'{key} needs a systemd unit for each run, and [node] units is "off"')
        for key, useless in (
            ("misfire", relations.too_late_for_all(said, schedule) or relations.all_at_once(said)),
            ("schedule", relations.too_long_a_step(schedule)),
            ("expect_within", relations.late_between(said, schedule)),
            *relations.odd_schemes(launch),
        ):
            if useless:
                self.wrong(key, useless, warning=True)

    def identity(self, launch: SparkSubmit, config: Config) -> None:
        """Checks of keytab, principal and proxy_user: spark-submit refuses some combinations, and ignores others."""
        in_conf = [key for key in IDENTITY_CONF if key in launch.conf]
        if launch.proxy_user and (launch.principal or launch.keytab or in_conf):
            also = f" ({in_conf[0]} in conf)" if in_conf and not (launch.principal or launch.keytab) else ""
            self.wrong(
                "spark.proxy_user",
                f"proxy_user does not go together with principal or keytab{also}: spark-submit refuses both at once."
                " Leave principal and keytab out, and give the daemon a ticket of the user that may impersonate",
            )
            return
        elsewhere = in_conf or launch.properties_file or config.spark.properties_file  # the other half may stand there
        if launch.keytab and not launch.principal and not elsewhere:
            self.wrong("spark.keytab", "a keytab alone is ignored by spark-submit: name its principal too")
        if launch.principal and not launch.keytab and not elsewhere:
            self.wrong(
                "spark.principal",
                "a principal alone is ignored by spark-submit: name its keytab too, or leave it out; then the ticket"
                " of the daemon's user (of run_as) is used",
            )

    def allowed(self, launch: SparkSubmit, patterns: tuple[str, ...]) -> None:
        """What the site lets job files set of Spark's conf; nothing in ``patterns``: all of it."""
        refused = [key for key in launch.conf if not any(fnmatchcase(key, pattern) for pattern in patterns)]
        listed = f"[spark] conf_allow of coordd.toml lets job files set {', '.join(patterns)}"
        if patterns and refused:
            self.wrong("spark.conf", f'"{refused[0]}" must not be set here: {listed}')
        if patterns and launch.properties_file:
            self.wrong("spark.properties_file", f"a job may not bring a properties file of its own: {listed}")

    def start(self, launch: SparkSubmit) -> None:
        """Checks of what makes a driver start sooner."""
        if launch.fast_start and launch.deploy_mode == "cluster":
            self.wrong(
                "spark.fast_start",
                'fast_start is for drivers on the node that launches them: with deploy_mode = "cluster" the driver'
                " starts on the cluster, where coordd has no class archive. Leave it out",
            )
        if launch.fast_start and "spark.driver.extraClassPath" in launch.conf:
            self.wrong(
                "spark.fast_start",
                "conf has spark.driver.extraClassPath, which comes before Spark's own jars: Java then refuses the class"
                " archive, and only the compiler is changed. Use jars = […] instead",
                warning=True,
            )

    def connect(self, launch: SparkSubmit) -> None:
        """Checks of clients of Spark Connect: pipelines, and applications with ``connect``."""
        key = "pipeline" if launch.pipeline else "connect"
        if launch.pipeline and launch.connect:
            self.wrong("spark.connect", "a pipeline has a server of Spark Connect anyway: leave connect out")
        if launch.deploy_mode == "cluster":
            self.wrong(
                f"spark.{key}", f'{key} needs deploy_mode = "client": its server of Spark Connect runs on the node'
            )
        if launch.class_name:
            self.wrong("spark.class", f"class has no place beside {key}: the program is a client in Python")
        if launch.connect and launch.application and not re.fullmatch(r"/.*\.py", launch.application):
            self.wrong(
                "spark.connect",
                f'connect needs a Python program on this machine, "/….py": found application "{launch.application}"',
            )
        if elsewhere := next((path for path in launch.py_files if not path.startswith("/")), ""):
            self.wrong(
                "spark.py_files",
                f'beside {key} they are for the imports of the client, on this machine: found "{elsewhere}", which it'
                " cannot import. Give the path of a copy on each node",
                warning=True,
            )
        for name in CONNECT_CONF:
            if name in launch.conf:
                self.wrong("spark.conf", f'"{name}" must not be set beside {key}: coordd sets it for each run')

    def parents(self, name: str, said: Mapping[str, Any], config: Config) -> None:
        """Checks of `after`; those that need all job files are in following/relations.py."""
        after: After | None = said.get("after")
        if after is None:
            return
        if "misfire" in said:
            self.wrong("misfire", "misfire has no effect beside after: each period has its run", warning=True)
        if name in after.jobs:
            self.wrong("after", f'the job waits for itself: "{name}"')
        kept_s = config.history.keep_s
        if lookback_s(after) >= kept_s:
            self.wrong(
                "after",
                f"within and period together must be shorter than {config.history.keep}, for which the ledger keeps"
                " runs ([history] keep of coordd.toml): the ends of parents would be forgotten while they are awaited",
            )

    def limits(self, said: Mapping[str, Any], config: Config) -> None:
        """Checks of pool, concurrency, rate and queue."""
        pool = said.get("pool", "")
        if pool and pool not in config.pools:
            self.wrong("pool", f'there is no pool "{pool}" in [pools] of coordd.toml; {nearest(pool, config.pools)}')
        for message in jobkeys.misused_dedupe(said, config.history.keep_s):
            self.wrong("dedupe", message)
        concurrency = said.get("concurrency")
        if concurrency is not None:
            unknown = list(jobkeys.undeclared(concurrency.per, said.get("params", {})))
            for message in unknown:
                self.wrong("concurrency", f"per: {message}")
            if "rate" in said:
                self.wrong("concurrency", "concurrency has no effect beside rate: the rate counts", warning=True)
            elif not unknown and (useless := relations.one_at_a_time(said, concurrency)):
                self.wrong("concurrency", useless, warning=True)
        for key in ("queue_max", "queue_keep"):
            if key in said and said.get("overlap", "forbid") != "queue":
                self.wrong(key, f'{key} has no effect without overlap = "queue"', warning=True)


# Many jobs have the same schedule.


@lru_cache(maxsize=1024)
def _parsed(
    text: str, timezone: str, start: float, end: float, offset_s: float, blackout: tuple[Blackout, ...]
) -> Schedule:
    return parse_schedule(text, timezone, start=start, end=end, offset_s=offset_s, blackout=blackout)


@lru_cache(maxsize=1024)
def _fires(schedule: Schedule) -> bool:
    return next_fire(schedule, schedule.start - 1) is not None


# ---- identity


def digest(job: Job, *, own_lease: bool) -> str:
    """One text of what is launched, when and under which policies. It is equal on all nodes with the same definition.

    Default values are left out, so that a version with more keys still agrees with this one. The description, the
    cluster's own lease, expect_within and how loud its breaker is are left out too: they change nothing about a run.
    The version of the time zone data is in it: with another version, the same schedule may mean another instant.
    """
    from tzdata import IANA_VERSION  # type: ignore[import-untyped]  # it comes without stubs

    defined = msgspec.structs.replace(
        job,
        digest="",
        description="",
        schedule_text="",
        lease_s=job.lease_s if own_lease else 0.0,
        expect_within_s=0.0,
        pool_size=0,
        breaker=job.breaker and msgspec.structs.replace(job.breaker, loud=Loud()),
    )
    canonical = msgspec.json.encode([_definition(defined), IANA_VERSION], order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:32]


@cache  # a directory of ten thousand files asks for each of them four times per file
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Each field, and its default."""
    return tuple(
        [
            (field.name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
            for field in msgspec.structs.fields(kind)
        ]
    )


def _definition(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        told: dict[str, Any] = {"type": type(value).__name__}
        for name, default in _fields(type(value)):
            item = getattr(value, name)
            if item != default:
                told[name] = _definition(item)
        return told
    if isinstance(value, tuple):
        return [_definition(item) for item in value]
    return value
