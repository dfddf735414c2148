"""Troubles in the ledger are visible in `status`, `doctor` and STATUS."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import DAEMON, open_directory, write_job
from support.ledger_calls import granted_as

from cli.test_daemon import HELLO, Node, running
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.requests import Claim, Register, Revoke
from coordd.core.ledger.runner_requests import Gate, Grant, Registration, Report
from coordd.core.ledger.words import AttemptNumber, Policy

# Short, so that silence is noticed soon.
TIMING = "renew_interval = 0.5\nledger_timeout = 0.5\nkill_grace = 1.0\nlease = 30.0"


BOOM = "exit code 3: to the moon"
BROKEN = '[command]\nargv = ["/bin/sh", "-c", "echo to the $0; exit 3", "{who}"]\n[params]\nwho = "sun"\n'


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A daemon that is told its STATUS by a notify socket."""
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "hello", HELLO)
        write_job(directory, "jittered", 'schedule = "0 2 1 1 *"\njitter = "2h"\n' + HELLO)
        write_job(
            directory, "dark", 'schedule = "0 2 * * *"\nblackout = [{ cron = "0 0 * * 1", duration = "1d" }]\n' + HELLO
        )
        write_job(directory, "broken", BROKEN)
        fragile = f'[command]\nargv = ["/bin/sh", "-c", "test -e {directory}/mended"]\n'
        write_job(directory, "fragile", fragile)
        write_job(directory, "follower", 'after = { all = ["fragile"], on = "done" }\n' + HELLO)
        write_job(directory, "follower-of-it", 'after = ["follower"]\n' + HELLO)
        write_job(directory, "calm", HELLO)
        write_job(directory, "after-calm", 'after = ["calm"]\n' + HELLO)
        write_job(directory, "wide", 'expand = { part = ["a", "b"] }\n' + HELLO)
        write_job(directory, "expected", 'expect_within = "1s"\n' + HELLO)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(f"{directory}/notify")
            systemd.setblocking(False)
            os.environ["NOTIFY_SOCKET"] = f"{directory}/notify"
            try:
                with running(directory, DAEMON, cluster=TIMING) as made:
                    made.systemd = systemd  # type: ignore[attr-defined]  # for the tests here
                    yield made
            finally:
                del os.environ["NOTIFY_SOCKET"]


def of(run: str, age_s: float = 0.0, **policy: Any) -> Registration:
    return Registration(run, run.partition("#")[0], "d", Policy(**policy), time.time(), scheduled=False, age_s=age_s)


@pytest.fixture
def ledger(node: Node) -> Iterator[SqliteLedger]:
    made = SqliteLedger(f"sqlite:///{node.directory}/state/ledger.db", timeout_s=5.0)
    yield made
    made.close()


def started(ledger: SqliteLedger, run: str, **policy: Any) -> Grant:
    """Another node runs it."""
    answer = ledger.ask(Claim(of=of(run, **policy), attempt=AttemptNumber(0), nonce="n", node="edge-9.1", lease_s=30.0))
    key = granted_as(run, answer, "n")
    assert ledger.ask(Gate(grant=key)).word == "ok"
    return key


def last_status(node: Node) -> str:
    said = ""
    while True:
        try:
            text = node.systemd.recv(65536).decode()  # type: ignore[attr-defined]  # set by the fixture
        except BlockingIOError:
            return said
        said = next((line for line in text.split("\n") if line.startswith("STATUS=")), said)


def test_an_unknown_run_is_seen_everywhere(node: Node, ledger: SqliteLedger) -> None:
    key = started(ledger, "ghost#1", on_lost="hold")
    ledger.ask(Report(grant=key, state="lost", reason="the runner died"))
    node.wait_until(lambda: node.json("status")["runs"]["unknown"] == ["ghost#1"])
    text = node.ctl("status").stdout
    assert "1 unknown: ghost#1 (coordctl run resolve RUN --as success|failed|relaunch)" in text
    doctor = node.ctl("doctor", code=1).stdout
    assert "ghost#1: the runner died" in doctor
    seen: list[str] = []
    node.wait_until(lambda: "1 run unknown (ghost)" in (seen.append(last_status(node)) or seen[-1]))  # type: ignore[func-returns-value]  # append and add give None, which is what is wanted
    node.ctl("run", "resolve", "ghost#1", "--as", "failed")
    node.wait_until(lambda: node.json("status")["runs"]["unknown"] == [])


