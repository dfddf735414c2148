"""coordd and coordctl as programs: on a terminal, in a pipe, interrupted; and what they load."""

from __future__ import annotations

import json
import os
import pty
import pwd
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.fake_daemon import (
    CTL,
    DAEMON,
    DEADLINE_S,
    EVENT,
    ROOT,
    RUN,
    FakeDaemon,
    Stream,
    configuration,
    environment,
    write_job,
)

from coordd.adapters import onhost
from coordd.cli import coordctl, coordd as coordd_module
from coordd.cli.checking import Found, _of_node
from coordd.config.sections import Config

# ---- as programs


def on_terminal(argv: list[str], env: dict[str, str], keys: bytes = b"", until: bytes = b"") -> tuple[int, bytes]:
    """Run a program on a terminal of its own; press ``keys`` once ``until`` has been printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(argv[0], argv, env)
    said = b""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, said
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            data = b""  # the other end is closed
        if not data:
            break
        said += data
        if keys and until in said:
            os.write(terminal, keys)
            keys = b""
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said


def test_colour_is_for_terminals_and_can_be_refused(daemon: FakeDaemon) -> None:
    daemon.answers["run.list"] = [RUN]
    for command in (["status"], ["run", "list"]):
        argv = [*CTL, *command, "--socket", daemon.path]
        assert b"\x1b[" in on_terminal(argv, environment())[1]
        assert b"\x1b[" not in on_terminal(argv, environment(NO_COLOR="1"))[1]
        piped = subprocess.run(
            argv, env=environment(FORCE_COLOR="1"), capture_output=True, timeout=DEADLINE_S, check=True
        )
        assert b"\x1b[" not in piped.stdout


@pytest.mark.parametrize(("keys", "codes"), [(b"q", {0}), (b"\x03", {0, 130})])
def test_watch_ends_with_q_and_with_ctrl_c(daemon: FakeDaemon, keys: bytes, codes: set[int]) -> None:
    daemon.answers["node.list"] = [{"hostname": "edge-1", "state": "alive", "self": True, "active": 0}]
    daemon.answers["run.list"] = [RUN]
    daemon.answers["events.subscribe"] = Stream({"event": EVENT})
    argv = [*CTL, "watch", "-n", "0.1", "--socket", daemon.path]
    code, said = on_terminal(argv, environment(), keys=keys, until=b"task-started")
    assert code in codes
    assert b"Traceback" not in said
    assert said.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in said  # the screen is given back


def test_ctrl_c_leaves_no_traceback(daemon: FakeDaemon) -> None:
    daemon.answers["events.subscribe"] = Stream({"event": EVENT})
    with subprocess.Popen(
        [*CTL, "events", "-f", "--socket", daemon.path],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "task-started" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_reader_that_goes_away_leaves_no_traceback(daemon: FakeDaemon) -> None:
    daemon.answers["run.list"] = [{**RUN, "id": f"j#{number}"} for number in range(5000)]
    for output in ("table", "json", "jsonl"):
        with subprocess.Popen(
            [*CTL, "run", "list", "-o", output, "--socket", daemon.path],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            errors = process.stderr.read()
            process.wait(DEADLINE_S)
        assert errors == b""
        assert process.returncode in (-signal.SIGPIPE, 1)


def modules(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after running some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return set(done.stderr.split())


def test_what_need_not_be_loaded_is_not(daemon: FakeDaemon) -> None:
    daemon.answers["run.list"] = [RUN]
    run = "from coordd.cli.coordctl import program; program.main({args!r}, standalone_mode=False)"
    for args in (["status"], ["run", "list", "-o", "json"], ["why", "--help"]):
        loaded = modules(run.format(args=[*args, "--socket", daemon.path]))
        assert loaded.isdisjoint({"rich", "trio", "structlog", "msgspec", "coordd.daemon", "asyncio"})
    assert "rich.table" in modules(run.format(args=["run", "list", "--socket", daemon.path]))
    loaded = modules(
        "import coordd.cli.coordd; from coordd.adapters import logs; logs.configure(); import coordd.daemon"
    )
    assert "trio" in loaded
    assert "rich" not in loaded
    assert "rich" not in modules("import coordd.cli.coordd")


def test_completion_knows_commands_and_jobs(daemon: FakeDaemon) -> None:
    daemon.answers["job.list"] = [{"name": "nightly"}, {"name": "hourly"}]

    def complete(words: str, **env: str) -> str:
        more = {"_COORDCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
        done = subprocess.run(
            CTL,
            cwd=ROOT,
            env=environment(**more, **env),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    assert "plain,trigger" in complete("coordctl run ")
    assert complete("coordctl job show ", COORDD_SOCKET=daemon.path).split() == ["plain,nightly", "plain,hourly"]
    assert complete("coordctl job show ", COORDD_SOCKET="/nothing").strip() == ""
    assert "_COORDCTL_COMPLETE=bash_source" in CliRunner().invoke(coordctl.program, ["--help"]).stdout


# ---- coordd


def coordd(*args: str) -> Result:
    return CliRunner().invoke(coordd_module.program, args, prog_name="coordd")


def test_check_config_says_ok_or_names_each_problem(directory: str) -> None:
    path = configuration(directory)
    write_job(directory, "good", '[command]\nargv = ["/bin/true"]\n')
    done = coordd("check-config", path)
    assert (done.exit_code, done.stdout) == (0, "ok: 1 jobs\n")
    write_job(directory, "bad", 'shedule = "every 1m"\n[command]\nargv = ["/bin/true"]\n')
    done = coordd("check-config", path)
    assert done.exit_code == 65
    assert done.stdout.startswith(f"{directory}/jobs.d/bad.toml:1: shedule: ")
    assert len(done.stdout.splitlines()) == 1
    bad = configuration(directory, cluster="lease = 1.0\nleese = 2.0")
    done = coordd("check-config", bad)
    assert done.exit_code == 78
    assert 'did you mean "lease"?' in done.stdout
    assert coordd("check-config", f"{directory}/nothing.toml").exit_code == 78


def test_check_config_takes_warnings_lightly(directory: str) -> None:
    path = configuration(directory)
    write_job(directory, "odd", 'jitter = "5s"\n[command]\nargv = ["/bin/true"]\n')
    done = coordd("check-config", path)
    assert done.exit_code == 0
    assert "warning" in done.stdout
    assert done.stdout.endswith("ok: 1 jobs\n")


def test_check_config_names_what_this_machine_does_not_have(directory: str) -> None:
    path = configuration(directory)
    write_job(directory, "absent", f'owner = "no-such-group"\n[spark]\napplication = "{directory}/no.py"\n')
    write_job(directory, "elsewhere", '[spark]\napplication = "hdfs:///jobs/a.py"\nfiles = ["/{run}.csv"]\n')
    done = coordd("check-config", path)
    assert done.exit_code == 0  # another node may have them
    assert f"{directory}/jobs.d/absent.toml: warning: application {directory}/no.py is not there" in done.stdout
    assert 'owner: warning: there is no group "no-such-group" on this machine' in done.stdout
    assert "elsewhere" not in done.stdout


def test_check_config_looks_as_the_user_of_the_service(directory: str) -> None:
    """In a process of its own, which becomes another user."""
    os.mkdir(f"{directory}/state")
    secret = f"{directory}/password"
    with open(secret, "w") as file:
        file.write("secret")
    os.chmod(secret, 0o600)
    path = configuration(directory, cluster=f'ledger_password_file = "{secret}"')
    other = "nobody" if os.getuid() == 0 else "root"

    def check(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DAEMON, "check-config", *args],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert check(path).returncode == 0
    done = check("--as-service", other, path)
    if os.getuid() != 0:
        assert (done.returncode, "only root" in done.stderr) == (77, True)
        return
    assert done.returncode == 78
    assert f"cluster.ledger_password_file: {secret}: it cannot be read: Permission denied" in done.stdout
    os.chown(secret, pwd.getpwnam(other).pw_uid, -1)
    done = check("--as-service", other, path)
    assert done.returncode == 78
    assert f"node.state_dir: {directory}/state: this user may not write it" in done.stdout
    os.chown(f"{directory}/state", pwd.getpwnam(other).pw_uid, -1)
    done = check("--as-service", other, path)
    assert (done.returncode, "run is not there, and this user cannot make it" in done.stdout) == (0, True)
    os.mkdir(f"{directory}/run")
    os.chown(f"{directory}/run", pwd.getpwnam(other).pw_uid, -1)
    assert check("--as-service", other, path).stdout == "ok: 0 jobs\n"
    assert check("--as-service", "no-such-user", path).returncode == 78


@pytest.mark.parametrize("args", [["--socket", "", "status"], ["status", "--socket="]])
def test_an_empty_path_of_the_socket_is_refused(args: list[str]) -> None:
    done = CliRunner().invoke(coordctl.program, args)
    assert done.exit_code == 2
    assert 'expected the path of a socket, found ""; give one, or leave it out' in done.stderr


def test_places_that_this_user_cannot_make_are_named_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package there is no service user, for whom systemd makes them."""
    monkeypatch.setattr(onhost, "service_user", lambda: None)
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).startswith("/var/lib"))
    monkeypatch.setattr(os.path, "lexists", lambda path: path in ("/", "/var", "/var/lib", "/run"))
    monkeypatch.setattr(os.path, "isdir", os.path.lexists)
    said = "/var/lib/coordd is not there, and this user cannot make it in /var/lib"
    found = {problem.key: problem for problem in _of_node(Config())}
    assert {key: problem.message for key, problem in found.items()} == {"node.state_dir": said, "cluster.ledger": said}
    assert {problem.severity for problem in found.values()} == {"warning"}

    monkeypatch.setattr(onhost, "service_user", lambda: pwd.getpwuid(0))
    assert _of_node(Config()) == []


