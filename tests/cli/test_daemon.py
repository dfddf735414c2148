"""coordctl against the real daemon: what a person does in a day."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import CTL, DAEMON, DEADLINE_S, ROOT, configuration, environment, open_directory, write_job

from coordd.config.jobkeys import TOP

HELLO = """
params = { who = "world" }
[command]
argv = ["/bin/sh", "-c", "echo hello $0", "{who}"]
"""

# Drops root's rights first, and then becomes coordctl. Perhaps only root can read the interpreter's files, so
# everything is loaded before that.
AS_STRANGER = """
import os, sys
import coordd.cli.show.brief, coordd.core.jobs.schedule
from coordd.cli.coordctl import main
uid, gid, groups = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if os.getuid() == 0:
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(gid)
    os.setuid(uid)
sys.argv[1:] = sys.argv[4:]
main()
"""

# Without root's rights this process plays the stranger, and the daemon believes to be another user.
AS_ANOTHER = "import os; os.getuid = lambda: 4_000_000; from coordd.cli.coordd import main; main()"


class Node:
    """A running daemon."""

    def __init__(self, directory: str, process: subprocess.Popen[str], argv: list[str]) -> None:
        self.directory = directory
        self.process = process
        self.argv = argv
        self.socket = f"{directory}/run/control.sock"

    def ctl(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*CTL, *args, "--socket", self.socket],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self.ctl(*args, "--output", "json", code=code).stdout)

    def wait_until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not what():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)


@contextlib.contextmanager
def running(directory: str, argv: list[str], *, state: str = "ready", **sections: str) -> Iterator[Node]:
    path = configuration(directory, **sections)
    argv = [*argv, "run", "--config", path]
    with open(f"{directory}/log", "w") as log:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment(), stderr=log, text=True)
    node = Node(directory, process, argv)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (os.path.exists(node.socket) and _state(node.socket) == state):
            assert process.poll() is None, open(f"{directory}/log").read()  # noqa: SIM115  # the process ends here
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield node
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _state(path: str) -> str:
    """What `echo '{"id":1,"method":"status"}' | nc -U -q1 SOCKET` prints: the state in it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return ""
        sock.sendall(b'{"id":1,"method":"status"}\n')
        sock.shutdown(socket.SHUT_WR)
        with sock.makefile("rb") as file:
            answer = file.read()
    assert answer.count(b"\n") == 1
    return str(json.loads(answer)["result"]["state"]) if answer else ""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "hello", HELLO)
        write_job(directory, "fails", '[command]\nargv = ["/bin/false"]\n')
        script = "echo begin; echo KeyError: jdbc://me:secret@db >&2; exit 3"
        write_job(directory, "speaks", f'[command]\nargv = ["/bin/sh", "-c", "{script}"]\n')
        write_job(directory, "long", '[command]\nargv = ["/bin/sh", "-c", "echo begun; exec sleep 600"]\n')
        write_job(directory, "nightly", 'schedule = "0 2 * * *"\n' + HELLO)
        write_job(directory, "bad", "nonsense = 1\n")
        write_job(directory, "berlin", 'schedule = "30 2 * * *"\ntimezone = "Europe/Berlin"\n' + HELLO)
        write_job(directory, "nowhere", 'tags = ["gpu"]\n' + HELLO)
        with running(directory, DAEMON) as made:
            yield made


def test_status_shows_this_node(node: Node) -> None:
    status = node.json("status")
    assert (status["node"], status["state"], status["pid"]) == ("edge-1", "ready", node.process.pid)
    text = node.ctl("status").stdout
    assert text.startswith("● edge-1 is ready\n")
    assert "7 enabled · 1 disabled: bad" in text
    assert node.json("node", "list")[0]["self"] is True
    assert "this node" in node.ctl("node", "list").stdout


def logged(node: Node, run: str) -> list[tuple[str, str]]:
    """(level, event) of the lines that the daemon's log has about a run."""
    with open(f"{node.directory}/log") as file:
        lines = [json.loads(line) for line in file if line.startswith("{")]
    return [(line["level"], line["event"]) for line in lines if line.get("run") == run]