def given_up(node: Node) -> dict[str, Any]:
    node.ctl("run", "trigger", "broken", "--wait", "--arg", "who=moon", code=1)
    letter: dict[str, Any] = node.json("deadletter", "list")[0]
    return letter


def test_a_run_that_was_given_up_is_replayed_once_and_discarded(node: Node) -> None:
    letter = given_up(node)
    run = letter["run"]
    assert letter["id"] == f"{run}/0"
    assert (letter["kind"], letter["job"], letter["reason"], letter["attempts"]) == ("run", "broken", BOOM, 1)
    node.wait_until(lambda: run in node.json("status")["runs"]["dead"])
    assert "dead letter" in node.ctl("status").stdout
    assert f"given up: {run}" in node.ctl("doctor", code=1).stdout
    assert f"It was given up. To try it once more: `coordctl deadletter replay {run}`" in node.ctl("why", run).stdout
    listed = node.ctl("deadletter", "list").stdout
    assert letter["id"] in listed
    assert "exit code 3" in listed

    shown = node.json("deadletter", "show", letter["id"])
    assert shown["dead"] is True
    assert shown["shown"]["args"] == {"who": "moon"}
    assert [attempt["exit_code"] for attempt in shown["shown"]["attempts"]] == [3]
    assert shown["shown"]["log_tail"] == ["to the moon"]
    assert "to the moon" in node.ctl("deadletter", "show", run).stdout

    said = node.json("deadletter", "replay", letter["id"])
    assert (said["run"], said["attempt"]) == (run, 1)
    again = node.ctl("deadletter", "replay", letter["id"], code=1)
    assert f"{letter['id']} was replayed before by root, as attempt 1" in again.stderr
    node.wait_until(lambda: [one["id"] for one in node.json("deadletter", "list")][:1] == [f"{run}/1"])
    shown = node.json("deadletter", "show", letter["id"])
    assert shown["dead"] is False
    assert [one["reason"] for one in shown["shown"]["attempts"]] == [f"{BOOM}; replayed by root", BOOM]

    assert "is discarded" in node.ctl("deadletter", "discard", run, "--note", "the moon is gone").stdout
    assert run not in [one["run"] for one in node.json("deadletter", "list")]
    assert node.json("run", "show", run)["reason"] == f"{BOOM}; discarded by root: the moon is gone"
    assert "given up" not in node.ctl("why", run).stdout
    for command in (("replay", run), ("discard", run, "--note", "x")):
        assert "is not a dead letter" in node.ctl("deadletter", *command, code=1).stderr
    done = [record for record in node.json("audit")["records"] if record["method"].startswith("deadletter.")]
    assert [(record["method"], record["outcome"]) for record in done if record["outcome"] == "done"] == [
        ("deadletter.show", "done"),  # it shows the last lines of the log
        ("deadletter.replay", "done"),
        ("deadletter.discard", "done"),
    ]


def test_a_run_is_replayed_with_its_children(node: Node) -> None:
    """The answer says which runs follow; they run once more, and say for whom."""
    node.ctl("run", "trigger", "fragile", "--wait", "--id", "x", code=1)
    node.wait_until(lambda: node.json("run", "list", "--job", "follower-of-it")[:1] != [])
    node.wait_until(lambda: node.json("run", "show", "follower-of-it#x")["state"] == "success")
    assert node.json("run", "show", "follower#x")["rerun_of"] is None

    Path(f"{node.directory}/mended").touch()
    said = node.ctl("deadletter", "replay", "fragile#x", "--with-children").stdout
    assert said.splitlines() == ["fragile#x is tried again: attempt 1", "then follower#x", "then follower-of-it#x"]
    node.wait_until(lambda: node.json("run", "show", "follower-of-it#x")["rerun_of"] is not None)
    node.wait_until(lambda: node.json("run", "show", "follower-of-it#x")["state"] == "success")
    shown = node.json("run", "show", "follower#x")
    assert (shown["attempt"], shown["parents"], shown["rerun_of"]) == (1, ["fragile#x"], "fragile#x/1")
    assert "root ran fragile#x/1 again, with its children" in node.ctl("why", "follower#x").stdout
    assert "It has run once more after follower#x" in node.ctl("why", "follower-of-it#x").stdout
    done = [record for record in node.json("audit")["records"] if record["method"] == "deadletter.replay"]
    assert "then follower#x, follower-of-it#x" in str(done)

    node.ctl("run", "trigger", "broken", "--wait", "--id", "childless", code=1)
    assert "No run follows it." in node.ctl("deadletter", "replay", "broken#childless", "--with-children").stdout
    node.wait_until(lambda: node.json("run", "show", "broken#childless")["state"] == "failure")
    node.ctl("deadletter", "discard", "broken#childless", "--note", "seen")