def test_check_config_warns_of_what_can_never_happen(directory: str) -> None:
    os.mkdir(f"{directory}/jobs.d")
    write_job(directory, "over", 'schedule = "at 2020-01-01T00:00"\n[command]\nargv = ["/bin/true"]\n')
    write_job(directory, "n-daily", 'schedule = "@daily"\n[command]\nargv = ["/bin/true"]\n')
    sinks = f'[sink.w]\nto = "file://{directory}/out"\njobs = ["n-*", "nope", "*"]\n'
    hook = f'[[hook]]\nname = "page"\non = ["node.lost"]\nargv = ["{directory}/absent", "{{event}}"]\n'
    done = coordd("check-config", configuration(directory, control=sinks + hook))
    assert done.exit_code == 0
    told = [line for line in done.stdout.splitlines() if "warning: " in line and "root can" not in line]
    assert [line.partition(": ")[2] for line in told if not line.startswith("warning")] == [
        f"hook.page: warning: {directory}/absent is not there or not executable",
        'sink.w: warning: jobs: there is no job "nope" here; known: n-daily, over',
        'schedule: warning: "at 2020-01-01T00:00" never fires again: its last time is over',
    ]


def test_root_is_told_what_the_user_of_the_service_could_not_read(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(onhost, "as_user", lambda _user, _call: Found(["x: it cannot be read"], ["config"], 0))
    os.mkdir(f"{directory}/state", mode=0o700)
    monkeypatch.setattr(onhost, "service_user", lambda: pwd.getpwnam("nobody"))
    done = coordd("check-config", configuration(directory))
    assert done.exit_code == 0
    assert "warning: root can, nobody cannot: " in done.stdout
    assert "coordd check-config --as-service" in done.stdout


def test_exec_without_a_daemon_starts_nothing(directory: str, capfd: pytest.CaptureFixture[str]) -> None:
    socket = f"--socket={directory}/none"
    done = coordd("exec", socket, "--job", "j", "--every", "5m", "-E", "3", "--", "touch", f"{directory}/done")
    assert done.exit_code == 69
    assert f"no daemon answers at {directory}/none" in capfd.readouterr().err
    assert not os.path.exists(f"{directory}/done")


def test_versions() -> None:
    assert re.match(r"coordd \d+\.\d+\.\d+ \(Python ", coordd("version").stdout)
    done = subprocess.run(
        [*DAEMON, "--version"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"coordd \d+\.\d+\.\d+\n", done.stdout)


def run_daemon(path: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DAEMON, "run", "--config", path],
        cwd=ROOT,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_daemon_with_a_bad_configuration_exits_78(directory: str) -> None:
    done = run_daemon(configuration(directory, cluster="leese = 2.0"))
    assert done.returncode == 78
    assert "leese" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_daemon_that_cannot_have_its_socket_exits_69(directory: str) -> None:
    path = configuration(directory)
    os.makedirs(f"{directory}/run")
    Path(f"{directory}/run/control.sock").write_text("precious")
    done = run_daemon(path)
    assert done.returncode == 69
    assert "control.sock cannot be bound" in done.stderr
    assert "Traceback" not in done.stderr
    assert Path(f"{directory}/run/control.sock").read_text() == "precious"


# ---- what an option may be


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (["run", "trigger", "hello", "--id", ""], "--id"),
        (["run", "trigger", "hello", "--node", ""], "--node"),
        (["run", "list", "--job", ""], "--job"),
        (["publish", "q", "text", "--id", ""], "--id"),
        (["publish", "q", "text", "--expires", ""], "--expires"),
        (["node", "drain", ""], "[NODE]"),
        (["node", "resume", ""], "[NODE]"),
        (["alarm", "clear", "", "--note", "seen"], "[ID]"),
        (["why", "hello", "--what-if-without", ""], "--what-if-without"),
    ],
)
def test_an_empty_text_is_not_taken_for_a_missing_option(
    ctl: Callable[..., Result], daemon: FakeDaemon, line: list[str], named: str
) -> None:
    done = ctl(*line)
    assert done.exit_code == 2
    assert f"Invalid value for '{named}': expected a text, found \"\"; give one, or leave it out" in done.stderr
    assert daemon.asked == []


