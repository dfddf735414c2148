"""The real daemon in the packaged unit, on a real systemd: what an operator does with it."""

import json
from collections.abc import Iterator

import pytest

from system.lab import peeping
from system.lab.processes import until
from system.lab.systemd_lab import SITE_PACKAGES, SOURCE, SystemdLab
from system.systemd.test_units import Service

# The machine's own Python. The Python of this test may have its shared library in /root, which the unit's user may not
# enter. The daemon also builds the environment of its programs from nothing, so PYTHONHOME would not reach them.
PYTHON = "/usr/bin/python3"
ENVIRONMENT = {"PYTHONPATH": f"{SOURCE}:{SITE_PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"}

CLIENT = "from coordd.cli.coordctl import main; main()"

CONFIG = """\
[node]
name = "edge-1"
[cluster]
lease = 8.0
renew_interval = 1.0
ledger_timeout = 1.0
kill_grace = 3.0
"""
WHO = 'overlap = "allow"\n[command]\nargv = ["/bin/sh", "-c", "id -un; env | sort"]\n'
LONG = '[command]\nargv = ["/bin/sh", "-c", "sleep 6; exit 7"]\n'


class Coordd(Service):
    """The unit with the daemon itself in it."""

    def __init__(self, lab: SystemdLab) -> None:
        client = f'{PYTHON} -c "{CLIENT}" reload'  # the unit's own command, with PYTHON
        super().__init__(lab, f"{PYTHON} -m coordd run --config /etc/coordd/coordd.toml", client)
        set_anew = " ".join(f'"{name}={value}"' for name, value in ENVIRONMENT.items())
        self.drop_in("python", f"Environment=\nEnvironment={set_anew}")

    def ctl(self, *words: str, check: bool = True) -> str:
        return self.lab.run(*self.client, *words, check=check)

    @property
    def client(self) -> tuple[str, ...]:
        """coordctl, inside."""
        return ("env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), PYTHON, "-c", CLIENT)

    def run_of(self, run: str) -> dict[str, object]:
        text = self.ctl("--output", "json", "run", "show", run, check=False)
        found: dict[str, object] = json.loads(text) if text.startswith("{") else {"state": ""}  # not in the ledger yet
        return found


@pytest.fixture(scope="module")
def coordd() -> Iterator[Coordd]:
    with SystemdLab() as lab:
        jobs = lab.root / "etc/coordd/jobs.d"
        jobs.mkdir(parents=True)
        (lab.root / "etc/coordd/coordd.toml").write_text(CONFIG)
        (jobs / "who.toml").write_text(WHO)
        (jobs / "long.toml").write_text(LONG)
        (jobs / "peeps.toml").write_text(peeping.job_file(PYTHON, "/etc/coordd/peep.py"))
        (lab.root / "etc/coordd/peep.py").write_text(peeping.PROGRAM)
        service = Coordd(lab)
        service.systemctl("start")
        yield service
        service.systemctl("stop")
        service.kill_what_is_left()


def test_it_is_ready_and_says_how_it_is(coordd: Coordd) -> None:
    assert coordd.is_active
    # The daemon is ready first. Only the ledger's first answer shows that the daemon has seen its ledger.
    until(lambda: coordd.status.startswith("ready · 1 node alive · 0 runs active"), why=coordd.status)
    assert coordd.ctl("status")


def test_a_run_is_launched_as_the_units_user_without_its_secrets(coordd: Coordd) -> None:
    coordd.ctl("run", "trigger", "who", "--id", "a", "--wait")

    said = coordd.ctl("run", "logs", "who#a").splitlines()
    assert said[0] == "coordd"
    assert not [line for line in said if line.startswith(("NOTIFY_SOCKET", "WATCHDOG", "PYTHONPATH"))]
    assert "COORDD_RUN=who#a" in said


def test_a_job_cannot_open_the_daemons_memory(coordd: Coordd) -> None:
    coordd.ctl("run", "trigger", "peeps", "--id", "1", "--arg", f"pid={coordd.main_pid}", "--wait")
    daemon, child = peeping.said(coordd.ctl("run", "logs", "peeps#1"))

    assert child["mem"], "the program would see an open process"
    assert daemon == dict.fromkeys(peeping.WAYS, False)


def test_the_journal_finds_the_lines_of_a_run_by_its_fields(coordd: Coordd) -> None:
    coordd.ctl("run", "trigger", "who", "--id", "found", "--wait")

    def lines() -> list[dict[str, str]]:
        said = coordd.lab.run("journalctl", "-u", "coordd", "-o", "json", "--no-pager", "COORDD_RUN=who#found")
        return [json.loads(line) for line in said.splitlines()]

    coordd.lab.until(lambda: "run.succeeded" in [line["COORDD_EVENT"] for line in lines()])
    found = {line["COORDD_EVENT"]: line for line in lines()}
    ended = found["run.succeeded"]
    assert "run.started" in found
    assert (ended["COORDD_JOB"], ended["COORDD_ATTEMPT"], ended["COORDD_NODE"]) == ("who", "0", "edge-1")
    assert ended["COORDD_EXIT_CODE"] == "0"
    assert float(ended["COORDD_RUNTIME_S"]) >= 0
    assert (ended["PRIORITY"], ended["SYSLOG_IDENTIFIER"]) == ("6", "coordd")
    assert ended["MESSAGE"].startswith("run.succeeded run=who#found job=who")
    assert {line["COORDD_RUN"] for line in lines()} == {"who#found"}, "and of no other run"


@pytest.mark.parametrize("how", ["restart", "kill -9"])
def test_a_daemon_that_goes_loses_no_run(coordd: Coordd, how: str) -> None:
    ident = how.replace(" ", "")
    coordd.ctl("run", "trigger", "long", "--id", ident)
    coordd.lab.until(lambda: coordd.run_of(f"long#{ident}")["state"] == "started")
    before = coordd.main_pid

    if how == "restart":
        coordd.systemctl("restart")
    else:
        coordd.signal("KILL")
    coordd.lab.until(coordd.restarted(before))
    coordd.lab.until(lambda: coordd.run_of(f"long#{ident}")["state"] in ("failure", "lost", "retry"))

    found = coordd.run_of(f"long#{ident}")
    assert (found["state"], found["exit_code"], found["attempt"]) == ("failure", 7, 0)


def test_a_restart_does_not_warn_of_runners_that_live_on(coordd: Coordd) -> None:
    """When a unit stops or starts, systemd warns of processes that are left in it, but not of runners and watchers."""
    coordd.ctl("run", "trigger", "long", "--id", "warned")
    coordd.lab.until(lambda: coordd.run_of("long#warned")["state"] == "started")
    before = coordd.main_pid
    coordd.systemctl("restart")
    coordd.lab.until(coordd.restarted(before))
    coordd.lab.until(lambda: coordd.run_of("long#warned")["state"] == "failure")

    said = coordd.lab.run("journalctl", "--unit", "coordd.service", "--output", "cat", "--no-pager").splitlines()
    named = [line for line in said if "left-over process" in line or "remains running" in line]
    assert [line for line in named if "(sleep)" in line], "of the program it does warn"
    assert not [line for line in named if "(python" in line or "((coordd" in line]


def test_a_bad_job_file_is_refused_as_a_whole_and_said(coordd: Coordd) -> None:
    job = coordd.lab.root / "etc/coordd/jobs.d/who.toml"
    job.write_text("[command]\nargv = 7\n")
    pid = coordd.main_pid
    with pytest.raises(AssertionError):  # the lab raises it if a command fails
        coordd.systemctl("reload")
    assert coordd.is_active
    assert coordd.main_pid == pid
    assert "reload refused" in coordd.status
    log = coordd.lab.run("journalctl", "-u", "coordd", "-o", "cat", "--no-pager")
    assert "who.toml" in log
    assert "nothing was changed" in log
    coordd.ctl("run", "trigger", "who", "--id", "still-there", "--wait")

    job.write_text(WHO)
    coordd.systemctl("reload")
    assert coordd.status.startswith("ready")
