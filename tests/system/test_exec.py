"""coordd exec on real daemons: one of its callers runs the command, and the others wait for its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import LIMIT_S, ROOT, exists, kill_at_once, until
from system.test_limits import most_alive
from system.test_policies import trigger

NOT_RUN = 75

# Runs as another user, who may not be able to read this Python. So it loads all modules first.
STRANGER = """
import os, sys
import coordd.adapters.ledger.by_daemon, coordd.core.attempt, coordd.once.foreground
from coordd.once.command import main
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
os._exit(main(sys.argv[2:]))
"""


class Exec:
    """One call of coordd exec, and its result."""

    def __init__(self, node: Node, *options: str, command: list[str], **more: Any) -> None:
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COORDD_SOCKET": str(node.socket)}
        self.node = node
        self._out: tuple[bytes, bytes] | None = None
        self.process = subprocess.Popen(
            [*more.pop("start", [sys.executable, "-m", "coordd", "exec"]), *options, "--", *command],
            cwd=node.cluster.path,
            env={**env, **more.pop("env", {})},
            stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **more,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def code(self) -> int:
        return self.said()[0]

    def said(self, data: bytes | None = None) -> tuple[int, str, str]:
        """The exit code, the standard output and the standard error."""
        if not self._out:
            self._out = self.process.communicate(data, timeout=LIMIT_S)
        return self.process.returncode, self._out[0].decode(), self._out[1].decode()

    @property
    def runner(self) -> int:
        """Wait until this call has a runner; returns the runner's pid."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return until(lambda: [int(pid) for pid in path.read_text().split()], why="a runner")[0]

    def family(self) -> set[int]:
        """The pids of this call, its runner and the command."""
        found, waiting = set(), [self.pid]
        while waiting:
            pid = waiting.pop()
            found.add(pid)
            path = Path(f"/proc/{pid}/task/{pid}/children")
            waiting += [int(child) for child in path.read_text().split()] if path.exists() else []
        return found


def program(cluster: Cluster, verb: str, what: object = "", *, ending: str = "exit", code: int = 0) -> list[str]:
    """A command that writes when it runs, and whether another attempt of its run was alive (lab/processes.py)."""
    words = [str(cluster.program), str(cluster.log_path), verb, str(what), ending, str(code)]
    return [sys.executable, "-I", "-S", "-E", *words]


def starts(cluster: Cluster, job: str) -> list[tuple[str, int, str]]:
    assert not [entry for entry in cluster.entries() if entry.word == "overlap"], "two attempts were alive at a time"
    return [(entry.run, entry.attempt, entry.node) for entry in cluster.starts() if entry.run.startswith(f"{job}#")]


@contextmanager
def started(size: int, **settings: Any) -> Iterator[Cluster]:
    with cluster_of(size, **settings) as cluster:
        yield cluster.start()


def running(cluster: Cluster, callers: list[Exec], attempt: int = 0) -> Exec:
    """Wait until the command of an attempt runs; returns the caller that runs it."""
    entry = until(lambda: [one for one in cluster.starts() if one.attempt == attempt], why=f"attempt {attempt}")[0]
    return next(caller for caller in callers if caller.node.name == entry.node)


@pytest.mark.parametrize("key", [("--every", "1h"), ("--tick", "0 * * * *"), ("--id", "nightly")])
@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_five_crontabs_run_it_once(backend: str, key: tuple[str, str]) -> None:
    with started(5, backend=backend) as cluster:
        command = program(cluster, "sleep", 0.3, code=3)
        callers = [Exec(node, "--job", "report", *key, "-E", "9", command=command) for node in cluster.nodes]
        said = [caller.said() for caller in callers]
        late = [Exec(node, "--job", "report", *key, "-E", "9", command=command).said() for node in cluster.nodes[:2]]
        runs = {run for run, _, _ in starts(cluster, "report")}  # two, if the hour has just begun

        assert len(starts(cluster, "report")) == len(runs) in (1, 2)
        assert sorted(code for code, _, _ in said + late) == sorted([3] * len(runs) + [9] * (7 - len(runs)))
        assert {out + err for _, out, err in said} == {""}, "cron sends no mail"
        assert {cluster.row(run)["state"] for run in runs} == {"failure"}, "nobody tries a failure again"
        assert {row["run"] for row in cluster.rows()} == runs


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_loser_takes_over_from_a_machine_that_dies(backend: str) -> None:
    with started(3, backend=backend) as cluster:
        command = program(cluster, "until", cluster.go("on"))
        callers = [Exec(node, "--job", "r", "--id", "1", command=command) for node in cluster.nodes]
        owner = running(cluster, callers)
        family = owner.family()
        kill_at_once(lambda: {pid for pid in family if exists(pid)} | owner.node.family())
        losers = [caller for caller in callers if caller is not owner]
        heir = running(cluster, losers, attempt=1)
        assert owner.code() == -signal.SIGKILL
        cluster.go("on").touch()

        assert heir.code() == 0
        assert [caller.code() for caller in losers if caller is not heir] == [NOT_RUN]
        assert cluster.row("r#1")["state"] == "success"
        assert [attempt for _, attempt, _ in starts(cluster, "r")] == [0, 1]


