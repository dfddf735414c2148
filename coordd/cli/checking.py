"""`coordd check-config`: reports every problem in the files."""

from __future__ import annotations

import os
import time
from fnmatch import fnmatchcase
from typing import NamedTuple

from coordd.adapters import onhost
from coordd.adapters.backends import function
from coordd.adapters.kerberos import identity
from coordd.adapters.launch.units import Units, needs
from coordd.adapters.ledger.sqlite_ledger import path_of
from coordd.adapters.spark import SparkDefaults, build_sample, command_problem, remarks
from coordd.config import tables, values
from coordd.config.jobfile import JobSet, check, load_jobs
from coordd.config.safety import warnings
from coordd.config.sections import FILES, PYTHON, Config
from coordd.config.settings import read_config
from coordd.config.tomlfile import Problem
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import HOOK, Command, Job, SparkSubmit
from coordd.core.jobs.schedule import next_fire
from coordd.errors import RefusedError, UnavailableError
from coordd.plugins import CONFIG_BACKENDS

# Where the packaged service has its state, and its sockets.
PACKAGED = ("/var/lib/coordd", "/run/coordd")


class Found(NamedTuple):
    """The result of a check: lines for people, the kind of each error (config | job), how many jobs can run, and the
    plug-ins that packages bring, with their versions.
    """

    lines: list[str]
    errors: list[str]
    jobs: int
    plug_ins: tuple[str, ...] = ()


def look(file: str | None) -> Found:
    """Check as this user. Warns root of what the daemon's user could not do."""
    service = onhost.service_user()
    onhost.trust_service()
    found = _look(file)
    if os.geteuid() != 0 or service is None or service.pw_uid == 0:
        return found
    theirs = onhost.as_user(service, lambda: _look(file))
    more = [line for line in theirs.lines if line not in found.lines]
    told = [f"warning: root can, {service.pw_name} cannot: {line}" for line in more]
    if told:
        told.append(
            "warning: this was checked as root; to check as the daemon's user: "
            f"coordd check-config --as-service {file or ''}"
        )
    return found._replace(lines=found.lines + [line.rstrip() for line in told])


def look_as(user: str, file: str | None) -> Found:
    """Check as another user.

    Raises:
        RefusedError: there is no such user, or the caller is not root.
    """
    account = onhost.service_user(user)
    if account is None:
        raise RefusedError(
            f'there is no user "{user}" on this machine',
            kind="bad_config",
            hint="systemd-sysusers creates it from sysusers.d-coordd.conf; or name another: --as-service USER",
        )
    _look(file)  # everything is imported now: perhaps only root can read Python's files
    return onhost.as_user(account, lambda: _look(file))


def _look(file: str | None) -> Found:
    config, _ = read_config(file, os.environ)
    problems = [*(warnings(config) if config else []), *check(file, os.environ)]
    jobs = JobSet()
    if config is not None:
        jobs, more = _jobs(config)
        problems += [*_of_node(config), *_of_hooks(config, jobs), *more, *of_machine(jobs, config)]
    errors = [problem.kind for problem in problems if problem.severity == "error"]
    return Found([str(problem) for problem in problems], list(errors), len(jobs.jobs), values.installed())


def _jobs(config: Config) -> tuple[JobSet, list[Problem]]:
    """The jobs, and problems that ``check`` does not know. Published revisions are not read; a function is asked."""
    if config.jobs.backend == FILES:
        return load_jobs(config.node.jobs_dir, config), []
    if config.jobs.published:
        return JobSet(), []
    backend = config.jobs.backend
    target = config.jobs.call if backend == PYTHON else function.target_of(CONFIG_BACKENDS, backend)
    try:
        jobs = tables.read(function.ask(target, config.jobs.timeout), target, config)
    except UnavailableError as exc:
        return JobSet(), [Problem(config.path or "defaults", "jobs", None, str(exc), kind="config")]
    return jobs, [problem for name in sorted(jobs.problems) for problem in jobs.problems[name]]