def test_the_log_tells_what_became_of_runs(node: Node) -> None:
    node.ctl("run", "trigger", "hello", "--id", "told", "--wait")
    node.ctl("run", "trigger", "fails", "--id", "told", "--wait", code=1)
    node.wait_until(lambda: len(logged(node, "fails#told")) >= 2)
    assert logged(node, "hello#told") == [("info", "run.started"), ("info", "run.succeeded")]
    assert logged(node, "fails#told") == [("info", "run.started"), ("error", "run.failed")]


def test_a_triggered_run_succeeds_and_tells_its_story(node: Node) -> None:
    done = node.ctl("run", "trigger", "hello", "--arg", "who=Bob", "--id", "story", "--wait")
    assert done.stdout == "hello#story\n"
    assert "hello#story: success on edge-1" in done.stderr
    shown = node.json("run", "show", "hello#story")
    assert (shown["state"], shown["exit_code"], shown["args"]) == ("success", 0, {"who": "Bob"})
    assert [attempt["state"] for attempt in shown["attempts"]] == ["success"]
    assert "success" in node.ctl("run", "show", "hello#story").stdout
    assert re.search(r"^hello#story +success ", node.ctl("run", "list", "--job", "hello").stdout, re.MULTILINE)
    assert node.ctl("run", "logs", "hello#story").stdout == "hello Bob\n"
    assert node.ctl("run", "logs", "hello#story", "-f").stdout == "hello Bob\n"
    assert "succeeded on edge-1" in node.ctl("why", "hello#story").stdout
    assert any(row["id"] == "hello#story/0" for row in node.json("election", "list"))
    events = [json.loads(line) for line in node.ctl("events", "-n", "2000", "-o", "jsonl").stdout.splitlines()]
    of_run = [event["type"] for event in events if event.get("run") == "hello#story"]
    assert of_run == ["task-sent", "task-received", "task-started", "task-succeeded"]
    assert "hello#story" in node.ctl("watch").stdout


def test_the_same_id_is_the_same_run(node: Node) -> None:
    for _ in range(2):
        assert node.ctl("run", "trigger", "hello", "--id", "twice", "--wait").stdout == "hello#twice\n"
    assert len(node.json("run", "show", "hello#twice")["attempts"]) == 1
    other = node.ctl("run", "trigger", "hello", "--id", "twice", "--arg", "who=Eve", code=1)
    assert "hello#twice" in other.stderr


def test_a_run_that_fails_exits_1(node: Node) -> None:
    assert "exit code 1" in node.ctl("run", "trigger", "fails", "--wait", code=1).stderr


def test_a_failure_says_why_and_shows_the_last_lines_of_its_log(node: Node) -> None:
    said = node.ctl("run", "trigger", "speaks", "--id", "1", "--wait", code=1).stderr
    assert "exit code 3: KeyError: jdbc://me:***@db" in said
    shown = node.json("run", "show", "speaks#1")
    assert shown["reason"] == "exit code 3: KeyError: jdbc://me:***@db"
    assert shown["log_tail"] == ["begin", "KeyError: jdbc://me:***@db"]
    assert "the last lines of the log of attempt 0" in node.ctl("run", "show", "speaks#1").stdout


def test_what_cannot_be_triggered_says_why(node: Node) -> None:
    assert "nix" in node.ctl("run", "trigger", "hello", "--arg", "nix=1", code=2).stderr
    assert "no job 'nix'" in node.ctl("run", "trigger", "nix", code=1).stderr
    assert "nonsense" in node.ctl("run", "trigger", "bad", code=65).stderr
    assert node.ctl("run", "trigger", "hello", "--dry-run").stdout == "/bin/sh -c 'echo hello $0' world\n"