def test_a_flushed_redis_of_production_hears_of_a_run_again() -> None:
    with started(2, backend="production") as cluster:
        command = program(cluster, "until", cluster.go("on"))
        callers = [Exec(node, "--job", "r", "--id", "1", command=command) for node in cluster.nodes]
        owner = running(cluster, callers)
        token = cluster.row("r#1")["token"]
        cluster.production.redis.cli("FLUSHALL")
        until(lambda: cluster.row("r#1").get("token") == token, why="it is restored")
        cluster.go("on").touch()

        assert sorted(caller.code() for caller in callers) == [0, NOT_RUN]
        assert owner.code() == 0
        assert [attempt for _, attempt, _ in starts(cluster, "r")] == [0]
        assert cluster.row("r#1")["state"] == "success"


@pytest.mark.parametrize("victim", ["caller", "runner"])
def test_a_killed_half_ends_the_command_and_a_loser_takes_over(victim: str) -> None:
    with started(2, lease=300.0) as cluster:  # longer than this test: nobody waits for its end
        command = program(cluster, "until", cluster.go("on"))
        callers = [Exec(node, "--job", "r", "--id", "1", command=command) for node in cluster.nodes]
        owner = running(cluster, callers)
        (loser,) = [caller for caller in callers if caller is not owner]
        family = owner.family()
        os.kill(owner.pid if victim == "caller" else owner.runner, signal.SIGKILL)
        running(cluster, [loser], attempt=1)
        cluster.go("on").touch()

        assert loser.code() == 0
        assert owner.code() == (-9 if victim == "caller" else 137)
        until(lambda: not [pid for pid in family if exists(pid)], why="nothing of it is left")
        assert [attempt for _, attempt, _ in starts(cluster, "r")] == [0, 1]


def test_a_stopped_runner_is_killed_before_its_lease_ends() -> None:
    with started(2) as cluster:
        command = program(cluster, "until", cluster.go("on"))
        callers = [Exec(node, "--job", "r", "--id", "1", command=command) for node in cluster.nodes]
        owner = running(cluster, callers)
        (loser,) = [caller for caller in callers if caller is not owner]
        os.kill(owner.runner, signal.SIGSTOP)
        running(cluster, [loser], attempt=1)
        cluster.go("on").touch()

        assert (owner.code(), loser.code()) == (137, 0)
        assert [attempt for _, attempt, _ in starts(cluster, "r")] == [0, 1]


def test_the_command_outlives_its_daemon_but_not_its_lease() -> None:
    with started(2) as cluster:
        node, other = cluster.nodes
        command = program(cluster, "until", cluster.go("on"))
        caller = Exec(node, "--job", "r", "--id", "1", command=command)
        cluster.started("r#1")
        node.kill()
        node.start()
        time.sleep(2 * cluster.timing["renew_interval"])  # it renews through the new daemon
        loser = Exec(other, "--job", "r", "--id", "1", command=command)
        cluster.go("on").touch()
        assert (caller.code(), loser.code()) == (0, NOT_RUN)

        command = program(cluster, "until", cluster.go("never"))
        caller = Exec(node, "--job", "r", "--id", "2", command=command)
        cluster.started("r#2")
        node.kill()
        loser = Exec(other, "--job", "r", "--id", "2", command=program(cluster, "sleep", 0.1))

        assert loser.code() == 0
        until(lambda: not [entry for entry in cluster.starts("r#2")[:1] if exists(entry.pid)], why="it was killed")
        caller.process.kill()  # it would repeat its report for minutes
        caller.code()
        assert [attempt for _, attempt, _ in starts(cluster, "r")] == [0, 0, 1]


