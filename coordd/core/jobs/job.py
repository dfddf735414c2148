"""The definition of a job, frozen, and the identity of its runs."""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import UTC, datetime
from typing import Literal

import msgspec

from coordd.core.breaker import Loud
from coordd.core.checks.check import Check, Use
from coordd.core.groups.expand import Expand, group_of
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.words import INSTANT_MAX, QUEUE_MAX, Policy

# The namespace of run uuids; a run's uuid is the same on every node.
RUN_NAMESPACE = uuid.UUID("6f0cbb0e-4ac5-5d5c-9a57-0d6a6cf9a7f1")


# Valid ids that people and programs may give to a triggered run.
IDENT = re.compile(r"[A-Za-z0-9._:+-]{1,128}", re.ASCII)


# The names of hooks, which are jobs that no file has, begin so; no file's name has a "~".
HOOK = "hook~"


class Blackout(msgspec.Struct, frozen=True):
    """A blackout, without fire times: ``start`` (Unix seconds) to ``end``, or a cron line and the duration of each."""

    start: float = 0.0
    end: float = 0.0
    cron: str = ""
    duration_s: float = 0.0


class Schedule(msgspec.Struct, frozen=True):
    """The fire times of a job. ``kind`` decides which field counts; instants are Unix seconds."""

    kind: Literal["cron", "every", "at"]
    cron: str = ""
    every_s: float = 0.0
    at: float = 0.0
    timezone: str = "UTC"
    start: float = 0.0
    end: float = float("inf")
    offset_s: float = 0.0  # the job's stable jitter
    blackout: tuple[Blackout, ...] = ()


class Retry(msgspec.Struct, frozen=True):
    """Retries after failures (``attempts``, in total) and after losses (``relaunches``), counted separately.

    ``submits``: how often an attempt whose driver is on a cluster may call spark-submit until something is submitted.
    ``jitter``: by which part of itself, 0 to 1, the delay after a failure may grow.
    """

    attempts: int = 1
    relaunches: int = 5
    delay_s: float = 30.0
    backoff: Literal["fixed", "linear", "exponential"] = "fixed"
    never_on_codes: tuple[int, ...] = ()
    never_on_patterns: tuple[str, ...] = ()
    jitter: float = 0.0
    submits: int = 3


class Breaker(msgspec.Struct, frozen=True):
    """After some runs that ended so, the job's runs are stopped for a while (core/ledger/breaker says how).

    ``groups``: how many runs in a row, and the words for how they ended; ``patterns``: what ``matched`` means of their
    output; ``loud``: when a trip is logged as an error.
    """

    groups: tuple[tuple[int, tuple[str, ...]], ...] = ((3, ("failure", "lost", "timeout")),)
    patterns: tuple[str, ...] = ()
    window_s: float = 0.0
    open_for_s: float = 900.0
    open_for_max_s: float = 86400.0
    growth: Literal["fixed", "linear", "exponential"] = "fixed"
    when_open: Literal["prevent", "fail"] = "prevent"
    enforce: bool = True
    loud: Loud = Loud()


class SparkSubmit(msgspec.Struct, frozen=True):
    """The arguments of spark-submit; values still contain their {placeholders}."""

    application: str = ""  # or ``pipeline``: the spec of a declarative pipeline
    args: tuple[str, ...] = ()
    master: str = ""
    deploy_mode: str = "client"
    conf: dict[str, str] = {}
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    name: str = ""
    keytab: str = ""
    principal: str = ""
    proxy_user: str = ""
    env: dict[str, str] = {}
    properties_file: str = ""
    class_name: str = ""
    lineage: bool | None = None  # told of its parent in OpenLineage's terms; None: as the configuration says
    pipeline: str = ""
    connect: str = ""  # "pool": the application is a client of Spark Connect, with a server of its own
    fast_start: bool = False  # fewer seconds to the first task, for a slower driver later


