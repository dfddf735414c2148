"""The runner with real processes: when its program starts, how the program ends, what the runner keeps and says."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coordd.core.ledger.requests import Cancel
from coordd.runner.kernel import RUNNER_NAME, WATCHER_NAME
from system.lab.processes import LIMIT_S, boottime, exists, until
from system.lab.runner_lab import BEATING, DAEMON, SHORT, STUBBORN, World, kill, world_in

# ---- how the program ends


@pytest.mark.parametrize(
    ("script", "exit_code", "state", "reason"),
    [
        ("exit 0", 0, "success", ""),
        ("exit 7", 7, "failure", "exit code 7"),
        ("kill -KILL $$", -9, "failure", "ended by signal 9"),
        ("kill -TERM $$", -15, "failure", "ended by signal 15"),
    ],
)
def test_the_exit_code_is_the_true_one(either: World, script: str, exit_code: int, state: str, reason: str) -> None:
    attempt = either.sh(script)
    row = attempt.over()
    assert (row.state, row.exit_code, row.reason) == (state, exit_code, reason)
    assert attempt.facts() == ["adopted", "started", "ended", "reported"]
    ended = attempt.fact("ended")
    assert (ended["state"], ended["exit_code"]) == (state, exit_code)


def test_a_program_that_is_not_there(either: World) -> None:
    attempt = either.start(["/no/such/program"])
    row = attempt.over()
    assert (row.state, row.exit_code) == ("failure", 127)
    assert row.reason == "cannot execute /no/such/program: No such file or directory"
    assert "started" not in attempt.facts()


def test_a_program_that_may_not_be_executed(either: World, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    row = either.start([str(script)]).over()
    assert (row.state, row.exit_code) == ("failure", 126)
    assert row.reason == f"cannot execute {script}: Permission denied"


def test_a_program_is_found_by_its_path_variable(world: World) -> None:
    assert world.start(["true"]).over().state == "success"
    assert world.start(["no-such-program-anywhere"]).over().exit_code == 127


def test_a_directory_that_is_not_there(world: World) -> None:
    row = world.sh("exit 0", cwd="/no/such/directory").over()
    assert (row.state, row.exit_code) == ("failure", 127)
    assert row.reason == "cannot enter /no/such/directory: No such file or directory"


@pytest.mark.parametrize(
    ("changes", "final"),
    [
        ({"never_on_codes": (7,)}, True),
        ({"never_on_codes": (8,)}, False),
        ({"never_on_patterns": ("bad +input",)}, True),
        ({"never_on_patterns": ("good input",)}, False),
        ({"never_on_patterns": ("bad (pattern",)}, False),
    ],
)
def test_some_failures_are_not_tried_again(world: World, changes: dict[str, Any], final: bool) -> None:
    attempt = world.sh("echo 'Error: bad  input' >&2; exit 7", attempts=3, **changes)
    assert attempt.over().state == ("failure" if final else "retry")
    assert (attempt.attempt().state, attempt.attempt().exit_code) == ("failure", 7)


def test_the_program_finds_what_the_spec_says_and_nothing_else(world: World) -> None:
    os.environ["LEAKED"] = "secret"
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        attempt = world.sh("env > $OUT; ls -l /proc/$$/fd | wc -l > $OUT.fds; grep SigIgn /proc/$$/status > $OUT.ign")
        assert attempt.over().state == "success"
    finally:
        del os.environ["LEAKED"]
        os.close(read)
        os.close(write)
    env = dict(line.split("=", 1) for line in attempt.out.read_text().splitlines())
    assert set(env) - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "OUT", "MARK", "COORDD_NONCE", "COORDD_GUARD"}
    assert Path(f"{attempt.out}.fds").read_text().strip() in ("4", "5")  # "total", 0, 1, 2, maybe one of the shell
    ignored = int(Path(f"{attempt.out}.ign").read_text().split()[1], 16)
    assert ignored & 0x7FFFFFFF == 0, "SIGPIPE and the like are not ignored"  # the C library uses 32 and 33


# ---- when the program starts


def test_never_before_the_fire_time(either: World) -> None:
    fire_at = time.time() + 1.5
    attempt = either.start([sys.executable, "-I", "-S", "-c", "import time; print(time.time())"], fire_at=fire_at)
    adopted = attempt.fact("adopted")
    assert adopted["at"] < fire_at, "the runner is there ahead of time"
    assert attempt.over().state == "success"
    assert float(Path(attempt.directory, "log").read_text()) >= fire_at
    started = attempt.fact("started")
    assert fire_at <= started["called"] <= started["at"]


def test_while_it_waits_the_lease_is_renewed(world: World) -> None:
    fire_at = time.time() + 4.5  # longer than the lease
    attempt = world.sh('echo x > "$OUT"', fire_at=fire_at, **SHORT)
    assert attempt.over().state == "success"
    assert attempt.fact("started")["at"] >= fire_at


def test_a_grant_that_is_no_longer_ours_starts_nothing(world: World) -> None:
    spec, attempt = world.spec(["/bin/sh", "-c", BEATING])
    world.launcher.start({**spec, "nonce": "another"})
    attempt.over()
    assert attempt.lines() == []
    assert attempt.fact("refused")["reason"] == "the gate said stale"
    assert attempt.row().state == "received"


def test_too_near_the_end_of_the_lease_nothing_is_started(world: World) -> None:
    spec, attempt = world.spec(["/bin/sh", "-c", BEATING])
    world.launcher.start({**spec, "deadline": boottime() + 5.0, "kill_grace_s": 10.0})
    row = attempt.over()
    assert attempt.lines() == []
    assert (row.state, row.attempt) == ("retry", 1)


def test_a_program_that_dies_while_it_waits_was_not_started(either: World) -> None:
    attempt = either.sh('echo ran >> "$OUT"', fire_at=time.time() + 1.5)
    runner = attempt.runner()
    children = Path(f"/proc/{runner}/task/{runner}/children")
    for child in until(lambda: children.read_text().split()):
        kill(int(child))
    row = attempt.over()
    assert (row.state, row.attempt) == ("retry", 1), "another node may start it"
    assert attempt.attempt().reason == "refused: its process was killed before it could be executed"
    assert attempt.attempt().exit_code is None
    assert attempt.facts() == ["adopted", "refused", "reported"]
    assert attempt.lines() == []


def test_cancelled_before_its_time(world: World) -> None:
    attempt = world.sh(BEATING, fire_at=time.time() + 4.0)
    attempt.fact("adopted")
    assert until(lambda: world.launcher.command(attempt.directory, "cancel", "not today"))
    row = attempt.over()
    assert (row.state, row.reason) == ("revoked", "not today")
    assert attempt.lines() == []


# ---- ended on purpose


def test_cancel(either: World) -> None:
    attempt = either.sh(BEATING).begun()
    assert either.launcher.command(attempt.directory, "cancel", "cancelled by alice")
    row = attempt.over()
    assert (row.state, row.reason) == ("revoked", "cancelled by alice")
    assert attempt.pids() == []
    assert not either.launcher.command(attempt.directory, "cancel", "again")


def test_cancel_by_the_ledger(world: World) -> None:
    attempt = world.sh(BEATING, renew_interval_s=0.2).begun()
    world.ledger.ask(Cancel(run=attempt.run, by="bob"))
    assert attempt.over().state == "revoked"
    assert attempt.pids() == []


def test_a_stubborn_program_is_killed_after_the_grace(either: World) -> None:
    attempt = either.sh(STUBBORN, kill_grace_s=1.0).begun()
    either.launcher.command(attempt.directory, "cancel", "cancelled")
    row = attempt.over()
    assert (row.state, row.exit_code) == ("revoked", -9)
    assert "term" in attempt.lines(), "it was asked first"
    assert attempt.pids() == []


def test_timeout(world: World) -> None:
    row = world.sh(BEATING, timeout_s=0.5).over()
    assert (row.state, row.reason) == ("failure", "timeout after 0.5 s")


@pytest.mark.parametrize("who", ["runner", "watcher"])
def test_at_shutdown_it_ends_its_job_and_says_so(world: World, who: str) -> None:
    attempt = world.sh(BEATING).begun()
    os.kill(attempt.runner() if who == "runner" else attempt.watcher(), signal.SIGTERM)
    row = attempt.over()
    assert (row.state, row.attempt) == ("retry", 1), "another node need not wait for the lease"
    assert attempt.attempt().state == "lost"
    assert attempt.pids() == []


def test_the_reason_of_a_failure_has_the_line_that_tells_why(world: World) -> None:
    row = world.sh("echo 'ValueError: no column amount' >&2; exit 1").over()
    assert (row.state, row.reason) == ("failure", "exit code 1: ValueError: no column amount")


def test_ps_shows_whose_runner_and_watcher_it_is(world: World) -> None:
    attempt = world.sh(BEATING).begun()
    first = attempt.watcher()
    wanted = f"coordd-runner {attempt.run} attempt 0"
    for pid, name in ((attempt.runner(), RUNNER_NAME), (first, WATCHER_NAME)):
        assert wanted in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        assert Path(f"/proc/{pid}/comm").read_text().strip() == name
    kill(first)
    second = until(lambda: attempt.watcher() if attempt.watcher() != first else 0)
    until(lambda: Path(f"/proc/{second}/comm").read_text() == f"{WATCHER_NAME}\n")
    assert f"coordd-watcher {attempt.run} attempt 0" in Path(f"/proc/{second}/cmdline").read_text().replace("\0", " ")
    world.launcher.command(attempt.directory, "cancel", "")
    attempt.over()


# ---- nothing is left behind


def test_a_daemonised_grandchild_does_not_outlive_the_run(either: World) -> None:
    attempt = either.python(DAEMON)
    row = attempt.over()
    pid = int(attempt.out.read_text())
    assert not exists(pid)
    assert (row.state, row.exit_code) == ("success", 0), "the exit code is that of the program itself"


def test_a_daemonised_grandchild_does_not_outlive_the_runner(either: World) -> None:
    attempt = either.python(DAEMON + "\ntime.sleep(1000)")
    pid = int(until(lambda: attempt.out.exists() and attempt.out.read_text()))
    kill(attempt.runner())
    attempt.over()
    assert not exists(pid)
    assert attempt.pids() == []


def test_cgroups_are_removed(tmp_path: Path) -> None:
    with world_in(tmp_path, use_cgroups=True) as world:
        attempt = world.sh(f'cat /proc/self/cgroup > "$OUT"; {BEATING}').begun()
        cgroup = attempt.fact("adopted")["cgroup"]
        if world.launcher.cgroup_parent:
            assert os.path.basename(cgroup) in attempt.out.read_text()
        world.launcher.command(attempt.directory, "cancel", "")
        attempt.over()
        assert not cgroup or not os.path.exists(cgroup)


def test_two_runners_do_not_touch_each_other(world: World) -> None:
    one = world.sh(STUBBORN).begun()
    two = world.sh(BEATING).begun()
    kill(one.runner())
    one.over()
    beats = len(two.lines())
    until(lambda: len(two.lines()) > beats + 3)
    assert one.pids() == []


# ---- what is kept and reported


def test_output_is_kept_within_bounds(world: World) -> None:
    attempt = world.sh("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo the end >&2")
    assert attempt.over().state == "success"
    log = Path(attempt.directory, "log")
    old = Path(attempt.directory, "log.old")
    assert log.stat().st_size + old.stat().st_size <= 100_000
    assert (old.read_text() + log.read_text()).endswith("line 19998\nline 19999\nthe end\n")
    assert attempt.fact("ended")["lines"][-2:] == ["line 19999", "the end"]


def test_a_full_disk_loses_output_not_the_run(world: World) -> None:
    attempt = world.sh("echo much; echo more", log_path="/dev/full")
    assert attempt.over().state == "success"
    assert "/dev/full" in attempt.fact("ended")["log_failure"]
    assert attempt.fact("ended")["lines"] == ["much", "more"]


def test_a_daemon_hears_of_facts_at_once(world: World) -> None:
    os.makedirs(world.launcher.runtime_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        here = os.open(world.launcher.runtime_dir, os.O_RDONLY)
        ear.bind(f"/proc/self/fd/{here}/facts.sock")
        os.close(here)
        ear.settimeout(LIMIT_S)
        attempt = world.sh("exit 0")
        name = os.path.basename(attempt.directory).encode()
        assert [ear.recv(4096) for _ in range(4)] == [name] * 4
        attempt.over()


def test_both_processes_are_small(world: World) -> None:
    attempt = world.sh(BEATING, renew_interval_s=0.1).begun()
    beat = attempt.row().beat
    until(lambda: attempt.row().beat > beat + 3)
    for pid in (attempt.runner(), attempt.watcher()):
        resident = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)
        assert int(resident.split()[1]) <= 16 * 1024