def test_a_run_that_succeeded_is_run_again_with_its_children_and_without(node: Node) -> None:
    """Its state, why and the audit say which attempt it repeats; what has not ended, or was revoked, is refused."""
    node.ctl("run", "trigger", "calm", "--wait", "--id", "x")
    node.wait_until(lambda: node.json("run", "list", "--job", "after-calm")[:1] != [])
    node.wait_until(lambda: node.json("run", "show", "after-calm#x")["state"] == "success")

    said = node.json("run", "rerun", "calm#x", "--note", "the data was wrong")
    assert said == {"id": "calm#x", "attempt": 1, "state": "retry", "rerun_of": "calm#x/0", "children": []}
    node.wait_until(lambda: node.json("run", "show", "calm#x")["state"] == "success")
    shown = node.json("run", "show", "calm#x")
    assert (shown["attempt"], shown["rerun_of"]) == (1, "calm#x/0")
    assert "It has run once more: root ran calm#x/0 again." in node.ctl("why", "calm#x").stdout

    told = node.ctl("run", "rerun", "calm#x", "--with-children").stdout
    assert told.splitlines() == ["calm#x is tried again: attempt 2", "then after-calm#x"]
    node.wait_until(lambda: node.json("run", "show", "after-calm#x")["rerun_of"] == "calm#x/2")
    node.wait_until(lambda: node.json("run", "show", "after-calm#x")["state"] == "success")
    shown = node.json("run", "show", "after-calm#x")
    assert (shown["attempt"], shown["parents"]) == (1, ["calm#x"])
    done = [record["subject"] for record in node.json("audit")["records"] if record["method"] == "run.rerun"]
    assert done == ["calm#x/0: the data was wrong", "calm#x/1, then after-calm#x"]

    node.ctl("run", "revoke", "calm#never")
    assert "a person has forbidden it" in node.ctl("run", "rerun", "calm#never", code=1).stderr
    assert "wide#x is a group of 2 runs" in node.ctl("run", "rerun", "wide#x", code=1).stderr
    assert "no run 'calm#nix'" in node.ctl("run", "rerun", "calm#nix", code=1).stderr


def test_a_group_is_told_as_one(node: Node) -> None:
    logs = node.ctl("run", "logs", "wide#y", code=1).stderr
    assert "wide#y is a group of 2 runs: expected one of them, for example wide#y~0" in logs
    node.ctl("job", "suspend", "wide")
    node.ctl("run", "trigger", "wide", "--id", "y")
    node.wait_until(lambda: node.ctl("why", "wide#y").stdout.startswith("wide#y is a group of 2 runs: 2 pending. "))
    assert "wide is suspended by " in node.ctl("why", "wide#y").stdout
    node.ctl("job", "resume", "wide")
    node.wait_until(lambda: node.json("run", "show", "wide#y")["state"] == "success")
    assert node.json("why", "wide#y")["sentence"] == "wide#y is a group of 2 runs: 2 success."


def test_what_is_no_dead_letter_is_refused(node: Node, ledger: SqliteLedger) -> None:
    node.ctl("run", "trigger", "hello", "--wait", "--id", "fine")
    refused = node.ctl("deadletter", "replay", "hello#fine", code=1).stderr
    assert "hello#fine is not a dead letter: it is success" in refused
    assert "no run" in node.ctl("deadletter", "show", "hello#never", code=1).stderr
    assert "not the number" in node.ctl("deadletter", "show", "hello#fine/x", code=1).stderr
    ledger.ask(Report(grant=started(ledger, "ghost#7"), state="failure", exit_code=1, final=True))
    assert "no job 'ghost' on this node" in node.ctl("deadletter", "replay", "ghost#7", code=1).stderr
    assert "characters" in node.ctl("deadletter", "discard", "ghost#7", "--note", " ", code=2).stderr
    node.ctl("deadletter", "discard", "ghost#7", "--note", "its job is gone")


