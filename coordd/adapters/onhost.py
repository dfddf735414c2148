"""Finds programs, files and groups that a job or a configuration needs and this machine lacks, also as another user."""

from __future__ import annotations

import grp
import os
import pickle
import pwd
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from coordd.config import ownership
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.errors import ConfigError, RefusedError

T = TypeVar("T")

# How many directories of a PATH a sentence names.
NAMED_MAX = 4

# The user of the packaged unit.
SERVICE_USER = "coordd"


def absent_file(job: Job) -> str:
    """The first file of a job that is missing for this user; "" if all exist, or are elsewhere (URIs)."""
    return next((why for key, path in named_files(job) if (why := absent(job, key, path))), "")


def named_files(job: Job) -> list[tuple[str, str]]:
    """(key, path) of each file that a job names, and that must be on this machine."""
    launch = job.launch
    if not isinstance(launch, SparkSubmit):
        return [("program", launch.argv[0])] if os.path.isabs(launch.argv[0]) else []
    named = [
        ("application", launch.application),
        ("pipeline", launch.pipeline),
        ("keytab", launch.keytab),
        ("properties_file", launch.properties_file),
        *[("py_files", path) for path in launch.py_files],
        *[("files", path) for path in launch.files],
        *[("jars", path) for path in launch.jars],
    ]
    paths = [(key, value.partition("#")[0]) for key, value in named]  # files: PATH#ALIAS
    return [(key, path) for key, path in paths if os.path.isabs(path) and not set(path) & set("{*?")]


def absent(job: Job, key: str, path: str) -> str:
    """Why one of these files is of no use; "" if it is.

    With run_as another user needs them: what this one may not see or read counts as there, but for the properties file,
    which this one reads.
    """
    if not isinstance(job.launch, SparkSubmit):
        return unusable(path, job.run_as)
    why = _unreadable(path, "" if key == "properties_file" else job.run_as)
    return f"{key} {path} {why}" if why else ""


def mount_points() -> list[str]:
    """Where file systems are mounted on this machine. The kernel tells that without asking them."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            words = [line.split() for line in file]
    except OSError:
        return []
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), word[4]) for word in words if len(word) > 4]


def place_of(path: str, mounts: Iterable[str]) -> str:
    """Where the file system of a path is mounted, as far as its name tells; below / its directory, because that may be
    a link to another one.
    """
    inside = [mount for mount in mounts if path == mount or path.startswith(f"{mount.rstrip('/')}/")]
    longest = max(inside, key=len, default="/")
    return longest if longest != "/" else os.path.dirname(path)


def unusable(program: str, run_as: str = "") -> str:
    """Why a program that is named by its path cannot be started here; "" if it can, or is another word."""
    if os.path.isabs(program) and "{" not in program and not _is_usable(program, os.X_OK, run_as):
        return f"{program} is not there or not executable"
    return ""


def absent_program(name: str, directories: str, run_as: str) -> str:
    """Why a program that is named without a directory cannot be started; "" if it can. ``directories`` is its PATH."""
    if any(_is_usable(f"{directory}/{name}", os.X_OK, run_as) for directory in directories.split(":")):
        return ""
    listed = directories.split(":")
    more = f" and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return f'"{name}" is in no directory of the PATH ({":".join(listed[:NAMED_MAX])}{more}), or not executable there'


def _unreadable(path: str, run_as: str) -> str:
    if _is_usable(path, os.R_OK, run_as):
        return ""
    try:
        os.stat(path)
    except OSError as exc:
        return f"is not there ({exc.strerror})"
    return "cannot be read by this user"


def _is_usable(path: str, mode: int, run_as: str) -> bool:
    """True if this user may; for another one, unless it is certainly not there."""
    if not run_as:
        return os.access(path, mode)
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def unknown_group(name: str) -> str:
    """Why a group of that name gives nobody a right; "" if the group exists."""
    try:
        grp.getgrnam(name)
    except KeyError:
        return f'there is no group "{name}" on this machine: it gives nobody the right to operate the job'
    return ""


def service_user(name: str = SERVICE_USER) -> pwd.struct_passwd | None:
    """The daemon's account; None if it does not exist."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def trust_service() -> None:
    """For the commands of root that read what the daemon reads: its files are the service's user's to own, and the
    service's group's to read, as the package leaves them.
    """
    service = service_user() if os.geteuid() == 0 else None
    if service is not None:
        ownership.trust_also(service.pw_uid, service.pw_gid)


def as_user(user: pwd.struct_passwd, call: Callable[[], T]) -> T:
    """Call it with the rights of that user, in a child process; everything that it needs must be imported already.

    Raises:
        RefusedError: only root may become another user.
        ConfigError: the child died.
    """
    if os.geteuid() == user.pw_uid:
        return call()
    if os.geteuid() != 0:
        raise RefusedError(
            f"only root can check as {user.pw_name}",
            kind="not_permitted",
            hint=f"sudo coordd check-config --as-service, or run it as {user.pw_name}",
        )
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            os.initgroups(user.pw_name, user.pw_gid)
            os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(call(), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0 or not data:
        raise ConfigError(f"the check as {user.pw_name} failed (status {status})")
    result: T = pickle.loads(data)  # noqa: S301 - our own child wrote it
    return result