def _of_node(config: Config) -> list[Problem]:
    """Directories that exist and cannot be used; and, as warnings, those that cannot be made."""
    told = []
    cluster, node = config.cluster, config.node
    file = config.path or "defaults"
    for key, path in (("node.state_dir", node.state_dir), ("node.runtime_dir", node.runtime_dir)):
        if os.path.isdir(path) and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            told.append(Problem(file, key, None, f"{path}: this user may not write it", kind="config"))
        elif impossible := _cannot_be_made(path):
            told.append(Problem(file, key, None, impossible, severity="warning", kind="config"))
    bus, ledger = cluster.bus.removeprefix("unix://"), cluster.ledger
    files = [("cluster.bus", bus)] if bus != cluster.bus else []
    files += [("cluster.ledger", path_of(ledger))] if ledger.startswith("sqlite:") else []
    for key, path in files:
        if impossible := _cannot_be_made(os.path.dirname(path)):
            told.append(Problem(file, key, None, impossible, severity="warning", kind="config"))
    return told


def _of_hooks(config: Config, jobs: JobSet) -> list[Problem]:
    """Warnings: programs of hooks that are not here, and jobs of sinks that no file has."""
    file = config.path or "defaults"

    def warning(key: str, message: str) -> Problem:
        return Problem(file, key, None, message, severity="warning", kind="config")

    told = [
        warning(f"hook.{hook.job_name.removeprefix(HOOK)}", absent)
        for hook in config.hooks
        if hook.argv and (absent := onhost.unusable(hook.argv[0]))
    ]
    for sink in config.sinks:
        for pattern in [] if config.jobs.published else sink.patterns:
            if not any(fnmatchcase(name, pattern) for name in (*jobs.jobs, *jobs.problems)) and pattern != "*":
                absent = f'jobs: there is no job "{pattern}" here; {nearest(pattern, jobs.jobs)}'
                told.append(warning(f"sink.{sink.title}", absent))
    return told


def _cannot_be_made(path: str) -> str:
    """Why a directory that is not there cannot be made; "" if it can. systemd makes those of the packaged service."""
    if path.startswith(PACKAGED) and onhost.service_user() is not None:
        return ""
    above = path
    while above != "/" and not os.path.lexists(above):
        above = os.path.dirname(above)
    if os.path.isdir(above) and (above == path or os.access(above, os.W_OK | os.X_OK)):
        return ""
    return f"{path} is not there, and this user cannot make it in {above}"


def _unread(job: Job, defaults: SparkDefaults) -> list[str]:
    """Which settings of the site a Spark job does not have."""
    if not isinstance(job.launch, SparkSubmit):
        return []
    try:
        program = build_sample(job, defaults)
    except UnavailableError:
        return []  # no Spark here: the node says so
    return [f"{text}; {advice}" for text, advice in remarks(job.launch, defaults, program)]


def of_machine(jobs: JobSet, config: Config) -> list[Problem]:
    """What jobs name and this machine lacks or refuses. Other nodes may have it: no job is disabled.

    A user that root does not allow, or a unit that cannot be had, is an error where the job's tags let it run.
    """
    told = []
    units = Units(config.node.units)
    defaults = SparkDefaults.of(config.spark)
    for name in sorted(jobs.jobs):
        job = jobs.jobs[name]
        file = os.path.join(config.node.jobs_dir, f"{name}.toml")
        if job.schedule is not None and next_fire(job.schedule, time.time()) is None:
            never = f'"{job.schedule_text}" never fires again: its last time is over'
            told.append(Problem(file, "schedule", None, never, severity="warning"))
        refused = units.problem(job)
        if refused:
            ours = set(job.tags) <= set(config.node.tags)  # otherwise it runs on other nodes only
            told.append(Problem(file, needs(job), None, refused, severity="error" if ours else "warning"))
        absent = onhost.absent_file(job)
        if not absent and isinstance(job.launch, Command):
            absent = command_problem(job.launch, job.run_as, defaults)
        if absent:
            told.append(Problem(file, "", None, absent, severity="warning"))
        if isinstance(job.launch, SparkSubmit) and job.launch.keytab:
            useless = identity.keytab_problem(job.launch.keytab, job.launch.principal)
            if useless:
                told.append(Problem(file, "", None, useless, severity="warning"))
        told += [Problem(file, "", None, text, severity="warning") for text in _unread(job, defaults)]
        group = onhost.unknown_group(job.owner) if job.owner else ""
        if group:
            told.append(Problem(file, "owner", None, group, severity="warning"))
    return told