def test_a_job_that_an_unknown_run_blocks_says_so(node: Node, ledger: SqliteLedger) -> None:
    key = started(ledger, "hello#1", on_lost="hold")
    ledger.ask(Report(grant=key, state="lost", reason="the runner died"))
    node.wait_until(lambda: node.json("status")["runs"]["unknown"] == ["hello#1"])
    listed = {job["name"]: job for job in node.json("job", "list")}
    assert listed["hello"]["problems"] == ["hello#1 is unknown, and counts as running: coordctl run resolve hello#1"]
    assert "rejected: overlap: hello#1 is unknown" in node.ctl("run", "trigger", "hello", code=1).stderr
    node.ctl("run", "resolve", "hello#1", "--as", "success")
    node.wait_until(lambda: node.json("status")["runs"]["unknown"] == [])


def test_a_run_that_nobody_starts_is_late(node: Node, ledger: SqliteLedger) -> None:
    ledger.ask(Register(of=of("ghost#2", age_s=120.0)))
    node.wait_until(lambda: node.json("status")["runs"]["late"] == ["ghost#2"])
    assert "1 late: ghost#2 (coordctl why RUN)" in node.ctl("status").stdout
    ledger.ask(Revoke(run="ghost#2", by="ann"))


def test_a_run_whose_holder_is_silent_is_stuck(node: Node, ledger: SqliteLedger) -> None:
    key = started(ledger, "ghost#3")
    node.wait_until(lambda: node.json("status")["runs"]["stuck"] == ["ghost#3"])
    doctor = node.ctl("doctor", code=1).stdout  # 1: the job that is late
    assert "its holder edge-9.1 has not renewed its lease" in doctor
    ledger.ask(Report(grant=key, state="success", exit_code=0))


def test_a_job_without_a_success_in_time_is_late_until_it_succeeds(node: Node) -> None:
    node.wait_until(lambda: node.json("status")["late_jobs"] == ["expected"])
    assert "no success in time: expected" in node.ctl("status").stdout
    assert "job expected is late" in node.ctl("doctor", code=1).stdout
    listed = {job["name"]: job for job in node.json("job", "list")}
    expected, hello = listed["expected"], listed["hello"]
    assert (expected["late"], expected["expect_within_s"], expected["last_success_at"]) == (True, 1.0, None)
    assert (hello["late"], hello["expect_within_s"], hello["breaker"]) == (False, None, None)
    assert "late" in next(line for line in node.ctl("job", "list").stdout.splitlines() if "expected" in line)


def test_a_late_job_is_on_time_again_after_a_success_and_each_change_is_logged_once(node: Node) -> None:
    write_job(node.directory, "weekly", 'expect_within = "1s"\n' + HELLO)
    node.ctl("reload")
    node.wait_until(lambda: "weekly" in node.json("status")["late_jobs"])
    write_job(node.directory, "weekly", 'expect_within = "1d"\n' + HELLO)
    node.ctl("reload")
    node.ctl("run", "trigger", "weekly", "--id", "1", "--wait")
    node.wait_until(lambda: "weekly" not in node.json("status")["late_jobs"])
    (weekly,) = [job for job in node.json("job", "list") if job["name"] == "weekly"]
    assert weekly["last_success_at"] == node.json("run", "show", "weekly#1")["ended_at"]
    shown = node.json("job", "show", "weekly")
    assert shown["fires"]["launched"] == 0  # it has no schedule
    lines = [json.loads(line) for line in Path(node.directory, "log").read_text().splitlines() if line[:1] == "{"]
    told = [(line["event"], line["level"]) for line in lines if line.get("job") == "weekly"]
    assert [one for one in told if one[0] in ("job.late", "job.on_time")] == [
        ("job.late", "warning"),
        ("job.on_time", "info"),
    ]
    streamed = [
        json.loads(line) for line in node.ctl("events", "--type", "job-late", "-o", "jsonl").stdout.splitlines()
    ]
    kept = [line for path in Path(node.directory, "state/journal").iterdir() for line in path.read_text().splitlines()]
    (event,) = [event for event in streamed if event["job"] == "weekly"]
    assert "it never succeeded" in event["reason"]
    assert len([line for line in kept if '"job-late"' in line and '"weekly"' in line]) == 1
    os.unlink(f"{node.directory}/jobs.d/weekly.toml")
    node.ctl("reload")


