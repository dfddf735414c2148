"""The runner with real processes: judged by what the launched programs wrote, by /proc and by the ledger."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.process import ROOT, ProcessLauncher
from coordd.adapters.sqlite_ledger import SqliteLedger
from coordd.core.rows import GRANTED, Answer, AttemptRow, Claim, Policy, Registration, Row

LIMIT_S = 60.0  # a loaded machine is no failure; a test that works never waits this long

# Writes the time on CLOCK_BOOTTIME, again and again, and TERM when it is told to go (which it does not).
STUBBORN = """
trap 'echo term >> "$OUT"' TERM
while :; do read up _ < /proc/uptime; echo "$up" >> "$OUT"; sleep 0.05; done
"""
# The same, but it goes when it is told to.
BEATING = 'while :; do read up _ < /proc/uptime; echo "$up" >> "$OUT"; sleep 0.05; done'

# A proper daemon: new session, orphaned twice, its environment wiped, and deaf to TERM.
DAEMON = """
import os, signal, sys, time
out = os.environ["OUT"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".pid", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".pid", sys.argv[1])
time.sleep(1000)
''', out], {})
    os._exit(0)
while not os.path.exists(out):
    time.sleep(0.01)
"""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(what: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Wait for something to be true, and return it."""
    limit = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < limit, f"not true within {limit_s} s: {what}"
        time.sleep(0.01)
    return value


def exists(pid: int) -> bool:
    """The process is there, and not only as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Attempt:
    """One attempt that was started."""

    def __init__(self, world: World, run: str, directory: str, mark: str, out: Path) -> None:
        self.world = world
        self.run = run
        self.directory = directory
        self.mark = mark
        self.out = out

    def fact(self, word: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = [fact for fact in self.world.launcher.facts(self.directory) if fact["fact"] == word]
            return found[-1] if found else None

        return dict(until(look))

    def facts(self) -> list[str]:
        return [fact["fact"] for fact in self.world.launcher.facts(self.directory)]

    def pids(self) -> list[int]:
        """Everything that carries this attempt's mark in its environment, by the kernel's word."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if self.mark.encode() in environ and exists(int(name)):
                    found.append(int(name))
        return found

    def lines(self) -> list[str]:
        return self.out.read_text().split() if self.out.exists() else []

    def begun(self) -> Attempt:
        until(self.lines)
        self.fact("started")
        return self

    def over(self) -> Row:
        """Wait until runner and watcher are gone; the ledger's row then."""
        until(lambda: not self.world.launcher.alive(self.directory))
        return self.row()

    def row(self) -> Row:
        row = self.world.ledger.run(self.run)
        assert row is not None
        return row

    def attempt(self) -> AttemptRow:
        return self.world.ledger.attempts(self.run)[0]

    def runner(self) -> int:
        return int(self.fact("adopted")["pid"])

    def watcher(self) -> int:
        return int(self.fact("adopted")["watcher"])


class World:
    """A ledger and a launcher in a directory of their own."""

    def __init__(self, path: Path, *, use_cgroups: bool) -> None:
        self.path = path
        self.ledger = SqliteLedger(f"sqlite:///{path}/ledger.db")
        self.launcher = ProcessLauncher(f"{path}/run", use_cgroups=use_cgroups)
        self.attempts: list[Attempt] = []

    def spec(self, argv: list[str], **changes: Any) -> tuple[dict[str, Any], Attempt]:
        """Claim a new run, as a daemon would."""
        ident = uuid.uuid4().hex
        out = self.path / f"out-{ident}"
        lease_s = changes.get("lease_s", 60.0)
        fire_at = changes.get("fire_at", time.time())
        policy = Policy(on_lost=changes.get("on_lost", "relaunch"), attempts=changes.pop("attempts", 1))
        run = f"job{ident}#1"
        of = Registration(run, f"job{ident}", "digest", policy, fire_at, scheduled=False)
        sent_at = boottime()
        answer = self.ledger.call("claim", Claim(of, 0, f"nonce-{ident}", "edge-1", lease_s))
        assert isinstance(answer, Answer)
        assert answer.word == GRANTED
        spec = {
            "run": run, "job": of.job, "attempt": 0, "token": answer.token, "nonce": f"nonce-{ident}",
            "node": "edge-1", "fire_at": fire_at, "deadline": sent_at + answer.left_s * 0.98, "lease_s": lease_s,
            "renew_interval_s": 5.0, "ledger_timeout_s": 2.0, "kill_grace_s": 10.0, "on_lost": "relaunch",
            "timeout_s": 0.0, "never_on_codes": (), "never_on_patterns": (), "ledger": self.ledger.url,
            "argv": argv, "env": {"PATH": os.environ["PATH"], "OUT": str(out), "MARK": ident}, "cwd": "",
            "log_bytes_max": 100_000, **changes,
        }  # fmt: skip
        directory = self.launcher.directory(run, 0, answer.token)
        attempt = Attempt(self, run, directory, f"MARK={ident}", out)
        self.attempts.append(attempt)
        return spec, attempt

    def start(self, argv: list[str], **changes: Any) -> Attempt:
        spec, attempt = self.spec(argv, **changes)
        assert self.launcher.start(spec) == attempt.directory
        return attempt

    def sh(self, script: str, **changes: Any) -> Attempt:
        return self.start(["/bin/sh", "-c", script], **changes)

    def python(self, script: str, **changes: Any) -> Attempt:
        return self.start([sys.executable, "-I", "-c", script], **changes)

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        for attempt in self.attempts:
            pids = attempt.pids()
            for fact in self.launcher.facts(attempt.directory):
                if fact["fact"] == "adopted":
                    pids += [pid for pid in (fact["pid"], fact["watcher"]) if self.launcher.alive(attempt.directory)]
            for pid in pids:
                if exists(pid):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: self.launcher.reap() is not None and not self.launcher._children)
        self.ledger.close()


@pytest.fixture(params=["cgroup", "no cgroup"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """With a cgroup where this machine has them, and without."""
    world = World(tmp_path, use_cgroups=request.param == "cgroup")
    yield world
    world.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, use_cgroups=False)
    yield world
    world.close()


SHORT: dict[str, Any] = {"lease_s": 3.0, "renew_interval_s": 0.3, "ledger_timeout_s": 0.3, "kill_grace_s": 1.0}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lease_end(attempt: Attempt) -> float:
    """When the ledger says that the lease ends, on CLOCK_BOOTTIME."""
    return attempt.row().until


def last_beat(attempt: Attempt) -> float:
    return float([line for line in attempt.lines() if line != "term"][-1])


# ---- how it ends


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
    ],
)
def test_some_failures_are_not_tried_again(world: World, changes: dict[str, Any], final: bool) -> None:
    row = world.sh("echo 'Error: bad  input' >&2; exit 7", attempts=3, **changes).over()
    assert row.state == ("failure" if final else "retry")


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
    assert set(env) - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "OUT", "MARK", "COORDD_NONCE"}
    assert Path(f"{attempt.out}.fds").read_text().strip() in ("4", "5")  # "total", 0, 1, 2, perhaps the shell's own
    ignored = int(Path(f"{attempt.out}.ign").read_text().split()[1], 16)
    assert ignored & 0x7FFFFFFF == 0, "SIGPIPE and the like are not ignored"  # 32 and 33 are the C library's own


# ---- when it starts


def test_never_before_the_fire_time(either: World) -> None:
    fire_at = time.time() + 1.5
    attempt = either.start([sys.executable, "-I", "-S", "-c", "import time; print(time.time())"], fire_at=fire_at)
    adopted = attempt.fact("adopted")
    assert adopted["at"] < fire_at, "the runner is there ahead of time"
    assert attempt.over().state == "success"
    assert float(Path(attempt.directory, "log").read_text()) >= fire_at
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
    world.ledger.call("cancel", attempt.run, "bob")
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


# ---- whoever dies


def test_the_runner_is_killed(either: World) -> None:
    attempt = either.sh(f"({STUBBORN}) & {STUBBORN}").begun()
    before = attempt.row().until
    kill(attempt.runner())
    row = attempt.over()
    assert attempt.pids() == []
    assert boottime() < before, "long before the lease ends"
    assert (row.state, row.attempt) == ("retry", 1), "another node may take over at once"
    assert (attempt.attempt().state, attempt.attempt().reason) == ("lost", "the runner died")
    assert attempt.facts() == ["adopted", "started", "ended", "reported"]


def test_the_runner_is_killed_and_the_job_is_held(world: World) -> None:
    attempt = world.sh(STUBBORN, on_lost="hold").begun()
    kill(attempt.runner())
    assert attempt.over().state == "unknown"
    assert attempt.pids() == []


def test_the_runner_is_killed_before_the_fire_time(world: World) -> None:
    attempt = world.sh(BEATING, on_lost="hold", fire_at=time.time() + 4.0)
    kill(attempt.runner())
    row = attempt.over()
    assert (row.state, row.attempt) == ("retry", 1), "it certainly never started"
    assert attempt.lines() == []
    assert attempt.pids() == []


def test_the_runner_is_killed_between_the_end_and_its_report(world: World) -> None:
    attempt = world.sh('echo x > "$OUT"; while [ ! -e "$OUT.go" ]; do sleep 0.02; done; exit 3').begun()
    with locked(world):
        Path(f"{attempt.out}.go").touch()
        attempt.fact("ended")
        kill(attempt.runner())
        until(lambda: not exists(attempt.runner()))
    row = attempt.over()
    assert (row.state, row.exit_code) == ("failure", 3), "the watcher says what the runner had written down"


def test_the_watcher_is_killed(either: World) -> None:
    attempt = either.sh(f"({BEATING}) & {BEATING}").begun()
    first = attempt.watcher()
    kill(first)
    until(lambda: attempt.watcher() != first)
    beats = len(attempt.lines())
    until(lambda: len(attempt.lines()) > beats)
    second = attempt.watcher()
    until(lambda: guarded(second))
    kill(attempt.runner())
    row = attempt.over()
    assert attempt.pids() == [], "the new watcher does what the old one would have done"
    assert (row.state, row.attempt) == ("retry", 1)
    assert not exists(second)


def guarded(watcher: int) -> bool:
    """A watcher has come so far that it looks at its pipe: it catches TERM by then."""
    caught = next(line for line in Path(f"/proc/{watcher}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))


def test_a_job_goes_on_under_a_new_watcher(world: World) -> None:
    attempt = world.sh('echo x > "$OUT"; while [ ! -e "$OUT.go" ]; do sleep 0.02; done; exit 4').begun()
    first = attempt.watcher()
    kill(first)
    until(lambda: attempt.watcher() != first)
    Path(f"{attempt.out}.go").touch()
    row = attempt.over()
    assert (row.state, row.exit_code) == ("failure", 4)
    assert not exists(attempt.watcher())


def test_a_watcher_that_is_killed_again_and_again_ends_the_job(world: World) -> None:
    attempt = world.sh(BEATING).begun()
    seen: set[int] = set()
    while world.launcher.alive(attempt.directory):
        watcher = attempt.watcher()
        if watcher not in seen and exists(watcher):
            seen.add(watcher)
            kill(watcher)
    assert len(seen) == 5
    assert attempt.row().state == "retry"
    assert attempt.pids() == []


@pytest.mark.parametrize("who", ["runner", "watcher"])
def test_one_of_them_and_the_daemon_are_killed(tmp_path: Path, who: str) -> None:
    """The daemon is another process here, the launcher of this test only looks."""
    world = World(tmp_path, use_cgroups=False)
    try:
        spec, attempt = world.spec(["/bin/sh", "-c", STUBBORN])
        script = (
            f"import sys, time; sys.path.insert(0, {ROOT!r})\n"
            "from coordd.adapters.process import ProcessLauncher\n"
            f"ProcessLauncher({world.launcher.runtime_dir!r}, use_cgroups=False).start({spec!r})\n"
            "time.sleep(1000)"
        )
        with subprocess.Popen([sys.executable, "-c", script]) as daemon:
            attempt.begun()
            first = attempt.watcher()
            if who == "runner":
                kill(daemon.pid)
                kill(attempt.runner())
            else:
                kill(first)
                kill(daemon.pid)
        if who == "watcher":
            until(lambda: attempt.watcher() != first)
            until(lambda: guarded(attempt.watcher()))
            kill(attempt.runner())
        row = attempt.over()
        assert attempt.pids() == []
        assert (row.state, row.attempt) == ("retry", 1)
    finally:
        world.close()


def test_a_daemon_that_comes_back_finds_its_runners(world: World) -> None:
    attempt = world.sh(BEATING).begun()
    again = ProcessLauncher(world.launcher.runtime_dir, use_cgroups=False)
    assert again.scan() == [attempt.directory]
    assert again.alive(attempt.directory)
    assert again.spec(attempt.directory)["run"] == attempt.run
    assert again.command(attempt.directory, "cancel", "by the next daemon")
    assert attempt.over().reason == "by the next daemon"
    assert not again.alive(attempt.directory)
    again.forget(attempt.directory)
    assert again.scan() == []


def test_both_are_killed_and_the_next_daemon_buries_them(either: World) -> None:
    attempt = either.sh(f"({STUBBORN}) & {STUBBORN}").begun()
    runner, watcher = attempt.runner(), attempt.watcher()
    for pid in (watcher, runner):
        os.kill(pid, signal.SIGSTOP)  # or one would see the other die
    for pid in (watcher, runner):
        kill(pid)
    until(lambda: not either.launcher.alive(attempt.directory))
    assert "ended" not in attempt.facts()
    either.launcher.bury(attempt.directory)
    attempt.fact("reported")
    row = attempt.over()
    assert attempt.pids() == []
    assert (row.state, row.attempt) == ("retry", 1)


def test_the_runner_is_stopped(either: World) -> None:
    attempt = either.sh(f"({STUBBORN}) & {STUBBORN}", **SHORT).begun()
    os.kill(attempt.runner(), signal.SIGSTOP)
    attempt.over()
    assert attempt.pids() == []
    until_ = attempt.fact("ended")["boottime"]
    assert last_beat(attempt) <= until_
    assert attempt.attempt().state == "lost"


def test_the_runner_is_stopped_and_nothing_outlives_the_lease(world: World) -> None:
    """The same, with a ledger that cannot be told: the lease itself is the limit."""
    attempt = world.sh(STUBBORN, **SHORT).begun()
    os.kill(attempt.runner(), signal.SIGSTOP)
    end = lease_end(attempt)
    with locked(world):
        until(lambda: not attempt.pids())
        assert boottime() < end
    assert last_beat(attempt) < end


# ---- the ledger does not answer


class locked:  # noqa: N801 - reads as a word in a with statement
    """Somebody holds the ledger's write lock."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> None:
        self.db = sqlite3.connect(self.world.ledger.path, isolation_level=None, timeout=LIMIT_S)
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_exc: object) -> None:
        self.db.execute("ROLLBACK")
        self.db.close()


def test_without_the_ledger_a_run_ends_before_its_lease_does(either: World) -> None:
    attempt = either.sh(f"({STUBBORN}) & {STUBBORN}", **SHORT).begun()
    with locked(either):
        end = lease_end(attempt)
        until(lambda: not attempt.pids())
        assert boottime() < end
        assert "term" in attempt.lines(), "it was asked first"
    row = attempt.over()
    assert (row.state, row.attempt) == ("retry", 1)
    assert attempt.attempt().reason == "the lease could not be renewed"


def test_without_the_ledger_a_held_run_goes_on(world: World) -> None:
    script = 'echo x >> "$OUT"; while [ ! -e "$OUT.go" ]; do sleep 0.02; done; read u _ < /proc/uptime; echo $u >> $OUT'
    attempt = world.sh(script, on_lost="hold", **SHORT).begun()
    with locked(world):
        end = lease_end(attempt)
        until(lambda: boottime() > end + 0.5)
        assert attempt.pids()
        Path(f"{attempt.out}.go").touch()
        attempt.fact("ended")
    assert last_beat(attempt) > end
    assert attempt.over().state == "success"


def test_a_lease_is_renewed_for_as_long_as_the_program_runs(world: World) -> None:
    attempt = world.sh('echo x > "$OUT"; sleep 7', **SHORT).begun()
    first = lease_end(attempt)
    assert attempt.over().state == "success"
    assert attempt.fact("ended")["boottime"] > first + 1


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
    world = World(tmp_path, use_cgroups=True)
    try:
        attempt = world.sh(f'cat /proc/self/cgroup > "$OUT"; {BEATING}').begun()
        cgroup = attempt.fact("adopted")["cgroup"]
        if world.launcher.cgroup_parent:
            assert os.path.basename(cgroup) in attempt.out.read_text()
        world.launcher.command(attempt.directory, "cancel", "")
        attempt.over()
        assert not cgroup or not os.path.exists(cgroup)
    finally:
        world.close()


def test_two_runners_do_not_touch_each_other(world: World) -> None:
    one = world.sh(STUBBORN).begun()
    two = world.sh(BEATING).begun()
    kill(one.runner())
    one.over()
    beats = len(two.lines())
    until(lambda: len(two.lines()) > beats + 3)
    assert one.pids() == []


# ---- what is kept, and said


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
