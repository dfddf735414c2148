"""Which runs get a systemd unit of their own, how systemd is asked for it, and why a job cannot have one here."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from functools import cached_property
from typing import Any, Final

import coordd
from coordd.adapters.launch import allowed
from coordd.core.jobs.job import Job
from coordd.errors import UnavailableError

# [node] units: for jobs with run_as or limits; for all jobs; for none.
AUTO: Final = "auto"
ON: Final = "on"
OFF: Final = "off"

# systemd is the service manager here (sd_booted).
BOOTED: Final = "/run/systemd/system"

# A daemon that is not root starts the packaged template, by the packaged polkit rule; root makes transient units.
TEMPLATE: Final = "coordd-run@.service"
TEMPLATE_PLACES: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
SUPERVISOR: Final = "from coordd.runner.unit.supervisor import main; main()"

# The instance is for people, up to the last dot. The key after it is drawn for each start: nobody listens in advance.
READABLE_MAX: Final = 120
KEY_BYTES: Final = 16
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9:_.@-]+", re.ASCII)

PROBE: Final = "probe"
PROBE_S: Final = 20.0

# Of a transient unit; the template has the same, and a sandbox.
TRANSIENT: Final = (
    "Type=exec", "Delegate=yes", "KillMode=mixed", "SendSIGKILL=yes", "TimeoutStopSec=45", "OOMPolicy=continue",
    "PrivateTmp=yes", "UMask=0077", "LimitCORE=0", "KeyringMode=private", "WatchdogSec=15", "WatchdogSignal=SIGKILL",
)  # fmt: skip
# Only a program that runs as another user; without run_as it has what the daemon has, as ever.
TRANSIENT_AS: Final = ("NoNewPrivileges=yes", "CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_KILL")


def needs(job: Job) -> str:
    """The key of the job that only a unit can give; "" if there is none."""
    if job.run_as:
        return "run_as"
    return "limits" if any(_limits(job).values()) else ""


class Units:
    """What this machine offers now. Short-lived: it looks once at root's file and at the template, if a job asks."""

    def __init__(self, mode: str) -> None:
        """``mode``: [node] units."""
        self.mode = mode

    @cached_property
    def _absent(self) -> str:
        return absent()

    @cached_property
    def _users(self) -> dict[str, dict[str, int]]:
        return allowed.read()

    def problem(self, job: Job) -> str:
        """Why this machine cannot run the job; "" if it can."""
        key = needs(job)
        if not key:
            return self._absent if self.mode == ON else ""
        if self.mode == OFF:
            return f'{key} needs a unit, and [node] units is "off"'
        if self._absent:
            return f"{key} needs a unit: {self._absent}"
        if not job.run_as:
            return ""
        try:
            allowed.decide(job.run_as, _limits(job), self._users)
        except ValueError as exc:
            return f"run_as: {exc}"
        return ""

    def ask(self, job: Job, run: str, attempt: int, token: int) -> dict[str, Any] | None:
        """The unit of one attempt, for the runner's spec; None if it runs without. Raises UnavailableError."""
        if self.mode != ON and not needs(job):
            return None
        why = self.problem(job)
        if why:
            raise UnavailableError(why)
        key = secrets.token_hex(KEY_BYTES)
        instance = f"{_NOT_IN_NAMES.sub('_', run)[:READABLE_MAX]}.{attempt}.{token}.{key}"
        return {"key": key, "user": job.run_as, **_limits(job), **_start(instance, f"coordd run {run}", job.run_as)}


def probe(mode: str) -> tuple[bool, str]:
    """(whether a unit can be started here now, what was found). Starts one that does nothing; waits for it."""
    if mode == OFF:
        return True, '[node] units = "off": no run has a unit, and jobs with run_as or limits do not start here'
    why = absent()
    if why:
        return mode != ON, f"none: {why}. Runs live in the daemon's unit; jobs with run_as or limits do not start"
    asked = _start(f"{PROBE}.{secrets.token_hex(KEY_BYTES)}", "coordd looks whether units can be started", "")
    argv = [word for word in asked["start"] if word != "--no-block"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return False, f"{asked['name']} cannot be started: {exc}"
    if done.returncode:
        return False, f"{asked['name']} cannot be started: {' '.join(done.stderr.decode(errors='replace').split())}"
    try:
        users = ", ".join(sorted(allowed.read())) or "nobody"
    except ValueError as exc:
        return False, str(exc)
    of = "each run" if mode == ON else "runs with run_as or limits"
    return True, f"{of} in a unit each; run_as may name {users} ({allowed.PATH})"


def _limits(job: Job) -> dict[str, int]:
    return {name: int(getattr(job.limits, name)) for name in allowed.LIMITS}


def absent() -> str:
    """Why this machine has no units for runs; "" if it has."""
    if not os.path.isdir(BOOTED):
        return "systemd is not the service manager here"
    if os.geteuid() == 0:
        return "" if shutil.which("systemd-run") else "systemd-run is missing"
    if not shutil.which("systemctl"):
        return "systemctl is missing"
    if not any(os.path.exists(f"{place}/{TEMPLATE}") for place in TEMPLATE_PLACES):
        return f"{TEMPLATE} is not installed (the package brings it, and its polkit rule)"
    return ""


def _start(instance: str, text: str, user: str) -> dict[str, Any]:
    """The unit's name, and the command that starts it. It returns when the start is queued."""
    if os.geteuid() != 0:
        name = TEMPLATE.replace("@.", f"@{instance}.")
        return {"name": name, "start": [_program("systemctl"), "start", "--no-block", "--no-ask-password", name]}
    name = f"coordd-run-{instance.replace('@', ':')}.service"
    settings = [f"--property={setting}" for setting in (*TRANSIENT, *(TRANSIENT_AS if user else ()))]
    root = os.path.dirname(os.path.dirname(os.path.abspath(coordd.__file__)))
    program = [sys.executable, "-I", "-S", "-E", "-c", f"import sys; sys.path.insert(0, {root!r}); {SUPERVISOR}"]
    words = ["--no-block", "--quiet", "--collect", "--no-ask-password", f"--unit={name}", f"--description={text}"]
    return {"name": name, "start": [_program("systemd-run"), *words, *settings, "--", *program, instance, "root"]}


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/bin/{name}"