def test_a_job_stands_for_its_newest_run(node: Node) -> None:
    for ident in ("older", "newer"):
        node.ctl("run", "trigger", "hello", "--arg", f"who={ident}", "--id", ident, "--wait")
    done = node.ctl("run", "logs", "hello")
    assert (done.stdout, done.stderr) == ("hello newer\n", "the newest run of hello: hello#newer\n")
    assert "hello#newer success" in node.ctl("run", "show", "hello").stdout
    assert node.json("run", "show", "hello")["id"] == "hello#newer"
    assert "expected has no run in the history" in node.ctl("run", "show", "expected", code=1).stderr
    assert "did you mean hello?" in node.ctl("run", "logs", "helo", code=1).stderr


def test_all_runs_of_a_job_that_wait_are_revoked_also_when_its_file_is_gone(node: Node) -> None:
    write_job(node.directory, "removed", 'tags = ["gpu"]\n' + HELLO)
    node.ctl("reload")
    for number in range(3):
        node.ctl("run", "trigger", "removed", "--id", str(number))
    os.unlink(f"{node.directory}/jobs.d/removed.toml")
    node.ctl("reload")
    assert "3 runs of it wait to be launched" in node.ctl("why", "removed").stdout
    done = node.ctl("run", "revoke", "--job", "removed")
    assert sorted(done.stdout.splitlines()) == [f"removed#{number} will not run" for number in range(3)]
    assert {run["state"] for run in node.json("run", "list", "--job", "removed")} == {"revoked"}
    assert "no run of removed waits" in node.ctl("run", "revoke", "--job", "removed").stderr
    assert "either" in node.ctl("run", "revoke", code=2).stderr


def test_a_time_to_come_is_due_also_with_jitter_and_not_in_a_blackout(node: Node) -> None:
    (fire,) = node.json("job", "next", "jittered", "-n", "1")
    assert fire["fire_time"] != fire["due"], "its name puts it into the jitter, off its nominal time"
    assert f"has no run '{fire['run']}': it is due in " in node.ctl("why", fire["run"]).stdout
    monday = node.json("why", "dark@2119-01-02T02:00:00Z")
    assert "its time lies in a blackout of the job, and nothing fires then" in monday["sentence"]
    assert "the next time is 2119-01-03T02:00:00Z" in monday["sentence"]
    assert monday["timeline"] == []


def test_why_and_run_show_have_a_timeline(node: Node) -> None:
    run = node.ctl("run", "trigger", "hello", "--wait").stdout.splitlines()[0]
    steps = node.json("why", run)["timeline"]
    of_rows = node.json("run", "show", run)["timeline"]
    assert [step["what"] for step in of_rows][-3:] == ["granted", "started", "success"]
    assert node.json("why", "hello")["timeline"] == of_rows
    beside = [step for step in steps if step not in of_rows]
    assert [step for step in steps if step not in beside] == of_rows
    # The election runs beside the record, so either may be first.
    (elected,) = [step for step in beside if step["what"] == "elected"]
    beside.remove(elected)
    assert [step["what"] for step in beside] == ["triggered", "run.trigger"], "only journals know of these"
    assert elected["detail"] == f"attempt 0: {elected['node']} first"


def test_why_fails_for_what_is_nowhere_and_a_revoke_names_a_run(node: Node) -> None:
    never = "dark@2030-01-01T02:30:00Z"
    for word in ("hello#nosuch", "nosuchjob", "nosuchjob#1", "nosuchjob@2030-01-01T02:00:00Z", never):
        assert node.json("why", word, code=1)["found"] is False
    assert "it was never due" in node.ctl("why", never, code=1).stdout
    for word in ("hello", "wide", "dark", "dark@2030-01-01T02:00:00Z"):
        assert node.json("why", word)["found"] is True
    for ident in ("dark@yesterday", "dark@2030-13-01T00:00:00Z", "dark@2030-01-01", "dark#", "dark#a b"):
        assert "is not the id of a run" in node.ctl("run", "revoke", ident, code=1).stderr
    for ident in ("dark@2030-01-01T02:00:00Z", "hello#later"):
        assert "forbidden in advance" in node.ctl("run", "revoke", ident).stdout
        assert node.json("why", ident)["found"] is True
