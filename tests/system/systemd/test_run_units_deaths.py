"""A unit of a run when something dies, is stopped, or is not there: the run's state, and what is left."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from system.lab.systemd_lab import SystemdLab
from system.systemd.run_units import Runs, running
from system.systemd.test_units_daemon import ENVIRONMENT, PYTHON

CHILD = "cp /bin/sleep /tmp/orphan; setsid env -i /tmp/orphan 1000 & exec sleep 1000"

# A child that needs a moment for its end; its parent does not wait for it.
TIDIES = (
    "setsid sh -c 'trap \\\"sleep 0.5; echo tidied; exit 0\\\" TERM; touch /tmp/there; while :; do sleep 0.1; done'"
)
PARENT = "until [ -e /tmp/there ]; do sleep 0.05; done; exit 3"

JOBS = {
    "child": f'run_as = "etl"\noverlap = "allow"\non_lost = "hold"\n[command]\nargv = ["/bin/sh", "-c", "{CHILD}"]\n',
    "short": 'run_as = "etl"\n[command]\nargv = ["/bin/sh", "-c", "sleep 6; exit 7"]\n',
    "fork": 'run_as = "etl"\n[command]\nargv = ["/bin/sh", "-c", "setsid env -i sleep 1000 & exit 3"]\n',
    "tidy": f'run_as = "etl"\n[command]\nargv = ["/bin/sh", "-c", "{TIDIES} & {PARENT}"]\n',
    "absent": 'run_as = "etl"\n[command]\nargv = ["/no/such/program"]\n',
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with running(JOBS) as service:
        yield service


def started(runs: Runs, ident: str) -> tuple[str, str]:
    """A run whose program has a child, and its unit."""
    run = runs.trigger("child", ident)
    runs.lab.until(lambda: runs.processes("orphan"))
    return run, runs.unit_of(run)


def runner_of(runs: Runs, run: str) -> str:
    directory = runs.lab.run("sh", "-c", f"grep -l '\"{run}\"' /run/coordd/runs/*/spec.json | xargs dirname")
    return str(json.loads(runs.lab.run("sh", "-c", f"grep adopted {directory}/facts | tail -1"))["pid"])


def test_the_runner_is_killed(runs: Runs) -> None:
    run, _ = started(runs, "runner")
    runs.lab.run("kill", "-KILL", runner_of(runs, run))
    found = runs.ended(run)
    assert (found["state"], found["reason"]) == ("unknown", "the runner died"), found
    assert not runs.processes("orphan")


def test_the_runner_is_stopped(runs: Runs) -> None:
    """Its watcher does not end a `hold` run for a lease; a person does, and the unit goes with the runner."""
    run, _ = started(runs, "stopped")
    pid = runner_of(runs, run)
    runs.lab.run("kill", "-STOP", pid)
    assert runs.processes("orphan")
    runs.lab.run("kill", "-KILL", pid)
    runs.ended(run)
    assert not runs.processes("orphan")


def test_the_supervisor_is_killed(runs: Runs) -> None:
    run, unit = started(runs, "supervisor")
    runs.lab.run("kill", "-KILL", runs.lab.show(unit, "MainPID")["MainPID"])
    found = runs.ended(run)
    assert (found["state"], found["reason"]) == ("failure", "ended by signal 9"), found
    assert not runs.processes("orphan")


def test_a_supervisor_that_is_stopped_does_not_keep_its_program_alive(runs: Runs) -> None:
    """Its runner has died, and nobody else may kill a program of another user: the watchdog of the unit does."""
    run, unit = started(runs, "frozen")
    runs.lab.run("kill", "-STOP", runs.lab.show(unit, "MainPID")["MainPID"])
    runs.lab.run("kill", "-KILL", runner_of(runs, run))
    runs.lab.until(lambda: not runs.processes("orphan"))
    assert runs.ended(run)["state"] == "unknown"
    runs.lab.until(lambda: not runs.units())


def test_a_person_stops_the_unit(runs: Runs) -> None:
    run, unit = started(runs, "unit")
    runs.lab.run("systemctl", "stop", unit)
    found = runs.ended(run)
    assert (found["state"], found["reason"]) == ("unknown", "its unit was stopped"), found
    assert not runs.processes("orphan")


@pytest.mark.parametrize("how", ["restart", "kill -9"])
def test_a_daemon_that_goes_loses_no_run_in_a_unit(runs: Runs, how: str) -> None:
    run = runs.trigger("short", how.replace(" ", ""))
    before = runs.main_pid
    if how == "restart":
        runs.systemctl("restart")
    else:
        runs.signal("KILL")
    runs.lab.until(runs.restarted(before))
    found = runs.ended(run)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("failure", 7, 0)


def test_what_the_program_leaves_is_ended_before_its_end_is_told(runs: Runs) -> None:
    found = runs.ended(runs.trigger("fork", "a"))
    assert (found["state"], found["exit_code"]) == ("failure", 3)
    assert not runs.processes("sleep")


def test_what_the_program_leaves_is_asked_to_end_and_waited_for(runs: Runs) -> None:
    """The runner is another user than the supervisor, and sees all the same whether the program's cgroup is empty."""
    run = runs.trigger("tidy", "a")
    found = runs.ended(run)
    assert (found["state"], found["exit_code"]) == ("failure", 3)
    assert "tidied" in runs.output(run)