def test_a_long_run_is_timed_out_on_followed_and_cancelled(node: Node) -> None:
    ident = node.ctl("run", "trigger", "long", "--wait", "--timeout", "0.2", code=124).stdout.strip()
    with subprocess.Popen(
        [*CTL, "run", "logs", "-f", ident, "--socket", node.socket],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        node.wait_until(lambda: node.json("run", "show", ident)["state"] == "started")
        if follower.poll() is not None:  # it asked before there was a log
            assert follower.returncode == 1
        assert ident in node.ctl("run", "list", "--state", "started").stdout
        assert "is running on edge-1" in node.ctl("why", ident).stdout
        node.ctl("run", "revoke", ident, code=1)
        node.ctl("run", "cancel", ident)
        node.wait_until(lambda: node.json("run", "show", ident)["state"] == "revoked")
        follower.communicate(timeout=DEADLINE_S)
    assert node.ctl("run", "cancel", ident, code=1).stderr
    assert "begun" in node.ctl("run", "logs", ident).stdout


def test_schedules_are_shown_suspended_and_resumed(node: Node) -> None:
    assert [row["fire_time"][11:] for row in node.json("job", "next", "nightly", "-n", "3")] == ["02:00:00Z"] * 3
    assert "nightly@" in node.ctl("job", "next", "nightly").stdout
    assert "02:00:00" in node.ctl("job", "show", "nightly").stdout
    assert node.ctl("job", "suspend", "nightly").stdout == "nightly is suspended\n"
    assert re.search(r"^nightly +suspended ", node.ctl("job", "list").stdout, re.MULTILINE)
    assert "job resume nightly" in node.ctl("why", "nightly").stdout
    assert "Next:" not in node.ctl("why", "nightly").stdout
    assert "none of these starts until" in node.ctl("job", "next", "nightly").stderr
    assert node.json("job", "show", "nightly")["next"] is None
    node.ctl("job", "resume", "nightly")
    assert re.search(r"^nightly +enabled ", node.ctl("job", "list").stdout, re.MULTILINE)
    assert re.search(r"^bad +disabled .*nonsense", node.ctl("job", "list").stdout, re.MULTILINE)


def test_the_next_times_mark_each_change_of_clocks(node: Node) -> None:
    """A year of nights in Berlin has two of them; the time that spring skips is the first minute after the gap."""
    fires = node.json("job", "next", "berlin", "-n", "366")
    marked = [row for row in fires if row["clocks_s"]]
    assert sorted(row["clocks_s"] for row in marked[:2]) == [-3600.0, 3600.0]
    assert len(marked) in (2, 3)
    spring = next(row for row in marked if row["clocks_s"] > 0)
    assert spring["local"][11:] == "03:00:00+02:00"
    assert "1 h forward" in node.ctl("job", "next", "berlin", "-n", "366").stdout


def test_a_run_to_come_is_revoked(node: Node) -> None:
    coming = node.json("job", "next", "nightly", "-n", "9")[8]["run"]
    said = f"{coming} is not recorded yet; it is forbidden in advance, and will not run\n"
    assert node.ctl("run", "revoke", coming).stdout == said
    assert "was revoked" in node.ctl("why", coming).stdout


def test_drain_and_resume(node: Node) -> None:
    assert "is draining" in node.ctl("node", "drain", "--wait").stdout
    assert node.json("status")["state"] == "draining"
    assert node.ctl("node", "resume", "edge-1").stdout == "edge-1 is ready\n"
    assert "edge-9" in node.ctl("node", "drain", "edge-9", code=1).stderr


def test_clients_that_leave_in_the_middle_do_not_end_the_daemon(node: Node) -> None:
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(node.socket)
            sock.sendall(b'{"id":1,"method":"events.subscribe","params":{"backlog":2000}}\n' * 5)
    assert node.json("status")["pid"] == node.process.pid
    assert node.process.poll() is None


def test_the_rest_of_the_commands(node: Node) -> None:
    assert node.json("ledger", "status")["state"] == "connected"
    node.ctl("ping")
    assert node.json("call", "status")["node"] == "edge-1"
    node.ctl("call", "nix", code=2)
    assert {breaker["name"]: breaker["state"] for breaker in node.json("breaker", "list")} == {
        "bus": "closed",
        "ledger": "closed",
    }
    assert node.json("breaker", "reset", "ledger")["state"] == "closed"
    assert "there are bus, ledger" in node.ctl("breaker", "reset", "disk", code=1).stderr
    checks = {check["check"]: check["state"] for check in node.json("doctor", code=1)}
    assert checks["ledger"] == "ok"
    assert checks["fast start"] == "ok"
    assert checks["job bad"] == "fail"


def test_a_held_job_is_listed_and_nothing_launches_it_until_it_is_released(node: Node) -> None:
    """Fire times of a held job are never run: after its release it begins with the next one."""
    write_job(node.directory, "waiting", 'enabled = false\nschedule = "every 1s"\n' + HELLO)
    write_job(node.directory, "ticking", 'schedule = "every 1s"\n' + HELLO)  # its runs show that time goes by
    node.ctl("reload")
    shown = node.json("job", "show", "waiting")
    assert (shown["enabled"], shown["schedule"], shown["next"], shown["problems"]) == (False, "every 1s", None, [])
    assert re.search(r"^waiting +held ", node.ctl("job", "list").stdout, re.MULTILINE)
    assert "waiting" in node.json("status")["jobs"]["held"]
    assert "1 held: waiting" in node.ctl("status").stdout
    assert len(node.json("job", "next", "waiting", "-n", "3")) == 3
    assert "is held" in node.ctl("job", "next", "waiting").stderr
    assert "enabled = false" in node.ctl("why", "waiting").stdout
    for words in (("run", "trigger"), ("job", "activate")):
        refused = node.ctl(*words, "waiting", code=1)
        assert "is held" in refused.stderr
        assert "enabled = true" in refused.stderr
    node.wait_until(lambda: len(node.json("run", "list", "--job", "ticking", "--state", "success")) >= 3)
    assert node.json("run", "list", "--job", "waiting") == []

    write_job(node.directory, "waiting", 'schedule = "every 1s"\n' + HELLO)
    released = time.time()
    node.ctl("reload")
    node.wait_until(lambda: bool(node.json("run", "list", "--job", "waiting", "--state", "success")))
    first = min(row["id"] for row in node.json("run", "list", "--job", "waiting"))
    assert datetime.fromisoformat(first.partition("@")[2]).timestamp() > released
    for name in ("waiting", "ticking"):
        os.unlink(f"{node.directory}/jobs.d/{name}.toml")
    node.ctl("reload")


def test_a_plan_shows_what_a_directory_would_change_and_launches_nothing(node: Node, tmp_path: Path) -> None:
    shutil.copytree(f"{node.directory}/jobs.d", tmp_path / "new")
    (tmp_path / "new" / "bad.toml").unlink()
    assert node.json("plan", str(tmp_path / "new")) == [
        {
            "job": row["name"],
            "change": "same",
            "added": [],
            "removed": [],
            "moved": [],
            "launches_now": [],
            "compared_until": None,
        }
        if row["name"] != "bad"
        else {
            "job": "bad",
            "change": "removed",
            "added": [],
            "removed": [],
            "moved": [],
            "launches_now": [],
            "compared_until": None,
        }
        for row in sorted(node.json("job", "list"), key=lambda row: row["name"])
    ]
    before = node.json("job", "list")
    # Today's time must not move across this very moment: one that has passed would come once more.
    hour = 1 if datetime.now(UTC).hour == 2 else 3
    (tmp_path / "new" / "nightly.toml").write_text(f'schedule = "0 {hour} * * *"\n' + HELLO)
    (tmp_path / "new" / "hourly.toml").write_text('schedule = "@hourly"\n' + HELLO)
    (tmp_path / "new" / "hello.toml").unlink()
    found = {one["job"]: one for one in node.json("plan", str(tmp_path / "new")) if one["change"] != "same"}
    assert {name: one["change"] for name, one in found.items()} == {
        "bad": "removed",
        "hello": "removed",
        "hourly": "added",
        "nightly": "changed",
    }
    assert {(old[11:], new[11:]) for old, new in found["nightly"]["moved"]} == {("02:00:00Z", f"0{hour}:00:00Z")}
    assert len(found["hourly"]["added"]) in (1440, 1441)
    drawn = node.ctl("plan", str(tmp_path / "new"))
    assert re.search(r"^nightly +changed +0 +0 +60 +nothing", drawn.stdout, re.MULTILINE)
    assert "moves " in drawn.stdout
    (tmp_path / "new" / "broken.toml").write_text("schedule = 3\n")
    assert "broken.toml" in node.ctl("plan", str(tmp_path / "new"), code=65).stderr
    assert "is not a directory" in node.ctl("plan", str(tmp_path / "absent"), code=1).stderr
    assert node.json("job", "list") == before


def test_reload_is_all_or_nothing(node: Node) -> None:
    write_job(node.directory, "more", HELLO)
    assert "added: more" in node.ctl("reload").stdout
    write_job(node.directory, "more", "schedule = 3\n" + HELLO)
    refused = node.ctl("reload", code=65)
    assert "more.toml" in refused.stderr
    assert node.json("job", "show", "more")["enabled"]  # as it was


def test_roles() -> None:
    if os.getuid() == 0:
        uid, gid, argv = 65533, 65534, DAEMON
        group = next(g for g in grp.getgrall() if g.gr_gid not in (0, gid))
        groups = str(group.gr_gid)
    else:
        uid, gid, groups, group = os.getuid(), os.getgid(), "", grp.getgrgid(os.getgid())
        argv = [sys.executable, "-c", AS_ANOTHER]

    def ask(asked: str, given: str, *args: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", AS_STRANGER, str(uid), str(gid), given, *args, "--socket", asked],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        os.mkdir(f"{directory}/closed", mode=0)
        code, said = ask(f"{directory}/closed/control.sock", "", "status")
        assert (code, "cannot be opened" in said) == (77, True)
        write_job(directory, "theirs", HELLO)
        write_job(directory, "ours", f'owner = "{group.gr_name}"\n' + HELLO)
        with running(directory, argv) as node:
            assert ask(node.socket, "", "status")[0] == 0
            code, said = ask(node.socket, "", "run", "trigger", "theirs")
            assert (code, "operator group" in said) == (77, True)
            assert ask(node.socket, "", "node", "drain")[0] == 77
            assert ask(node.socket, "", "reload")[0] == 77
            if groups:
                assert ask(node.socket, "", "run", "trigger", "ours")[0] == 77
            assert ask(node.socket, groups, "run", "trigger", "ours", "--id", "o", "--wait")[0] == 0
            assert ask(node.socket, groups, "run", "trigger", "theirs")[0] == 77
            assert "(hidden)" in ask(node.socket, "", "run", "show", "ours#o", "--output", "json")[1]
            if groups:
                assert ask(node.socket, "", "run", "logs", "ours#o")[0] == 77
            assert ask(node.socket, groups, "run", "logs", "ours#o") == (0, "hello world\n")
        with running(directory, argv, control=f'operator_group = "{group.gr_name}"') as node:
            assert ask(node.socket, groups, "run", "trigger", "theirs", "--wait")[0] == 0
            assert ask(node.socket, groups, "node", "drain")[0] == 0
            assert ask(node.socket, groups, "reload")[0] == 77


@pytest.mark.parametrize(
    ("words", "code"),
    [(("status",), 4), (("ping",), 69), (("doctor",), 69), (("run", "list"), 69), (("run", "trigger", "hello"), 69)],
)
def test_a_daemon_that_hangs_is_not_waited_for(node: Node, words: tuple[str, ...], code: int) -> None:
    """Without --timeout too: a person looks at the clock after ten seconds."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        done = (
            node.ctl(*words, "--timeout", "1", code=code)
            if words[-1] != "hello"
            else node.ctl("--timeout", "1", *words, code=code)
        )
        assert done.stdout == ""
        assert "did not answer" in done.stderr
        assert "within 1 s" in done.stderr
        if words == ("ping",):
            assert "within 10 s" in node.ctl(*words, code=code).stderr
    finally:
        node.process.send_signal(signal.SIGCONT)
    node.ctl("ping")


def test_a_trigger_tells_at_once_that_nothing_comes_of_it(node: Node) -> None:
    ident = node.ctl("run", "trigger", "long", "--id", "first").stdout.strip()
    node.wait_until(lambda: node.json("run", "show", ident)["state"] == "started")
    done = node.ctl("run", "trigger", "long", "--id", "second", code=1)
    assert (done.stdout, "long#second: rejected: overlap: long#first is started" in done.stderr) == (
        "long#second\n",
        True,
    )
    assert (
        json.loads(node.ctl("run", "trigger", "long", "--id", "third", "-o", "json", code=1).stdout)["state"]
        == "rejected"
    )
    node.ctl("run", "cancel", ident)
    node.ctl("run", "revoke", "hello#never")
    done = node.ctl("run", "trigger", "hello", "--id", "never", code=1)
    assert "hello#never: revoked: revoked by" in done.stderr
    assert "revoked" in node.ctl("run", "trigger", "hello", "--id", "never", "--wait", code=1).stderr


def test_a_trigger_tells_at_once_that_nobody_can_start_it_and_why(node: Node) -> None:
    done = node.ctl("run", "trigger", "nowhere", "--id", "1")
    assert "recorded in the ledger" in done.stderr
    assert "tags do not match" in done.stderr
    assert "before with the same id: nothing new starts" in node.ctl("run", "trigger", "nowhere", "--id", "1").stderr
    done = node.ctl("run", "trigger", "nowhere", "--id", "1", "--wait", "--timeout", "3", code=124)
    assert "nowhere#1: pending" in done.stderr
    assert "tags do not match" in done.stderr
    node.ctl("run", "revoke", "nowhere#1")


def test_events_are_filtered_before_their_number_is_limited_and_without_heartbeats(node: Node) -> None:
    node.ctl("run", "trigger", "hello", "--id", "event", "--wait")

    def heartbeats() -> int:
        shown = node.ctl("events", "--heartbeats", "-n", "2000", "-o", "jsonl").stdout.splitlines()
        return sum(json.loads(line)["type"] == "worker-heartbeat" for line in shown)

    node.wait_until(lambda: heartbeats() > 10)
    shown = node.ctl("events", "--type", "task-succeeded", "-n", "1", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["type"] for line in shown] == ["task-succeeded"]
    assert "worker-heartbeat" not in node.ctl("events", "-n", "2000").stdout
    assert "worker-heartbeat" in node.ctl("events", "--type", "worker-heartbeat", "-n", "1").stdout
    done = node.ctl("events", "--type", "task-suceeded", code=2)
    assert 'there is no event type "task-suceeded"' in done.stderr
    assert 'did you mean "task-succeeded"?' in done.stderr


def test_tables_name_nodes_and_show_tells_the_process(node: Node) -> None:
    node.ctl("run", "trigger", "hello", "--id", "named", "--wait")
    pid = node.process.pid
    line = next(line for line in node.ctl("run", "list").stdout.splitlines() if line.startswith("hello#named "))
    assert " edge-1 " in line
    assert f"edge-1.{pid}" not in line
    assert f"edge-1 (pid {pid})" in node.ctl("run", "show", "hello#named").stdout
    assert f"edge-1.{pid}" not in node.ctl("election", "list").stdout


def test_runs_are_listed_by_node_and_since(node: Node) -> None:
    node.ctl("run", "trigger", "hello", "--id", "listed", "--wait")
    assert "hello#listed" in [run["id"] for run in node.json("run", "list", "--node", "edge-1", "--since", "1h")]
    assert node.json("run", "list", "--node", "edge-2") == []
    assert node.json("run", "list", "--since", "2199-01-01") == []
    assert "--since" in node.ctl("run", "list", "--since", "yesterday", code=2).stderr


def test_job_show_shows_every_key_with_the_value_that_counts(node: Node) -> None:
    shown = node.json("job", "show", "hello")
    assert shown["command"]["argv"] == ["/bin/sh", "-c", "echo hello $0", "{who}"]
    assert (shown["start_within_s"], shown["priority"], shown["placement"]) == (3600.0, 0, "first")
    retry = {"attempts": 1, "relaunches": 5, "submits": 3, "delay_s": 30.0, "backoff": "fixed", "jitter": 0.0}
    retry |= {"never_on": []}
    assert shown["retry"] == retry
    told = {key.removesuffix("_s").removesuffix("_offset") for key in shown}
    assert set(TOP) - {"spark"} <= told  # spark or command
    assert "relaunches=5" in node.ctl("job", "show", "hello").stdout


def test_a_misspelt_job_is_told_the_nearest(node: Node) -> None:
    assert "did you mean nightly?" in node.ctl("job", "show", "nigthly", code=1).stderr
    assert "Did you mean nightly?" in node.ctl("why", "nigthly", code=1).stdout


def test_a_daemon_that_stops_is_not_running_and_starts_again() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        with running(directory, DAEMON) as first:
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(DEADLINE_S) == 0
            assert first.ctl("status", code=3).stdout == ""
            assert "coordd run" in first.ctl("node", "list", code=69).stderr
        with running(directory, DAEMON) as second:
            second.ctl("status")
            second.process.send_signal(signal.SIGKILL)
            second.process.wait(DEADLINE_S)
            assert os.path.exists(second.socket)  # left behind, and nobody listens
            second.ctl("status", code=3)
        with running(directory, DAEMON) as third:
            third.ctl("status")
            taken = subprocess.run(
                third.argv, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
            assert taken.returncode in (69, 78)
            assert re.match(r"coordd: .*another coordd", taken.stderr.splitlines()[-1])
            third.ctl("status")