class Command(msgspec.Struct, frozen=True):
    """Any program; values still contain their {placeholders}."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str = ""


class Concurrency(msgspec.Struct, frozen=True):
    """At most ``max`` runs of the job at a time; with ``per`` (a template over its parameters), of each filled text;
    with ``by`` as many as that strategy says at present, from ``min`` to ``max``.
    """

    max: int
    per: str = ""
    min: int = 0
    by: str = ""


class Rate(msgspec.Struct, frozen=True):
    """At most ``count`` starts in any ``period_s`` seconds."""

    count: int
    period_s: int


class Rates(msgspec.Struct, frozen=True):
    """The rates of a job: in the whole cluster, and on each node."""

    cluster: Rate | None = None
    per_node: Rate | None = None


class Limits(msgspec.Struct, frozen=True):
    """What a run may use, by the kernel's count for its systemd unit: bytes of memory, a weight from 1 to 10,000 for
    the processors (100 is usual), and processes with threads. 0: no limit of the job's own.
    """

    memory: int = 0
    cpu_weight: int = 0
    tasks: int = 0


class After(msgspec.Struct, frozen=True):
    """The parents of a job (core/jobs/after.py): which, whether ``all`` or ``any`` of them, and how they must end.

    ``period_s``: parents' fire times are floored to it (0.0: they are one and the same). ``within_s``: how long after
    the period's end the parents are awaited.
    """

    jobs: tuple[str, ...]
    needs: Literal["all", "any"] = "all"
    on: Literal["success", "failure", "done"] = "success"
    period_s: float = 0.0
    within_s: float = 86400.0


class Dedupe(msgspec.Struct, frozen=True):
    """Triggers with the same ``key``, a template over the params, are the same run, within one period of ``period_s``
    (0.0: as long as the ledger keeps the run). ``then``: whether a repeated trigger is told the run, or is refused.
    """

    key: str
    period_s: float = 0.0
    then: Literal["same", "refuse"] = "same"


class Sink(msgspec.Struct, frozen=True):
    """Where the ends of a job's runs are sent: an address, or the name of a section of coordd.toml. ``args``: with the
    arguments of the run.
    """

    to: str
    on: Literal["success", "failure", "done"] = "done"
    args: bool = False

    @property
    def named(self) -> bool:
        """True if ``to`` is a name."""
        return "://" not in self.to


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One validated job file. Durations in seconds."""

    name: str
    digest: str
    launch: SparkSubmit | Command
    description: str = ""
    owner: str = ""
    enabled: bool = True
    schedule: Schedule | None = None
    held: Schedule | None = None  # the schedule of a job that is not enabled; it launches nothing
    schedule_text: str = ""
    timezone: str = "UTC"  # of {fire_time} and {date}, even without a schedule
    misfire: Literal["skip", "once", "all"] = "once"
    start_within_s: float = 3600.0
    expect_within_s: float = 0.0
    overlap: Literal["forbid", "allow", "replace", "queue"] = "forbid"
    on_lost: Literal["relaunch", "hold"] = "relaunch"
    placement: Literal["first", "spread"] = "first"
    tags: tuple[str, ...] = ()
    priority: int = 0
    pool: str = ""
    pool_size: int = 0  # as this node's [pools] say; no part of the definition
    concurrency: Concurrency | None = None
    rate: Rates | None = None
    queue_max: int = QUEUE_MAX
    queue_keep: Literal["first", "last"] = "first"
    timeout_s: float = 0.0
    lease_s: float = 60.0
    params: dict[str, str] = {}
    retry: Retry = Retry()
    breaker: Breaker | None = None
    after: After | None = None
    dedupe: Dedupe | None = None
    expand: Expand | None = None
    run_as: str = ""  # "": the daemon's user
    limits: Limits = Limits()
    triggers: tuple[Trigger, ...] = ()
    checks: tuple[Check, ...] = ()
    uses: tuple[Use, ...] = ()  # checks of coordd.toml
    sinks: tuple[Sink, ...] = ()

    @property
    def offset_s(self) -> float:
        """The job's jitter: how much later than its nominal time a scheduled run is due."""
        return self.schedule.offset_s if self.schedule is not None else 0.0

    @property
    def released(self) -> Job:
        """The same job as it is when it is not held: what it would do."""
        if self.enabled:
            return self
        return msgspec.structs.replace(self, enabled=True, schedule=self.schedule or self.held, held=None)

    @property
    def schedule_digest(self) -> str:
        """A digest of the schedule's part, independent of the version of the time zone data."""
        schedule = self.schedule
        if self.follows is not None:
            text = msgspec.json.encode([self.follows, schedule, self.misfire], order="deterministic")
            return hashlib.sha256(text).hexdigest()[:16]
        if schedule is None:
            return ""
        usual = Schedule(kind=schedule.kind)
        told = {
            name: msgspec.to_builtins(getattr(schedule, name))
            for name in Schedule.__struct_fields__
            if getattr(schedule, name) != getattr(usual, name)
        }
        text = msgspec.json.encode([schedule.kind, told, self.misfire], order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]

    @property
    def follows(self) -> After | None:
        """Its parents, if their ends open its runs; None for a job that is not enabled."""
        return self.after if self.enabled else None

    @property
    def opens(self) -> bool:
        """True if its runs are opened without a person: by a schedule, or by the ends of its parents."""
        return self.schedule is not None or self.follows is not None

    @property
    def waits(self) -> bool:
        """True for a driver that only waits (cluster mode) and for a hook, False for one that computes on this node."""
        if self.name.startswith(HOOK):
            return True
        return self.drives_elsewhere

    @property
    def drives_elsewhere(self) -> bool:
        """True if its driver runs on the cluster, and outlives what runs here."""
        return isinstance(self.launch, SparkSubmit) and self.launch.deploy_mode == "cluster"

    def policy(self) -> Policy:
        """The policy that the ledger needs to know; a claim adds the limits (core/jobs/limits.py).

        The ledger holds every lost attempt whose driver runs on the cluster, whatever the job says: only a look-up on
        the cluster can tell whether it may be tried again.
        """
        return Policy(
            on_lost="hold" if self.drives_elsewhere else self.on_lost,
            overlap=self.overlap,
            attempts=self.retry.attempts,
            relaunches=self.retry.relaunches,
            delay_s=self.retry.delay_s,
            backoff=self.retry.backoff,
            start_within_s=self.start_within_s,
        )


