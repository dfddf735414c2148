"""The warm parent: a runner that it forked is like one that was started as a program, and no fault of it starts an
attempt twice or not at all."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from coordd.adapters.launch import warm as warm_adapter
from coordd.adapters.launch.warm import WarmParent
from coordd.adapters.process import BOOT_WARM, ROOT
from coordd.runner.warm import parent as warm_runner
from system.lab.processes import exists, until
from system.lab.runner_lab import Attempt, World, kill, world_in

# Writes a line for each start, and waits until the test says go.
ONCE = 'echo start >> "$OUT"; while [ ! -e "$OUT.go" ]; do sleep 0.02; done'


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[World]:
    """A world whose warm parent is ready."""
    (tmp_path / "hot").mkdir()
    with world_in(tmp_path / "hot", warm=True) as world:
        yield world


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def warm_of(world: World) -> WarmParent:
    assert world.launcher.warm is not None
    return world.launcher.warm


def is_forked(world: World, attempt: Attempt) -> bool:
    return parent_of(attempt.watcher()) == warm_of(world).pid


def ran_once(attempt: Attempt) -> bool:
    """End its program, and tell whether it was started once and ended well."""
    attempt.begun()
    Path(f"{attempt.out}.go").touch()
    return attempt.over().state == "success" and attempt.lines() == ["start"]


# ---- what it forks


def portrait(pid: int) -> dict[str, object]:
    """What the kernel says of a process, as far as it is the same for each runner."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kept = ("Name", "Umask", "Groups", "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "CapEff", "NoNewPrivs", "Threads")
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    fds = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            fds.append((int(fd), os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0].rpartition("/")[2]))
    return {
        **{key: status[key] for key in kept},
        "leads its group and session": (int(stat[2]) == pid, int(stat[3]) == pid),
        "cwd": os.readlink(f"/proc/{pid}/cwd"),
        "environ": [line.partition(b"=")[0] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")],
        "command": words_of(pid)[1:6],
        "limits": [line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "locks" not in line],
        "cgroup": Path(f"/proc/{pid}/cgroup").read_text(),
        "oom": Path(f"/proc/{pid}/oom_score_adj").read_text(),
        "fds": sorted(fds),
    }


@pytest.mark.parametrize("who", ["runner", "watcher", "program"])
def test_a_forked_process_is_like_one_that_was_started_as_a_program(world: World, hot: World, who: str) -> None:
    pids = []
    for one in (world, hot):
        attempt = one.start(["/bin/sleep", "1000"])
        until(partial(guarded_twice, attempt))
        pids.append({"runner": attempt.runner, "watcher": attempt.watcher}.get(who, partial(program_of, attempt))())
    assert is_forked(hot, hot.attempts[0])
    with contextlib.suppress(AssertionError):  # each writes its ledger and reads /proc at its own moments
        until(lambda: portrait(pids[0]) == portrait(pids[1]))
    assert portrait(pids[0]) == portrait(pids[1])


def program_of(attempt: Attempt) -> int:
    return int(attempt.fact("started")["program"])


def guarded_twice(attempt: Attempt) -> bool:
    """True if runner and watcher both wait for their signals."""
    return all(
        int(Path(f"/proc/{pid}/status").read_text().partition("SigCgt:\t")[2].split()[0], 16)
        & (1 << (signal.SIGTERM - 1))
        for pid in (attempt.runner(), attempt.watcher())
    )


def test_the_command_lines_of_runner_and_watcher_name_the_run(hot: World) -> None:
    attempt = hot.sh(ONCE).begun()
    for pid in (attempt.runner(), attempt.watcher()):
        assert words_of(pid)[6:] == ["coordd-runner", attempt.run, "attempt", "0"]
        assert any("coordd.runner.__main__" in word for word in words_of(pid))
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (attempt.runner(), attempt.watcher())]
    assert names == ["(coordd-runner)", "(coordd-watch)"]
    assert words_of(warm_of(hot).pid)[4:] == ["coordd-warm", "sqlite:"]


