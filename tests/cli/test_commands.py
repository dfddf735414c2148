"""The command lines: exit codes, what goes to stdout and what to stderr, and sentences that help."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.fake_daemon import RUN, STATUS, FakeDaemon, refusal

from coordd.adapters import control_line, onhost
from coordd.cli import client as client_module, coordctl
from coordd.cli.client import Client
from coordd.cli.show import phrases
from coordd.errors import RefusedError, RemoteProtocolError, UnavailableError
from coordd.services.control import rpc

# ---- what people read


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0 ms"),
        (0.25, "250 ms"),
        (0.9999, "1 s"),
        (1, "1 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7510, "2 h 5 min"),
        (86400 * 3 + 3 * 3600, "3 d 3 h"),
        (86400 + 59, "1 d"),
        (-5, "-5 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert phrases.duration(seconds) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (None, ""),
        (1000.4, "now"),
        (1005, "in 5 s"),
        (990, "10 s ago"),
        (1000 + 3 * 3600 + 5, "in 3 h"),
        (0, "16 min ago"),
    ],
)
def test_distances(at: float | None, text: str) -> None:
    assert phrases.distance(at, 1000.0) == text


def test_instants_stand_beside_their_distance() -> None:
    now = phrases.instant("2026-10-03T02:00:00Z")
    assert now is not None
    assert phrases.moment(now + 60, now) == "02:01:00 (in 1 min)"
    assert phrases.moment(now - 86400, now) == "2026-10-02 02:00:00 (1 d ago)"
    assert phrases.instant("nonsense") is None
    assert phrases.instant(None) is None


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    assert phrases.plain("a\x1b[31mb\x07\x9b") == "a\\x1b[31mb\\x07\\x9b"
    assert phrases.plain({"a": ["x", None, True]}) == "a=x, , yes"


# ---- the client


def test_the_constants_of_both_ends_agree() -> None:
    assert client_module.LINE_BYTES_MAX == rpc.LINE_BYTES_MAX
    assert set(control_line.USAGE_CODES) == {rpc.INVALID_REQUEST, rpc.METHOD_NOT_FOUND, rpc.INVALID_PARAMS}


@pytest.mark.parametrize("answer", [b"hello\n", b"[]\n", b'{"id":1,"error":5}\n', b"\xff\n"])
def test_what_is_no_coordd_is_told_so(daemon: FakeDaemon, answer: bytes) -> None:
    daemon.answers["ping"] = answer
    with pytest.raises(RemoteProtocolError), Client(daemon.path) as client:
        client.call("ping")


def test_a_daemon_that_closes_or_hangs_is_unavailable(daemon: FakeDaemon) -> None:
    daemon.answers["ping"] = None
    client = Client(daemon.path)
    with pytest.raises(UnavailableError, match="closed the connection"):
        client.call("ping")
    daemon.answers["ping"] = b""
    with pytest.raises(UnavailableError, match=r"did not answer ping within 0\.1 s"):
        client.call("ping", timeout_s=0.1)
    daemon.answers["ping"] = {"pong": True}
    assert client.call("ping") == {"pong": True}  # on a new connection
    client.close()


def test_a_question_that_is_too_large_is_not_sent(daemon: FakeDaemon) -> None:
    with pytest.raises(RefusedError, match="at most") as info:
        Client(daemon.path).call("echo", {"x": "x" * rpc.LINE_BYTES_MAX})
    assert info.value.kind == "too_large"
    assert daemon.asked == []


def test_a_refusal_without_an_id_is_ours(daemon: FakeDaemon) -> None:
    daemon.answers["ping"] = rpc.error_line(None, refusal("try_later", "256 clients are connected already"))
    with pytest.raises(RefusedError, match="256 clients"), Client(daemon.path) as client:
        client.call("ping")


# ---- exit codes


def test_status_follows_lsb(ctl: Callable[..., Result], daemon: FakeDaemon, directory: str) -> None:
    done = ctl("status")
    assert done.exit_code == 0
    assert done.stdout.startswith("● edge-1 is ready\n")
    assert "1 suspect node" in done.stdout
    assert "disabled: bad" in done.stdout
    done = ctl("status", "--socket", f"{directory}/nothing")
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"{directory}/nothing" in done.stderr
    Path(f"{directory}/dead").touch()
    assert ctl("status", "--socket", f"{directory}/dead").exit_code == 3
    daemon.answers["status"] = None  # it is there, and does not answer
    assert ctl("status").exit_code == 4
    daemon.answers["status"] = refusal("not_permitted")
    assert ctl("status").exit_code == 77


@pytest.mark.parametrize("state", ["unavailable", "recovering"])
def test_a_node_that_can_start_nothing_does_not_look_well(
    ctl: Callable[..., Result], daemon: FakeDaemon, state: str
) -> None:
    daemon.answers["status"] = {**STATUS, "ledger": {"url": "sqlite:///l", "state": state, "error": "no answer"}}
    head = ctl("status").stdout.splitlines()[0]
    assert head == f"● edge-1 is ready, but the ledger is {state}: nothing new starts"
    daemon.answers["status"] = {**STATUS, "impaired": "its journal cannot be written"}
    assert ctl("status").stdout.splitlines()[0] == "● edge-1 is ready, but it starts nothing itself"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("started", "j#1 is being cancelled"),
        ("received", "j#1 is being cancelled"),
        ("revoked", "j#1 will not run"),
        ("unknown", "j#1 stays unknown"),
    ],
)
def test_a_cancellation_says_what_comes_of_it(
    ctl: Callable[..., Result], daemon: FakeDaemon, state: str, words: str
) -> None:
    daemon.answers["run.cancel"] = {"id": "j#1", "state": state}
    assert ctl("run", "cancel", "j#1").stdout.startswith(words)


def test_no_daemon_at_the_socket_says_what_to_do(ctl: Callable[..., Result], directory: str) -> None:
    done = ctl("node", "list", "--socket", f"{directory}/nothing")
    assert (done.exit_code, done.stdout) == (69, "")
    for words in (f"{directory}/nothing", "`systemctl start coordd`", "`coordd run`", "no such socket"):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (refusal("unavailable"), 69),
        (refusal("try_later"), 75),
        (refusal("not_permitted"), 77),
        (refusal("bad_job"), 65),
        (refusal("bad_config"), 78),
        (refusal("bad_argument"), 2),
        (refusal("finished"), 1),
        (refusal("conflict"), 1),
        (refusal("anything_new"), 1),
        (refusal("not_available"), 1),
        (refusal("invalid_params", code=rpc.INVALID_PARAMS), 2),
        (refusal("unknown_method", code=rpc.METHOD_NOT_FOUND), 2),
        (refusal("internal", code=rpc.INTERNAL_ERROR), 1),
    ],
)
def test_each_kind_of_refusal_has_its_exit_code(
    ctl: Callable[..., Result], daemon: FakeDaemon, error: rpc.RpcError, code: int
) -> None:
    error.hint = "do that\x1b[2J"
    daemon.answers["run.cancel"] = error
    done = ctl("run", "cancel", "j#1")
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr == "coordctl: no\n  hint: do that\\x1b[2J\n"


@pytest.mark.parametrize(
    "args",
    [
        ["nix"],
        ["run", "nix"],
        ["run", "list", "--state", "nix"],
        ["run", "resolve", "j#1"],
        ["why"],
        ["run", "resolve", "j#1", "--as", "nix"],
        ["run", "trigger", "j", "--arg", "novalue"],
        ["run", "trigger", "j", "--arg", "a=1", "--arg", "a=2"],
        ["run", "trigger", "j", "--wait", "--timeout", "soon"],
        ["run", "trigger", "j", "--timeout", "5s"],
        ["call", "ping", "{"],
        ["call", "ping", "[]"],
        ["call", "ping", '{"a":NaN}'],
        ["status", "--output", "xml"],
        ["watch", "--output", "json"],
    ],
)
def test_a_command_line_that_makes_no_sense_exits_2(
    ctl: Callable[..., Result], daemon: FakeDaemon, args: list[str]
) -> None:
    done = ctl(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr
    assert daemon.asked == []


# ---- options and output


def test_the_shared_options_stand_anywhere(daemon: FakeDaemon, directory: str) -> None:
    def run(*args: str, **env: str) -> Result:
        return CliRunner().invoke(coordctl.program, args, env=env)

    daemon.answers["node.list"] = []
    assert run("--socket", daemon.path, "node", "list").exit_code == 0
    assert run("node", "--socket", daemon.path, "list").exit_code == 0
    assert run("node", "list", "--socket", daemon.path).exit_code == 0
    assert run("node", "list", COORDD_SOCKET=daemon.path).exit_code == 0
    assert run("--socket", f"{directory}/nothing", "node", "list", "--socket", daemon.path).exit_code == 0
    assert run("node", "list", "--socket", daemon.path, COORDD_SOCKET=f"{directory}/nothing").exit_code == 0
    assert run("--socket", daemon.path, "node", "list", COORDD_SOCKET=f"{directory}/nothing").exit_code == 0
    assert run("-o", "json", "node", "list", "--socket", daemon.path).stdout == "[]\n"


def test_output_is_a_table_a_document_or_lines(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.list"] = [RUN, {**RUN, "id": "j#2", "state": "failure", "reason": "exit code 1"}]
    table = ctl("run", "list")
    assert re.search(r"^RUN +STATE ", table.stdout, re.MULTILINE)
    assert re.search(r"^j#2 +failure .*exit code 1$", table.stdout, re.MULTILINE)
    assert "\x1b" not in table.stdout
    assert json.loads(ctl("run", "list", "--output", "json").stdout) == daemon.answers["run.list"]
    lines = ctl("run", "list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["j#1", "j#2"]
    daemon.answers["run.list"] = []
    empty = ctl("run", "list")
    assert (empty.stdout, empty.stderr) == ("", "There are no such runs.\n")
    assert json.loads(ctl("run", "list", "-o", "json").stdout) == []


def test_a_table_for_a_program_is_as_wide_as_it_must_be(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.list"] = [{**RUN, "id": "a-long-name" * 9 + "#1", "reason": "because " * 60}]
    lines = ctl("run", "list", env={"COLUMNS": "40"}).stdout.splitlines()
    assert len(lines) == 2
    assert "a-long-name" * 9 + "#1" in lines[1]
    assert lines[1].count("because") == 60


def test_a_run_is_shown_with_its_attempts(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    attempts = [{"attempt": 0, "state": "lost", "node": "edge-2.9", "token": 4, "reason": "its lease lapsed"}]
    daemon.answers["run.show"] = {**RUN, "attempts": attempts}
    done = ctl("run", "show", "j#1")
    assert daemon.asked[-1] == ("run.show", {"id": "j#1"})
    for words in ("j#1 success", "2 s", "edge-2 (pid 9)", "its lease lapsed", "k=[bold]v\\x1b[31m"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout


def test_every_method_of_the_contract_is_asked_for(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    ok = {
        "id": "j#1",
        "run": "j#1",
        "attempt": 1,
        "job": "j",
        "node": "n",
        "state": "draining",
        "active": 0,
        "why": "because",
        "version": "1",
        "name": "ids",
        "reported": "insecure",
    }
    expected: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {
        ("node", "drain"): ("node.drain", {}),
        ("node", "drain", "n"): ("node.drain", {"node": "n"}),
        ("node", "resume"): ("node.resume", {}),
        ("job", "suspend", "j"): ("job.suspend", {"job": "j"}),
        ("job", "resume", "j"): ("job.resume", {"job": "j"}),
        ("job", "show", "j"): ("job.show", {"job": "j"}),
        ("run", "cancel", "j#1"): ("run.cancel", {"id": "j#1"}),
        ("run", "revoke", "j#1"): ("run.revoke", {"id": "j#1"}),
        ("run", "rerun", "j#1", "--with-children"): ("run.rerun", {"id": "j#1", "with_children": True}),
        ("run", "resolve", "j#1", "--as", "failed"): ("run.resolve", {"id": "j#1", "as": "failed"}),
        ("run", "trigger", "j", "--arg", "a=b=c", "--id", "x"): (
            "run.trigger",
            {"job": "j", "args": {"a": "b=c"}, "id": "x"},
        ),
        ("check", "report", "ids", "insecure"): ("check.report", {"name": "ids", "state": "insecure"}),
        ("deadletter", "replay", "j#1/0"): ("deadletter.replay", {"id": "j#1/0"}),
        ("deadletter", "discard", "j#1", "--note", "seen"): ("deadletter.discard", {"id": "j#1", "note": "seen"}),
        ("why", "j#1"): ("why", {"id": "j#1"}),
        ("reload",): ("reload", {}),
        ("ledger", "status"): ("ledger.status", {}),
        ("ping",): ("ping", {}),
        ("call", "ping", '{"a": [1]}'): ("ping", {"a": [1]}),
    }
    for args, question in expected.items():
        daemon.answers[question[0]] = {**ok, "state": "connected"} if args[0] == "ledger" else ok
        done = ctl(*args)
        assert done.exit_code == 0, done.stderr
        assert daemon.asked[-1] == question
        assert done.stdout
    daemon.answers["job.show"] = {"suspended": False}
    lists = (
        ("node", "list"),
        ("job", "list"),
        ("election", "list"),
        ("job", "next", "j"),
        ("job", "fires", "j"),
        ("deadletter", "list"),
    )
    for args in (*lists, ("doctor",)):
        daemon.answers[".".join(args[:2])] = []
        assert ctl(*args).exit_code == 0
    daemon.answers["run.list"] = []
    ctl("run", "list", "--job", "j", "--state", "lost", "-n", "5")
    assert daemon.asked[-1] == ("run.list", {"job": "j", "state": "lost", "limit": 5, "searched": True})


def test_a_suspension_says_what_has_begun(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["job.suspend"] = {"job": "j", "suspended": True, "begun": ["j@2025-01-29T08:00:00Z"]}
    run = "j@2025-01-29T08:00:00Z"
    assert ctl("job", "suspend", "j").stdout == (
        f"j is suspended\n{run} has begun, and starts: coordctl run cancel {run}\n"
    )


def test_doctor_fails_when_a_check_does(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["doctor"] = [{"check": "disk", "state": "warn", "text": "low", "advice": "make room"}]
    assert ctl("doctor").exit_code == 0
    daemon.answers["doctor"].append({"check": "ledger", "state": "fail", "text": "gone", "advice": "restore it"})
    done = ctl("doctor")
    assert done.exit_code == 1
    assert re.search(r"fail +ledger +gone +restore it", done.stdout)


# ---- trigger --wait


def states(*words: str) -> Callable[[dict[str, Any]], Any]:
    """A run that has the next state at each look; the last state stays."""
    left = list(words)

    def answer(_: dict[str, Any]) -> Any:
        word = left.pop(0) if len(left) > 1 else left[0]
        return refusal(word.removeprefix("!")) if word.startswith("!") else {**RUN, "state": word, "reason": "so"}

    return answer


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("pending", "received", "started", "success"), 0),
        (("started", "retry", "started", "success"), 0),
        (("started", "failure"), 1),
        (("revoked",), 1),
        (("rejected",), 1),
        (("missed",), 1),
        (("lost",), 1),
        (("unknown", "success"), 0),
        (("!unavailable", "!try_later", "success"), 0),
        (("!unknown_run",), 1),
    ],
)
def test_waiting_for_a_run(ctl: Callable[..., Result], daemon: FakeDaemon, words: tuple[str, ...], code: int) -> None:
    daemon.answers["run.trigger"] = {"id": "j#1", "durable": "ledger"}
    daemon.answers["run.show"] = states(*words)
    done = ctl("run", "trigger", "j", "--wait")
    assert done.exit_code == code
    assert done.stdout == "j#1\n"
    assert ("j#1: started" in done.stderr) == ("started" in words)
    if "unknown" in words:
        assert "run resolve" in done.stderr


def test_waiting_has_an_end(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.trigger"] = {"id": "j#1", "durable": "node"}
    daemon.answers["run.show"] = states("!unknown_run", "started")
    done = ctl("run", "trigger", "j", "--wait", "--timeout", "0.3")
    assert done.exit_code == 124
    assert "has not ended after 0.3 s" in done.stderr


def test_waiting_ends_with_the_run_as_data(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.trigger"] = {"id": "j#1", "durable": "ledger"}
    daemon.answers["run.show"] = states("started", "failure")
    done = ctl("run", "trigger", "j", "--wait", "-o", "json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["state"] == "failure"


def test_a_dry_run_shows_a_command_line_for_the_shell(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.trigger"] = {"id": "j#1", "dry_run": True, "argv": ["/bin/echo", "a b", "$c"]}
    assert ctl("run", "trigger", "j", "--dry-run").stdout == "/bin/echo 'a b' '$c'\n"
    assert daemon.asked[-1][1]["dry_run"] is True


def test_draining_waits_for_the_last_run(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    active = [2, 1, 1, 0]
    daemon.answers["node.drain"] = {"node": "edge-1", "state": "draining", "active": 2}
    daemon.answers["status"] = lambda _: {**STATUS, "state": "draining", "runs": {"active": active.pop(0)}}
    done = ctl("node", "drain", "--wait")
    assert (done.exit_code, done.stdout) == (0, "edge-1 is draining; 0 of its runs continue\n")
    assert "waiting for 2" in done.stderr
    daemon.answers["status"] = {**STATUS, "state": "draining", "runs": {"active": 1}}
    assert ctl("node", "drain", "--wait", "--timeout", "0.1").exit_code == 124
    for count in (1, 0):
        daemon.answers["status"] = {**STATUS, "state": "ready", "runs": {"active": count}}
        assert ctl("node", "drain", "--wait").exit_code == 1, "somebody has ended the drain: new runs may come"


def test_what_another_node_counted_before_it_heard_of_its_drain_is_not_believed(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    peer = {"hostname": "edge-2", "state": "alive", "says": "ready", "drained": {"by": "ann"}, "active": 0}
    heard = [peer, {**peer, "says": "draining", "active": 1}, {**peer, "says": "draining", "active": 0}]
    daemon.answers["node.drain"] = {"node": "edge-2", "state": "ready", "active": 0, "self": False}
    daemon.answers["node.list"] = lambda _: [heard.pop(0)]
    done = ctl("node", "drain", "edge-2", "--wait")
    assert (done.exit_code, done.stdout) == (0, "edge-2 is draining; 0 of its runs continue\n")
    assert "waiting for its answer" in done.stderr
    assert "waiting for 1 of its runs" in done.stderr
    daemon.answers["node.list"] = [peer]
    done = ctl("node", "drain", "edge-2", "--wait", "--timeout", "0.1")
    assert (done.exit_code, "not known which runs" in done.stderr) == (124, True)


def test_a_reload_waits_for_the_last_run_and_ends_its_own_drain(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    active = [0, 2, 0, 0]
    daemon.answers["node.drain"] = daemon.answers["node.resume"] = {"node": "n", "state": "draining", "active": 2}
    daemon.answers["status"] = lambda _: {**STATUS, "state": "draining", "runs": {"active": active.pop(0)}}
    daemon.answers["reload"] = {"jobs": 1}
    assert ctl("reload", "--drain").exit_code == 0
    asked = [method for method, _ in daemon.asked]
    assert asked == ["status", "node.drain", "status", "status", "reload", "status", "node.resume"]
    daemon.answers["reload"] = refusal("bad_config")
    active = [0, 0, 0]
    assert ctl("reload", "--drain").exit_code == 78
    assert daemon.asked[-1][0] == "node.resume"
    active = [0, 2]
    daemon.answers["status"] = {**STATUS, "state": "draining", "runs": {"active": 1}}
    assert ctl("reload", "--drain", "--timeout", "0.1").exit_code == 124
    assert daemon.asked[-1][0] == "node.resume"
    assert ctl("reload", "--timeout", "1").exit_code == 2
    # A drain of somebody else stays.
    daemon.answers["reload"] = {"jobs": 1}
    daemon.answers["status"] = {**STATUS, "state": "draining", "drained": {"by": "ann"}, "runs": {"active": 0}}
    assert ctl("reload", "--drain").exit_code == 0
    assert [method for method, _ in daemon.asked[-3:]] == ["status", "status", "reload"]


def test_a_reload_leaves_the_drain_that_somebody_else_made_meanwhile(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    holds: list[Any] = [None, {"by": "root", "note": "reload --drain"}, {"by": "ann", "note": "repair"}]
    daemon.answers |= {
        "node.drain": {"node": "n", "state": "draining", "active": 0, "by": "root", "note": "reload --drain"},
        "status": lambda _: {**STATUS, "state": "draining", "drained": holds.pop(0), "runs": {"active": 0}},
        "reload": {"jobs": 1},
    }
    done = ctl("reload", "--drain")
    assert "this node stays drained: ann has drained it meanwhile (repair)" in done.stderr
    assert [method for method, _ in daemon.asked] == ["status", "node.drain", "status", "reload", "status"]


def test_nobody_can_tell_whether_the_runs_of_a_lost_node_have_ended(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    daemon.answers["node.drain"] = {"node": "edge-2", "state": "lost", "active": 1, "self": False}
    daemon.answers["node.list"] = [{"hostname": "edge-2", "state": "lost", "says": "ready", "active": 1}]
    done = ctl("node", "drain", "edge-2", "--wait")
    assert done.exit_code == 1
    assert "edge-2 is lost: nobody can tell whether its runs have ended" in done.stderr


def test_runs_are_revoked_until_none_is_left_that_can_be(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    answers = [["j#1"], ["j#2"], []]
    daemon.answers["run.revoke"] = lambda _: {"job": "j", "revoked": answers.pop(0), "more": True}
    assert ctl("run", "revoke", "--job", "j").stdout == "j#1 will not run\nj#2 will not run\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to others")
def test_root_plans_with_the_files_of_the_service(
    ctl: Callable[..., Result], daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package gives the service its directories, and the new job files may be its own too."""
    account = pwd.struct_passwd(("coordd", "x", 54321, 54321, "", "/", "/bin/false"))
    monkeypatch.setattr(onhost, "service_user", lambda: account)
    jobs, config = tmp_path / "jobs", tmp_path / "coordd.toml"
    jobs.mkdir()
    (jobs / "pooled.toml").write_text('pool = "etl"\n[command]\nargv = ["/bin/true"]\n')
    config.write_text(f'[pools]\netl = 1\n[node]\nstate_dir = "{jobs}"\n[control]\nsocket = "{daemon.path}"\n')
    for path in (jobs, jobs / "pooled.toml"):
        os.chown(path, 54321, 54321)
    daemon.answers["job.list"] = []
    done = ctl("plan", str(jobs), "--config", str(config), "-o", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [(one["job"], one["change"]) for one in json.loads(done.stdout)] == [("pooled", "added")]