def test_an_empty_note_is_no_note(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["node.drain"] = {"node": "edge-1", "state": "drained", "active": 0}
    assert ctl("node", "drain", "--note", "").exit_code == 0
    assert daemon.asked == [("node.drain", {})]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("line", [["--timeout", "{}", "status"], ["status", "--timeout={}"], ["watch", "-n", "{}"]])
def test_a_number_of_seconds_is_finite(
    ctl: Callable[..., Result], daemon: FakeDaemon, line: list[str], number: str
) -> None:
    done = ctl(*[word.format(number) for word in line])
    assert done.exit_code == 2
    assert number in done.stderr
    assert "in the range" in done.stderr
    assert daemon.asked == []


# ---- streams


def test_events_are_a_line_each(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["events.subscribe"] = Stream({"event": EVENT}, {"alive": True}, {"event": EVENT})
    done = ctl("events")
    assert re.fullmatch(r"00:00:01\.500 edge-1\.7 +task-started +run=j#1 clock=3\n", done.stdout)
    daemon.answers["events.subscribe"] = Stream(
        {"lost": 3}, {"event": EVENT}, {"alive": True}, {"event": EVENT}, {"end": 1}
    )
    followed = ctl("events", "-f", "-o", "jsonl", "--type", "task-started")
    assert [json.loads(line) for line in followed.stdout.splitlines()] == [EVENT, EVENT]
    assert "3 events were lost" in followed.stderr
    assert daemon.asked[-1][1]["types"] == ["task-started"]


def test_logs_are_printed_as_they_are(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.logs"] = {"id": "j#1", "attempt": 0, "path": "/p", "text": "one\ntwo"}
    assert ctl("run", "logs", "j#1").stdout == "one\ntwo"
    daemon.answers["run.logs"] = Stream({"text": "one\n"}, {"alive": True}, {"text": "two\n"}, {"end": True})
    assert ctl("run", "logs", "j#1", "-f").stdout == "one\ntwo\n"
    assert daemon.asked[-1] == ("run.logs", {"id": "j#1", "follow": True})


def test_logs_of_another_node_say_where_they_are_from(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    of = {"id": "j#1", "attempt": 0, "node": "edge-2", "here": False}
    daemon.answers["run.logs"] = {**of, "path": "/p", "text": "one"}
    done = ctl("run", "logs", "j#1")
    assert (done.stdout, done.stderr) == ("one", "j#1, attempt 0, on edge-2:\n")
    two = {**of, "attempt": 1, "node": "edge-1", "here": True}
    daemon.answers["run.logs"] = Stream(
        {**of, "text": "one\n"},
        {**of, "text": "two\n"},
        {"note": "attempt 1 is on edge-1"},
        {**two, "text": "3\n"},
        {"end": 1},
    )
    done = ctl("run", "logs", "j#1", "-f", "--bytes", "9")
    assert (done.stdout, done.stderr) == ("one\ntwo\n3\n", "j#1, attempt 0, on edge-2:\nattempt 1 is on edge-1\n")
    assert daemon.asked[-1] == ("run.logs", {"id": "j#1", "follow": True, "bytes": 9})


def test_call_prints_streams_and_results(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    assert json.loads(ctl("call", "ping").stdout) == {"pong": True, "version": "9"}
    assert json.loads(ctl("call", "ping", "-", input='{"a": 1}').stdout)["pong"]
    assert daemon.asked[-1] == ("ping", {"a": 1})
    daemon.answers["events.subscribe"] = Stream({"event": EVENT}, {"end": True})
    assert json.loads(ctl("call", "events.subscribe").stdout)["event"] == EVENT


def test_watch_prints_once_where_there_is_no_terminal(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["node.list"] = [{"hostname": "edge-1", "state": "alive", "self": True, "active": 0}]
    daemon.answers["run.list"] = [{**RUN, "state": "started", "ended_at": None, "runtime_s": None}]
    daemon.answers["events.subscribe"] = Stream({"event": EVENT}, {"event": {**EVENT, "type": "worker-heartbeat"}})
    done = ctl("watch")
    assert done.exit_code == 0
    for words in ("edge-1", "active runs", "j#1", "task-started"):
        assert words in done.stdout
    assert "worker-heartbeat" not in done.stdout