def test_a_program_that_is_not_there_is_a_failure_with_its_reason(runs: Runs) -> None:
    runs.ctl("run", "trigger", "absent", "--id", "a", check=False)
    assert "/no/such/program is not there" in runs.checks()["job absent"]["text"]


def test_polkit_allows_the_daemons_user_these_units_and_no_more(runs: Runs) -> None:
    def may(*words: str) -> bool:
        command = ["setpriv", "--reuid=coordd", "--regid=coordd", "--clear-groups", *words, "&& echo done"]
        return runs.lab.run("sh", "-c", " ".join(command), check=False).endswith("done")

    ours = f"coordd-run@probe.{'a' * 32}.service"
    ctl = ("systemctl", "--no-ask-password")
    assert may(*ctl, "start", ours)
    assert not may(*ctl, "stop", ours)
    assert not may(*ctl, "start", "coordd-run@probe.service")
    assert not may(*ctl, "restart", "systemd-journald.service")
    assert not may(*ctl, "set-property", "--runtime", ours, "TasksMax=5")
    assert not may("systemd-run", "--no-ask-password", "--wait", "/bin/true")


def test_a_unit_that_cannot_be_started_gives_the_run_back_with_the_reason(runs: Runs) -> None:
    rule = runs.lab.root / "etc/polkit-1/rules.d/50-coordd-run.rules"
    text = rule.read_text()
    rule.unlink()
    runs.lab.run("systemctl", "restart", "polkit")
    try:
        runs.ctl("run", "trigger", "short", "--id", "denied")
        runs.lab.until(lambda: "cannot be started" in str(runs.run_of("short#denied")["reason"]))
        assert runs.checks()["units"]["state"] == "warn"
        assert not runs.processes("sleep")
    finally:
        rule.write_text(text)
        runs.lab.run("systemctl", "restart", "polkit")
    runs.ctl("run", "revoke", "short#denied", check=False)


def test_a_daemon_that_is_root_makes_transient_units() -> None:
    with SystemdLab("edge-2") as lab:
        lab.run("useradd", "--create-home", "etl")
        place = lab.root / "opt/site"
        (place / "jobs.d").mkdir(parents=True)
        (lab.root / "etc/coordd").mkdir()
        (lab.root / "etc/coordd/run_as.allow").write_text("etl\n")
        who = "id -un; cat /proc/self/cgroup; ls /tmp"
        (place / "jobs.d/who.toml").write_text(
            f'run_as = "etl"\nlimits = {{ tasks = 40 }}\n[command]\nargv = ["/bin/sh", "-c", "{who}"]\n'
        )
        (place / "coordd.toml").write_text(
            '[node]\nname = "edge-2"\nstate_dir = "/opt/site/state"\nruntime_dir = "/opt/site/run"\n'
            'jobs_dir = "/opt/site/jobs.d"\n[cluster]\nbus = "unix:///opt/site/bus"\n'
            'ledger = "sqlite:////opt/site/ledger.db"\n[control]\nsocket = "/opt/site/sock"\n'
        )
        (place / "state").mkdir()
        variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        start = ["systemd-run", "--unit=rootd", "-p", "KillMode=process", "-p", "Delegate=yes"]
        lab.run(
            *start,
            *[f"--setenv={one}" for one in variables],
            PYTHON,
            "-m",
            "coordd",
            "run",
            "--config",
            "/opt/site/coordd.toml",
        )

        def ctl(*words: str) -> str:
            client = "from coordd.cli.coordctl import main; main()"
            return lab.run("env", *variables, PYTHON, "-c", client, "--socket", "/opt/site/sock", *words, check=False)

        lab.until(lambda: "ready" in ctl("status"), unit="rootd")
        said = ctl("run", "trigger", "who", "--id", "a", "--wait")
        out = ctl("run", "logs", "who#a").splitlines()
        assert out[:1] == ["etl"], said
        assert any("coordd-run-who_a." in line for line in out)
        lab.until(lambda: not lab.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "coordd-run*"))
