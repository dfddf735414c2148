"""A runner, watcher or daemon is killed or stopped, or the ledger does not answer: nothing outlives the lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordd.adapters.process import ROOT, ProcessLauncher
from coordd.runner.kernel import label_of, start_ticks
from coordd.runner.tree import Tree
from system.lab.backends import locked
from system.lab.cluster import cluster_of
from system.lab.processes import boottime, exists, kill_at_once, until, warm_parents
from system.lab.runner_lab import (
    BEATING,
    HEADLESS,
    SHORT,
    STUBBORN,
    World,
    beats_on,
    guarded,
    kill,
    kill_together,
    last_beat,
    lease_end,
    world_in,
)

# Between the instant when a runner kills its program (0.3 of the grace before the end of the lease), the one when its
# watcher would (0.2), and the end, processes must be scheduled: on a busy machine that takes some tenths of a second.
ROOMY = {**SHORT, "lease_s": 6.0, "kill_grace_s": 4.0}

# Whoever sees first that all is over says so. It is the watcher where its runner was not scheduled in time.
WITHOUT_LEDGER = ("the lease could not be renewed", "the runner hung and its lease was about to end")


def burials_of(pid: int) -> set[int]:
    """The pids of a daemon's children that exist and are not zombies, except its warm parent."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return {child for child in children if exists(child) and child not in warm_parents(pid)}


# ---- a process dies


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
    assert (row.state, row.attempt) == ("retry", 1)
    assert attempt.fact("refused")["state"] == "retry", "it certainly never started: a held run goes on too"
    assert attempt.lines() == []
    assert attempt.pids() == []


def test_the_runner_is_killed_between_the_end_and_its_report(world: World) -> None:
    attempt = world.sh('echo x > "$OUT"; while [ ! -e "$OUT.go" ]; do sleep 0.02; done; exit 3').begun()
    with locked(world.ledger.path):
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
    """Here the daemon is a separate process. The launcher of this test only looks."""
    with world_in(tmp_path, use_cgroups=False) as world:
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
    kill_together(watcher, runner)
    until(lambda: not either.launcher.alive(attempt.directory))
    assert "ended" not in attempt.facts()
    either.launcher.bury(attempt.directory)
    attempt.fact("reported")
    row = attempt.over()
    assert attempt.pids() == []
    assert (row.state, row.attempt) == ("retry", 1)


@pytest.mark.parametrize(
    "elsewhere", [{"pid_ns": "4026532001"}, {"boot": "another", "machine": "another"}, {"boot": ""}, {}]
)
def test_a_burial_from_another_place_ends_what_it_sees_and_says_nothing(
    either: World, elsewhere: dict[str, str]
) -> None:
    attempt = either.sh(STUBBORN).begun()
    kill_together(attempt.watcher(), attempt.runner())
    until(lambda: not either.launcher.alive(attempt.directory))
    spec = either.launcher._known[attempt.directory].spec
    spec["place"] = {**spec["place"], **elsewhere} if elsewhere else {}  # {}: an older version has launched it
    either.launcher.bury(attempt.directory)
    assert "cannot be seen" in attempt.fact("untold")["reason"]

    def is_buried() -> bool:
        either.launcher.reap()
        return either.launcher.buried(attempt.directory)

    until(is_buried)
    assert attempt.pids() == []
    assert attempt.row().state == "started", "an attempt that lives may be there: the lease decides"
    assert set(attempt.facts()) == {"adopted", "started", "untold"}


def test_a_burial_after_a_restart_of_the_machine_reports_it(either: World) -> None:
    """Where RUNTIME_DIR is on a disk. The new boot is what the record says: it was written on another one."""
    attempt = either.sh(STUBBORN).begun()
    kill_together(attempt.watcher(), attempt.runner())
    until(lambda: not either.launcher.alive(attempt.directory))
    spec = either.launcher._known[attempt.directory].spec
    spec["place"] = {**spec["place"], "boot": "the one before"}
    here = spec["place"]["container"]
    either.launcher.bury(attempt.directory)
    attempt.fact("untold" if here else "reported")
    assert attempt.row().state == ("started" if here else "retry")