def test_a_lock_skips_or_waits() -> None:
    with started(2) as cluster:
        one, two = cluster.nodes
        holder = Exec(one, "--job", "lock", command=program(cluster, "until", cluster.go("on")))
        cluster.launched(1)
        skipped = [Exec(node, "--job", "lock", command=program(cluster, "sleep", 0)).code() for node in (one, two)]
        waiting = [Exec(node, "--job", "lock", "--wait", command=program(cluster, "sleep", 0)) for node in (one, two)]
        other = Exec(two, "--job", "other", command=program(cluster, "sleep", 0)).code()
        cluster.go("on").touch()

        assert (holder.code(), skipped, other) == (0, [NOT_RUN, NOT_RUN], 0)
        assert [caller.code() for caller in waiting] == [0, 0]
        entries = [entry for entry in cluster.entries() if entry.run.startswith("lock#")]
        assert [entry.word for entry in entries] == ["start", "end"] * 3, "one after the other"


def test_a_lock_of_a_dead_machine_is_free_after_its_lease() -> None:
    with started(2) as cluster:
        one, two = cluster.nodes
        holder = Exec(one, "--job", "lock", command=program(cluster, "until", cluster.go("never")))
        cluster.launched(1)
        family = holder.family()
        kill_at_once(lambda: {pid for pid in family if exists(pid)} | one.family())
        assert holder.code() == -signal.SIGKILL

        assert Exec(two, "--job", "lock", "--wait", command=program(cluster, "sleep", 0)).code() == 0


def test_without_a_daemon_the_command_is_not_started() -> None:
    with cluster_of(1) as cluster:
        node = cluster.nodes[0]
        code, out, err = Exec(node, "--job", "r", "--id", "1", command=["echo", "started"]).said()

        assert (code, out) == (69, "")
        assert "no daemon answers" in err
        assert "COMMAND was not started" in err


def test_streams_signals_and_exit_codes_are_the_commands_own() -> None:
    with started(1) as cluster:
        node = cluster.nodes[0]
        echo = Exec(node, "--job", "a", command=["sh", "-c", "cat; echo e >&2; pwd; exit 7"], stdin=subprocess.PIPE)
        assert echo.said(b"in\n") == (7, f"in\n{cluster.path}\n", "e\n")
        assert Exec(node, "--job", "b", command=["sh", "-c", "kill -USR1 $$"]).code() == 128 + signal.SIGUSR1
        assert Exec(node, "--job", "c", command=["/nowhere/at/all"]).said()[0] == 127
        assert Exec(node, "--job", "c2", command=["/etc/passwd"]).said()[0] == 126
        assert {row["job"]: row["exit_code"] for row in cluster.rows() if row["job"][0] == "c"} == {"c": 127, "c2": 126}

        script = "trap 'echo term; exit 5' TERM; trap 'echo int' INT; touch ready; while :; do sleep 0.05; done"
        caller = Exec(node, "--job", "d", command=["sh", "-c", script])
        until((cluster.path / "ready").exists)
        os.kill(caller.pid, signal.SIGINT)
        until(lambda: caller.process.stdout and caller.process.stdout.readline() == b"int\n")
        os.kill(caller.pid, signal.SIGTERM)
        assert caller.said()[:2] == (5, "term\n")
        assert {row["state"] for row in cluster.rows() if row["job"] == "d"} == {"failure"}, "nobody takes it over"

        nohup = Exec(node, "--job", "e", command=["sh", "-c", "kill -HUP $$; echo on"], preexec_fn=_ignore_hangups)
        assert nohup.said()[:2] == (0, "on\n")


def _ignore_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_the_command_has_the_callers_terminal() -> None:
    """One ^C reaches the command once, and the command can read from /dev/tty."""
    import pty

    script = (
        "import os, signal, sys\n"
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "tty = open('/dev/tty')\n"
        "print('ready', os.isatty(0), os.tcgetpgrp(0) == os.getpgrp(), flush=True)\n"
        "line = tty.readline()\n"
        "print('got', line.strip(), len(count), flush=True)\n"
    )
    with started(1) as cluster:
        node = cluster.nodes[0]
        pid, fd = pty.fork()
        if pid == 0:
            args = [sys.executable, "-m", "coordd", "exec", "--job", "t", "--", sys.executable, "-c", script]
            os.chdir(ROOT)
            os.execve(sys.executable, args, {"COORDD_SOCKET": str(node.socket), "PATH": "/usr/bin:/bin"})
        said = b""

        def read(mark: bytes) -> bytes:
            nonlocal said
            limit = time.monotonic() + LIMIT_S
            while mark not in said:
                assert time.monotonic() < limit, said
                said += os.read(fd, 4096)
            return said

        read(b"ready True True")
        os.write(fd, b"\x03")
        read(b"^C")
        os.write(fd, b"hello\n")
        read(b"got hello 1")
        _, status = os.waitpid(pid, 0)
        os.close(fd)

        assert os.waitstatus_to_exitcode(status) == 0


