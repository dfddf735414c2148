"""A unit per run, on a real systemd: who the program is, its limits, and that nothing of it outlives its holder."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from system.lab.systemd_lab import SOURCE
from system.systemd.run_units import Runs, running
from system.systemd.test_units_daemon import PYTHON

# The program's child: a session of its own, a wiped environment; its name is found by pgrep.
CHILD = "cp /bin/sleep /tmp/orphan; setsid env -i /tmp/orphan 1000 & echo started; exec sleep 1000"
# Publishes a file with the guard, as the job's own user.
GUARD = f"{PYTHON} -I {SOURCE}/coordd/guard.py"
PUBLISHES = f"{GUARD} owner; s=$({GUARD} staging /tmp/out); id -un > $s; {GUARD} publish $s /tmp/out; cat /tmp/out"
# A call that only an operator may make. The user is one.
ASKS = """
import socket
with socket.socket(socket.AF_UNIX) as line:
    line.connect("/run/coordd/coordd.sock")
    line.sendall(b'{{"id": 1, "method": "node.drain", "params": {{}}}}\\n')
    print(line.makefile().readline())
"""
JOBS = {
    "asks": f'run_as = "etl"\n[command]\nargv = ["/usr/bin/python3", "-I", "-S", "-c", {json.dumps(ASKS)}]\n',
    "guarded": f'run_as = "etl"\n[command]\nargv = ["/bin/sh", "-ec", "{PUBLISHES}"]\n',
    "who": 'run_as = "etl"\n[command]\nargv = ["/bin/sh", "-c", "id -un; id -Gn; pwd; env | sort; exit 7"]\n',
    "plain": '[command]\nargv = ["/bin/sh", "-c", "cat /proc/self/cgroup"]\n',
    "child": f'run_as = "etl"\non_lost = "hold"\n[command]\nargv = ["/bin/sh", "-c", "{CHILD}"]\n',
    "root": 'run_as = "toor"\n[command]\nargv = ["/bin/true"]\n',
    "other": 'run_as = "daemon"\n[command]\nargv = ["/bin/true"]\n',
    "greedy": 'run_as = "small"\nlimits = { memory = "1G" }\n[command]\nargv = ["/bin/true"]\n',
    "limited": 'limits = { memory = "200M", cpu_weight = 20, tasks = 30 }\n[command]\nargv = ["/bin/sleep", "1000"]\n',
    "capped": 'run_as = "small"\nlimits = { tasks = 10 }\n[command]\nargv = ["/bin/sleep", "1000"]\n',
}


def prepare(runs: Runs) -> None:
    runs.lab.run("usermod", "-aG", "coordd-operators", "etl")


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with running(JOBS, prepare) as service:
        yield service


def test_a_job_runs_as_its_user_and_its_end_is_told(runs: Runs) -> None:
    run = runs.trigger("who", "a")
    found = runs.ended(run)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("failure", 7, 0), found
    said = runs.output(run)
    assert said[:3] == ["etl", "etl coordd-operators", "/"]
    assert {"HOME=/home/etl", "USER=etl", f"COORDD_RUN={run}"} <= set(said)
    assert not [line for line in said if line.startswith(("INVOCATION_ID", "NOTIFY_SOCKET"))]
    runs.lab.until(lambda: not runs.units())


def test_a_job_of_another_user_publishes_with_the_guard(runs: Runs) -> None:
    run = runs.trigger("guarded", "a")
    assert runs.ended(run)["state"] == "success", runs.output(run)
    assert runs.output(run)[-1] == "etl"


def test_an_operators_program_in_a_unit_may_only_look(runs: Runs) -> None:
    """The daemon cannot see the process: it is another user's (ProtectProc=invisible)."""
    for word in ("drain", "resume"):  # the person
        runs.lab.run("runuser", "-u", "etl", "--", *runs.client, "node", word)
    run = runs.trigger("asks", "a")
    assert runs.ended(run)["state"] == "success"
    assert "inside a run may not call node.drain" in runs.output(run)[0]


def test_a_job_without_run_as_has_no_unit(runs: Runs) -> None:
    run = runs.trigger("plain", "a")
    assert runs.ended(run)["state"] == "success"
    assert "/coordd.service/" in "".join(runs.output(run))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("root", '"toor" is root'),
        ("other", '"daemon" is not in /etc/coordd/run_as.allow'),
        ("greedy", 'allows "small" at most 67108864'),
    ],
)
def test_what_root_does_not_allow_is_not_launched_and_said(runs: Runs, job: str, why: str) -> None:
    found = runs.checks()[f"job {job}"]
    assert found["state"] == "fail"
    assert why in found["text"]


def test_doctor_tries_a_unit(runs: Runs) -> None:
    found = runs.checks()["units"]
    assert found["state"] == "ok", found
    assert "etl, small, toor" in found["text"]


def test_limits_are_the_units(runs: Runs) -> None:
    wanted = {"limited": ("209715200", "20", "30"), "capped": ("67108864", "50", "10")}
    for job, (memory, weight, tasks) in wanted.items():
        run = runs.trigger(job, "a")
        unit = runs.unit_of(run)
        found = runs.lab.show(unit, "MemoryMax", "CPUWeight", "TasksMax")
        assert found == {"MemoryMax": memory, "CPUWeight": weight, "TasksMax": tasks}
        runs.ctl("run", "cancel", run)
        assert runs.ended(run)["state"] == "revoked"
    runs.lab.until(lambda: not runs.units())
    assert runs.lab.run("ls", "/run/systemd/system.control") == ""


def started(runs: Runs, ident: str) -> str:
    run = runs.trigger("child", ident)
    runs.lab.until(lambda: runs.processes("orphan"))
    return run


def test_a_cancelled_run_leaves_nothing(runs: Runs) -> None:
    run = started(runs, "cancelled")
    runs.ctl("run", "cancel", run)
    assert runs.ended(run)["state"] == "revoked"
    assert not runs.processes("orphan")


def test_nothing_outlives_daemon_runner_watcher_and_program(runs: Runs) -> None:
    run = started(runs, "killed")
    cgroup = runs.cgroup_of(runs.unit_of(run))
    ours = runs.lab.run("cat", "/sys/fs/cgroup/system.slice/coordd.service/cgroup.procs").split()
    main = runs.processes("sleep")
    assert len((cgroup / "program/cgroup.procs").read_text().split()) == 2, "the program and its child"
    runs.drop_in("slow", "RestartSec=30")
    runs.lab.run("kill", "-KILL", *ours, *main, check=False)  # one may have ended since it was listed
    killed = time.monotonic()
    runs.lab.until(lambda: not runs.lab.run("ls", "-d", *(f"/proc/{pid}" for pid in [*ours, *main]), check=False))
    runs.lab.until(lambda: not runs.processes("orphan"))
    took_s = time.monotonic() - killed
    print(f"the child of the program was gone {took_s:.3f} s after the kill")
    assert not runs.is_active, "the daemon was back before"
    runs.drop_in("slow", "RestartSec=200ms")
    runs.systemctl("restart")
    assert runs.ended(run)["state"] in ("lost", "unknown")