def test_a_warm_parent_has_one_thread_and_only_its_own_descriptors(hot: World) -> None:
    pid = warm_of(hot).pid
    files = [os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in sorted(os.listdir(f"/proc/{pid}/fd"))]
    mine = os.readlink(f"/proc/{os.getpid()}/fd/2").partition(":")[0]
    assert files == ["/dev/null", mine, mine, "socket", "pipe", "pipe"]
    assert os.listdir(f"/proc/{pid}/task") == [str(pid)]
    assert f" {pid} " not in Path("/proc/locks").read_text()
    assert Path(f"/proc/{pid}/environ").read_bytes() == b"LANG=C.UTF-8\0"


@pytest.mark.parametrize("ledger", ["sqlite:", "redis:"])
def test_a_warm_parent_loads_no_generator_of_random_numbers(ledger: str) -> None:
    """A child that goes on with its parent's state would draw the numbers of its siblings."""
    loads = f"[__import__(one) for one in (*{warm_runner.LATER!r}, 'coordd.runner.warm.parent')]"
    script = (
        f"import sys; sys.path.insert(0, {ROOT!r}); {loads}\n"
        f"from coordd.runner.__main__ import import_ledger; import_ledger({ledger!r}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-E", "-c", script], check=True, capture_output=True, text=True)
    assert not {"random", "_random", "secrets", "uuid", "ssl", "_ssl", "threading"} & set(done.stdout.split())


def test_the_end_of_a_child_is_told_and_leaves_no_zombie(hot: World) -> None:
    attempt = hot.sh("exit 0")
    assert attempt.over().state == "success"
    until(lambda: hot.launcher.reap() is not None and not warm_of(hot).children())
    assert hot.launcher.buried(attempt.directory), "its watcher ended in order"
    pid = warm_of(hot).pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


# ---- the warm parent fails


def is_limited(pid: int) -> None:
    open_now = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now, open_now))