def test_a_name_belongs_to_a_user_unless_a_job_file_shares_it() -> None:
    def caller(node: Node, uid: int, *options: str, command: list[str]) -> Exec:
        return Exec(node, *options, command=command, start=[sys.executable, "-c", STRANGER, str(uid)])

    with started(1) as cluster:
        node = cluster.nodes[0]
        cluster.path.chmod(0o755)
        node.runtime_dir.chmod(0o755)
        cluster.job("shared", "sleep", 0)
        node.call("reload")
        script = f"while [ ! -e {cluster.go('on')} ]; do sleep 0.05; done"
        holder = caller(node, 65534, "--job", "backup", command=["sh", "-c", script])
        until(lambda: [row for row in cluster.rows() if row["state"] == "started"], why="it holds the lock")

        assert caller(node, 65533, "--job", "backup", command=["true"]).code() == 0, "not their lock"
        assert Exec(node, "--job", "backup", command=["true"]).code() == 0, "not root's either"
        assert caller(node, 65534, "--job", "backup", command=["true"]).code() == NOT_RUN
        assert caller(node, 65534, "--job", "shared", command=["true"]).said()[0] == 77
        cluster.go("on").touch()
        assert holder.code() == 0
        assert {row["job"] for row in cluster.rows()} == {"backup", "backup~65533", "backup~65534"}


@pytest.mark.parametrize("limits", [{"pool": "heavy"}, {"concurrency": 1}])
def test_the_limits_of_a_job_file_of_that_name_hold(limits: dict[str, Any]) -> None:
    """Three commands with ids of their own, on both machines: by their own record one is alive at a time."""
    with cluster_of(2, backend="production") as cluster:
        for node in cluster.nodes:
            node.settings = "\n[pools]\nheavy = 1\n"
        cluster.job("report", "sleep", 0, overlap="allow", **limits)
        cluster.start()
        command = program(cluster, "sleep", 0.6)
        nodes = (*cluster.nodes, cluster.nodes[0])
        callers = [
            Exec(node, "--job", "report", "--id", f"{number}", command=command) for number, node in enumerate(nodes)
        ]
        assert [caller.said()[0] for caller in callers] == [0, 0, 0]

        assert len(starts(cluster, "report")) == 3
        assert most_alive(cluster.entries()) == 1


def test_a_caller_does_not_pass_runs_that_wait_for_the_pool() -> None:
    with cluster_of(2, backend="production") as cluster:
        for node in cluster.nodes:
            node.settings = "\n[pools]\nheavy = 1\n"
        cluster.job("held", "until", cluster.go("held"), pool="heavy")
        cluster.job("etl", "sleep", 1.5, overlap="allow", pool="heavy")
        cluster.job("report", "sleep", 0, pool="heavy")
        one, two = cluster.start().nodes
        held = trigger(one, "held")
        cluster.started(held)
        waiting = [trigger(one, "etl", f"{number}") for number in range(2)]
        until(lambda: all("pool heavy" in two.why(run) for run in waiting))
        caller = Exec(two, "--verbose", "--job", "report", "--id", "1", command=program(cluster, "sleep", 0))
        until(lambda: cluster.row("report#1").get("state") == "pending", why="its place in the line is in the ledger")
        cluster.go("held").touch()

        code, _, err = caller.said()
        assert (code, "goes first" in err) == (0, True)
        order = [entry.run for entry in sorted(cluster.starts(), key=lambda entry: entry.at)]
        assert order == [held, *waiting, "report#1"]


PUBLISHES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from coordd import guard
target = sys.argv[2]
assert guard.still_owner()
staging = guard.staging(target)
open(staging, "w").write(os.environ["COORDD_TOKEN"])
print(guard.publish(staging, target)[0].how)
"""


def test_the_command_may_ask_and_publish() -> None:
    with started(1) as cluster:
        target = cluster.path / "target"
        command = [sys.executable, "-c", PUBLISHES, str(ROOT), str(target)]
        code, out, err = Exec(cluster.nodes[0], "--job", "report", "--id", "x", command=command).said()

        assert (code, out.strip()) == (0, "now"), err
        (row,) = cluster.rows()
        assert (row["state"], row["commit_token"]) == ("success", row["token"])
        assert target.read_text() == str(row["token"])