@pytest.mark.parametrize("by", ["another user, or older", "nobody"])
def test_a_labelled_process_that_is_no_member_is_noticed(by: str) -> None:
    nonce = f"nonce of {by}"
    label = label_of(nonce) if by != "nobody" else label_of("another nonce")
    script = f"import resource, time; resource.setrlimit(10, ({label}, {label})); print(flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            tree = Tree(nonce, "", {os.getpid()}, 2**62)  # every process is older than the attempt
            assert tree.has_strangers() is (by != "nobody")
        finally:
            process.kill()
    assert not tree.has_strangers()


HIDING = """
import os, subprocess
from coordd.runner.tree import Tree
from coordd.runner.watcher import Watcher

class Blind(Tree):
    def members(self):
        return []

spec = {"deadline": 0.0, "directory": "/", "on_lost": "relaunch", "kill_grace_s": 1.0}
pet, other = os.pipe()
watcher = Watcher(spec, Blind("nonce", "", {os.getpid()}, 2**62), 0, pet, 0)
child = subprocess.Popen(["/bin/sleep", "1000"])
print(watcher._kill_tree(0.0), flush=True)
os.kill(child.pid, 9)
while (left := watcher._kill_tree(0.01)):
    pass
print(left)
"""


def test_a_child_that_proc_hides_has_not_ended() -> None:
    """A watcher has every orphan of its attempt as its child, and the kernel tells it of children that /proc hides."""
    told = subprocess.run([sys.executable, "-c", HIDING], cwd=ROOT, check=True, capture_output=True, text=True)
    assert told.stdout.split() == ["[0]", "[]"]


def test_the_program_dies_with_its_runner_even_if_nobody_buries_it(either: World) -> None:
    """The kernel kills the program: no watcher is left, and there is no daemon."""
    attempt = either.sh(BEATING).begun()
    program = attempt.fact("started")["program"]
    kill_together(attempt.watcher(), attempt.runner())
    until(lambda: not exists(program), 10.0)


WIPED = """
import os, sys, time
out = os.environ["OUT"]
for number, leaves in enumerate((False, True, True)):
    if os.fork() == 0:
        if leaves:
            os.setsid()
        if number == 2 and os.fork() > 0:
            os._exit(0)
        script = 'echo $$ > "$1.new"; mv "$1.new" "$1"; sleep 1000; :'
        os.execve("/bin/sh", ["sh", "-c", script, "sh", f"{out}.{number}"], {})
while not all(os.path.exists(f"{out}.{number}") for number in range(3)):
    time.sleep(0.01)
open(out, "w").write("x")
time.sleep(1000)
"""


@pytest.mark.parametrize("who", ["both", "both, and the program", "a second watcher and the runner"])
def test_a_burial_ends_what_has_wiped_its_environment_and_left_the_session(either: World, who: str) -> None:
    attempt = either.python(WIPED).begun()
    pids = [int(Path(f"{attempt.out}.{number}").read_text()) for number in range(3)]
    if who == "a second watcher and the runner":
        # The second watcher is a child of the runner. After both deaths, init adopts the processes that it guarded.
        first = attempt.watcher()
        kill(first)
        until(lambda: attempt.watcher() != first)
    program = [attempt.fact("started")["program"]] if "program" in who else []
    kill_together(attempt.watcher(), attempt.runner(), *program)
    until(lambda: not either.launcher.alive(attempt.directory))
    either.launcher.bury(attempt.directory)
    attempt.fact("reported")
    row = attempt.over()
    left = [pid for pid in pids if exists(pid)]
    for pid in left:
        kill(pid)
    assert not left
    assert (row.state, row.attempt) == ("retry", 1)


def test_a_burial_that_is_cut_off_is_begun_again() -> None:
    """The daemon starts the burial again: the watcher that buries may be killed too, at any moment."""
    with cluster_of(1, budget=1) as cluster:
        (node,) = cluster.nodes
        cluster.job("hello", "until", cluster.go("on"), overlap="allow")
        cluster.start()
        run = str(node.call("run.trigger", job="hello", id="1")["id"])
        cluster.started(run)
        said = node.runner(run)
        with locked(cluster.ledger_path):  # so that the burial cannot finish
            kill_at_once(lambda: {pid for pid in (said["pid"], said["watcher"]) if exists(pid)})
            assert node.process is not None
            daemon = node.process.pid
            for _ in range(3):
                children = until(lambda: burials_of(daemon))
                time.sleep(0.2)
                for pid in children:
                    kill(pid)
        cluster.go("on").touch()
        assert cluster.becomes(run, "success")["attempt"] == 1
        assert cluster.attempts(run)[0]["reason"] == "the runner died"
        assert node.log().count("runner.vanished") == 1