FAULTS = {
    "killed": kill,
    "stopped": lambda pid: os.kill(pid, signal.SIGSTOP),
    "terminated": lambda pid: os.kill(pid, signal.SIGTERM),
    "without descriptors": is_limited,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_warm_parent_that_fails_costs_an_attempt_nothing_but_a_moment(hot: World, fault: str) -> None:
    warm = warm_of(hot)
    first = warm.pid
    FAULTS[fault](first)
    attempt = hot.sh(ONCE)
    assert not is_forked(hot, attempt)
    assert ran_once(attempt)
    if fault != "without descriptors":  # that one has answered, and may be well the next time
        until(lambda: not exists(first))
        hot.warm_up()
        assert warm.pid != first
        attempt = hot.sh(ONCE)
        assert is_forked(hot, attempt)
        assert ran_once(attempt)
        assert hot.launcher.notices() != []


def test_the_runners_of_a_warm_parent_that_is_killed_go_on(hot: World) -> None:
    attempt = hot.sh(ONCE).begun()
    kill(warm_of(hot).pid)
    hot.warm_up()
    assert hot.launcher.alive(attempt.directory)
    assert ran_once(attempt)
    assert not hot.launcher.alive(attempt.directory)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_warm_parent_ends_with_its_daemon_and_its_runners_go_on(world: World, *, is_stopped: bool) -> None:
    spec, attempt = world.spec(["/bin/sh", "-c", ONCE])
    script = (
        "import time\n"
        "from coordd.adapters.process import ProcessLauncher\n"
        f"where, ledger = {world.launcher.runtime_dir!r}, {world.ledger.url!r}\n"
        "launcher = ProcessLauncher(where, use_cgroups=False, warm_for=ledger)\n"
        "while launcher.reap() or launcher.warm.problem:\n"
        "    time.sleep(0.01)\n"
        f"launcher.start({spec!r})\n"
        "print(launcher.warm.pid, flush=True)\n"
        "time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        warm = int(daemon.stdout.readline())
        attempt.begun()
        assert parent_of(attempt.watcher()) == warm
        if is_stopped:
            os.kill(warm, signal.SIGSTOP)
        kill(daemon.pid)
    until(lambda: not exists(warm))
    assert ran_once(attempt)


def test_closing_ends_the_warm_parent_even_if_it_is_stopped(hot: World) -> None:
    pid = warm_of(hot).pid
    os.kill(pid, signal.SIGSTOP)
    hot.launcher.close()
    assert not Path(f"/proc/{pid}").exists(), "it was collected too"
    hot.launcher.reap()
    assert warm_of(hot).pid == 0, "no other one is started"


def test_a_warm_parent_of_another_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package was replaced after the daemon had started."""
    monkeypatch.setattr(warm_adapter, "__version__", "0.0.9")
    with world_in(tmp_path) as world:
        warm = world.launcher.warm = WarmParent(sys.executable, BOOT_WARM, world.ledger.url)
        until(lambda: world.launcher.reap() is not None and "version" in warm.problem)
        assert ran_once(world.sh(ONCE))
        world.launcher.reap()
        assert warm.pid == 0, "no other one is started: only a restart of the daemon mends it"


# ---- the permit


def test_a_start_that_is_not_answered_in_time_happens_once(hot: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes just before or just after the daemon gives up, in all orders."""
    attempts = []
    for number in range(30):
        hot.warm_up()
        monkeypatch.setattr(warm_adapter, "ANSWER_S", 0.0002 * number)
        monkeypatch.setattr(warm_of(hot), "_pause_s", 0.0)
        attempts.append(hot.sh(ONCE))
        hot.launcher.reap()
    assert [attempt.run for attempt in attempts if not ran_once(attempt)] == []


@pytest.mark.parametrize("is_taken", [True, False])
def test_only_a_child_with_the_permit_goes_on(hot: World, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool) -> None:
    """The request is answered after the daemon has given up: the test is the daemon here."""
    spec, attempt = hot.spec(["/bin/sh", "-c", ONCE])
    warm = warm_of(hot)
    seen: list[int] = []

    def ask(_directory: str, fds: list[int]) -> bool:
        seen.extend(os.dup(fd) for fd in fds)
        warm._has_refused = True  # else it would be killed
        return False

    monkeypatch.setattr(warm, "_ask", ask)
    hot.launcher.start(spec)
    assert attempt.begun()
    os.lseek(seen[0], 0, os.SEEK_SET)  # else the late child would find no spec, permit or not
    permit = os.eventfd(0 if is_taken else 1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    assert warm._socket is not None
    socket.send_fds(warm._socket, [b"start 1"], [*seen[:2], permit])
    for fd in (*seen, permit):
        os.close(fd)
    pid = int(until(lambda: [words[2] for words in warm._receive() if words[0] == "started"])[0])
    until(lambda: not exists(pid) if is_taken else len(attempt.lines()) == 2)
    Path(f"{attempt.out}.go").touch()
    attempt.over()
    until(lambda: not exists(pid))
    # With the permit it runs a second time: the gate of the ledger repeats its answer, and does not prevent this.
    assert attempt.lines() == (["start"] if is_taken else ["start", "start"])


@pytest.mark.parametrize("is_taken", [True, False])
def test_the_daemon_starts_a_program_only_if_it_has_the_permit(
    hot: World, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool
) -> None:
    """No answer came, and the child has the permit or has not."""
    warm = warm_of(hot)
    pid = warm.pid
    monkeypatch.setattr(warm, "_ask", lambda _directory, fds: bool(is_taken and not os.read(fds[2], 8)))
    assert warm.start("/nowhere", [0, 2]) == is_taken
    assert warm.pid == (pid if is_taken else 0), "one that is only slow is not killed"


def test_a_child_whose_answer_comes_late_is_known_and_collected(hot: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_adapter, "ANSWER_S", 0.0)
    monkeypatch.setattr(warm_adapter, "_take", lambda _permit: False)  # as if the child always had it
    attempt = hot.sh("exit 0")
    assert attempt.over().state == "success"
    until(lambda: hot.launcher.reap() is not None and hot.launcher.buried(attempt.directory))
    assert warm_of(hot).children() == []
