"""The daemon in its packaged unit, and its runs in theirs, on a real systemd with D-Bus and polkit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from system.lab.systemd_lab import SOURCE, SystemdLab
from system.systemd.test_units import SYSTEMD
from system.systemd.test_units_daemon import PYTHON, Coordd

TEMPLATE = SYSTEMD / "coordd-run@.service"
RULES = SYSTEMD / "coordd-run.rules"

# In place of /usr/bin/coordd-run. It has the template's sandbox and capabilities.
SUPERVISOR = f"import sys; sys.path.insert(0, '{SOURCE}'); from coordd.runner.unit.supervisor import main; main()"

ALLOWED = "# who jobs may run as\netl\nsmall memory=64M tasks=20 cpu_weight=50\ntoor\n"

CONFIG = """\
[node]
name = "edge-1"
budget = { client = 20 }
[cluster]
lease = 8.0
renew_interval = 1.0
ledger_timeout = 1.0
kill_grace = 3.0
"""


class Runs(Coordd):
    """Also: users, root's list, the template and its polkit rule."""

    def __init__(self, lab: SystemdLab, jobs: dict[str, str]) -> None:
        etc = lab.root / "etc"
        (etc / "coordd/jobs.d").mkdir(parents=True)
        (etc / "coordd/coordd.toml").write_text(CONFIG)
        (etc / "coordd/run_as.allow").write_text(ALLOWED)
        for user in ("etl", "small"):
            lab.run("useradd", "--create-home", user)
        lab.run("useradd", "--non-unique", "--uid", "0", "toor")
        (etc / "systemd/system/coordd-run@.service").write_text(TEMPLATE.read_text())
        place = etc / "systemd/system/coordd-run@.service.d"
        place.mkdir()
        (place / "lab.conf").write_text(
            f'[Service]\nExecStart=\nExecStart={PYTHON} -I -S -E -c "{SUPERVISOR}" %i coordd\n'
        )
        (etc / "polkit-1/rules.d").mkdir(parents=True, exist_ok=True)
        (etc / "polkit-1/rules.d/50-coordd-run.rules").write_text(RULES.read_text())
        super().__init__(lab)
        for name, text in jobs.items():
            (etc / f"coordd/jobs.d/{name}.toml").write_text(text)

    def trigger(self, job: str, ident: str) -> str:
        """Returns the run's id, once the run has started."""
        self.ctl("run", "trigger", job, "--id", ident)
        run = f"{job}#{ident}"
        self.lab.until(lambda: self.run_of(run)["state"] not in ("pending", "received"))
        return run

    def ended(self, run: str) -> dict[str, object]:
        """The run, once it has ended."""
        states = ("success", "failure", "lost", "retry", "revoked", "rejected", "unknown")
        self.lab.until(lambda: self.run_of(run)["state"] in states)
        return self.run_of(run)

    def output(self, run: str) -> list[str]:
        return self.ctl("run", "logs", run).splitlines()

    def units(self) -> list[str]:
        """The names of the units of runs that systemd knows."""
        said = self.lab.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "coordd-run*.service")
        return [line.split()[0] for line in said.splitlines()]

    def unit_of(self, run: str) -> str:
        job, _, ident = run.partition("#")
        return next(name for name in self.units() if f"{job}_{ident}." in name)

    def cgroup_of(self, unit: str) -> Path:
        """Seen from outside."""
        return self.lab.root / "sys/fs/cgroup" / self.lab.show(unit, "ControlGroup")["ControlGroup"].lstrip("/")

    def processes(self, comm: str) -> list[str]:
        return self.lab.run("pgrep", "-x", comm, check=False).split()

    def checks(self) -> dict[str, dict[str, str]]:
        """What `doctor` says, by the name of the check."""
        said = json.loads(self.ctl("--output", "json", "doctor", check=False))
        return {check["check"]: check for check in said}


@contextlib.contextmanager
def running(jobs: dict[str, str], prepare: Callable[[Runs], None] = lambda _runs: None) -> Iterator[Runs]:
    """A daemon with these jobs, while the context is open. ``prepare`` is called before the daemon starts."""
    with SystemdLab() as lab:
        runs = Runs(lab, jobs)
        prepare(runs)
        runs.systemctl("start")
        yield runs
        runs.systemctl("stop")
        runs.kill_what_is_left()