@pytest.mark.parametrize("cause", ["cancel", "the runner is killed", "both are killed"])
def test_a_program_whose_main_thread_has_ended_is_alive(either: World, cause: str) -> None:
    attempt = either.python(HEADLESS, kill_grace_s=1.0)
    until(lambda: attempt.out.exists() and beats_on(attempt.out))
    attempt.fact("started")
    if cause == "cancel":
        either.launcher.command(attempt.directory, "cancel", "enough")
    elif cause == "the runner is killed":
        kill(attempt.runner())
    else:
        kill_together(attempt.watcher(), attempt.runner())
        until(lambda: not either.launcher.alive(attempt.directory))
        either.launcher.bury(attempt.directory)
        attempt.fact("reported")
    row = attempt.over()
    assert not beats_on(attempt.out)
    assert row.state == ("revoked" if cause == "cancel" else "retry")


def test_what_is_left_with_its_main_thread_ended_does_not_outlive_the_run(either: World) -> None:
    attempt = either.start([sys.executable, "-I", "-c", HEADLESS, "leave"])
    assert attempt.over().state == "success"
    assert not beats_on(attempt.out)


def test_the_runner_is_stopped(either: World) -> None:
    attempt = either.sh(f"({STUBBORN}) & {STUBBORN}", **SHORT).begun()
    os.kill(attempt.runner(), signal.SIGSTOP)
    attempt.over()
    assert attempt.pids() == []
    until_ = attempt.fact("ended")["boottime"]
    assert last_beat(attempt) <= until_
    assert attempt.attempt().state == "lost"


def test_the_runner_is_stopped_and_nothing_outlives_the_lease(world: World) -> None:
    """The same, with a ledger that takes no report. Then the lease itself is the limit."""
    attempt = world.sh(STUBBORN, **ROOMY).begun()
    os.kill(attempt.runner(), signal.SIGSTOP)
    end = lease_end(attempt)
    with locked(world.ledger.path):
        until(lambda: not attempt.pids())
    assert last_beat(attempt) < end


def test_without_the_ledger_a_run_ends_before_its_lease_does(either: World) -> None:
    attempt = either.sh(f"({STUBBORN}) & {STUBBORN}", **ROOMY).begun()
    with locked(either.ledger.path):
        end = lease_end(attempt)
        until(lambda: not attempt.pids())
    assert last_beat(attempt) < end
    assert "term" in attempt.lines(), "it was asked first"
    row = attempt.over()
    assert (row.state, row.attempt) == ("retry", 1)
    assert attempt.attempt().reason in WITHOUT_LEDGER


def test_without_the_ledger_a_held_run_goes_on(world: World) -> None:
    script = 'echo x >> "$OUT"; while [ ! -e "$OUT.go" ]; do sleep 0.02; done; read u _ < /proc/uptime; echo $u >> $OUT'
    attempt = world.sh(script, on_lost="hold", **SHORT).begun()
    with locked(world.ledger.path):
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


def test_strangers_are_never_killed(world: World) -> None:
    """A process that is older than the attempt does not belong to it, whatever its environment says."""
    spec, attempt = world.spec(["/bin/sh", "-c", STUBBORN])
    with subprocess.Popen(["/bin/sleep", "1000"], env={"COORDD_NONCE": spec["nonce"]}) as stranger:
        try:
            born = start_ticks(stranger.pid)
            until(lambda: boottime() * os.sysconf("SC_CLK_TCK") > born + 1)  # start times have this unit
            world.launcher.start(spec)
            attempt.begun()
            kill(attempt.runner())
            attempt.over()
            assert attempt.pids() == []
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.parametrize("spare", [{0}, {1}, {1, 4321}])
def test_a_tree_never_hangs_from_init(spare: set[int]) -> None:
    with pytest.raises(AssertionError):
        Tree("nonce", "", spare, 1)