def scheduled_run(job: str, fire_at: float) -> str:
    """The id of a scheduled run: every node computes the same id for the same fire time."""
    return f"{job}@{iso(fire_at)}"


def fire_time(job: Job, due: float, identity_from: float) -> float:
    """The fire time in the id of a run that is due then: its nominal time, or, up to ``identity_from``, its due time.

    The nominal time does not contain the jitter: a job with a new jitter must not run a second time.
    """
    return due - job.offset_s if due > identity_from else due


def due_time(job: Job, fire_at: float, identity_from: float) -> float:
    """When a run with that fire time in its id is due: the inverse of ``fire_time``.

    Right after ``identity_from`` an id may mean two instants: then the later one counts.
    """
    due = fire_at + job.offset_s
    return due if due > identity_from else fire_at


def is_named(run: str, job: str, fire_at: float, *, scheduled: bool) -> bool:
    """True if the id belongs to this fire time, or to a triggered run of the job. It may come from a peer."""
    if scheduled:
        return 0.0 <= fire_at <= INSTANT_MAX and group_of(run) == scheduled_run(job, fire_at)
    name, separator, ident = group_of(run).partition("#")
    return bool(separator) and name == job and IDENT.fullmatch(ident) is not None


def triggered_run(job: str, ident: str) -> str:
    """The id of a triggered run."""
    return f"{job}#{ident}"


def job_of(run: str) -> str:
    """The job in a run's id."""
    return run.split("#", 1)[0].split("@", 1)[0]


def iso(instant: float) -> str:
    """Unix seconds as ISO 8601 in UTC, with a fraction only if there is one."""
    text = datetime.fromtimestamp(instant, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "").replace(".000000", "") + "Z"


def run_uuid(run: str) -> str:
    """The task id of a run, the same on every node."""
    return str(uuid.uuid5(RUN_NAMESPACE, run))


def run_tag(run: str) -> str:
    """A name for a run's files: short, and the same on each node."""
    return "coordd-" + hashlib.sha256(run.encode()).hexdigest()[:20]


# The digest of every run of `coordd exec` begins with this. The digest of a job file never does.
EXEC_DIGEST = "exec-"


def pinned(digest: str, node: str) -> str:
    """The digest of a run that only one node may launch: any other node, of an older version too, takes it for another
    definition than its own.
    """
    return f"{digest}@{node}" if node else digest


def unpinned(digest: str) -> tuple[str, str]:
    """The digest of a run's definition, and the only node that may launch it ("": any)."""
    definition, _, node = digest.partition("@")
    return definition, node


def jobs_digest(jobs: dict[str, Job]) -> str:
    """A digest of the whole set of jobs, to compare nodes. Hooks are left out: an older version has none."""
    lines = "\n".join(f"{name} {jobs[name].digest}" for name in sorted(jobs) if not name.startswith(HOOK))
    if not lines:
        return ""
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
