"""A stranger on the machine, against the real daemon: the answers for a user who may only look."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from support.fake_daemon import DAEMON, DEADLINE_S, open_directory, write_job

from cli.test_daemon import AS_ANOTHER, Node, running
from coordd.cli.client import is_subscription
from coordd.services.control.disclosure import METHODS, undecided

SECRET = "sekret-4711"  # noqa: S105 - the argument that nobody else is to see

TALKS = """
params = { who = "world" }
[command]
argv = ["/bin/sh", "-c", "echo $0 >&2; exit 3", "{who}"]
"""

CHECK = """
[[check]]
name = "room"
kind = "disk"
path = "/"
"""

# Methods for viewers, with parameters that give full answers.
QUESTIONS: dict[str, dict[str, Any]] = {
    "ping": {}, "status": {}, "node.list": {}, "job.list": {}, "job.show": {"job": "talks"},
    "job.next": {"job": "tick"},
    "job.fires": {"job": "tick"},
    "run.list": {}, "run.show": {"id": "talks#1"}, "why": {"id": "talks#1"}, "election.list": {}, "breaker.list": {},
    "check.list": {}, "message.list": {}, "check.show": {"name": "talks/room"},
    "events.subscribe": {"backlog": 2000, "follow": False}, "doctor": {}, "ledger.status": {},
}  # fmt: skip

# Drops its rights, asks all questions on one connection, and prints every line that it gets.
STRANGER = """
import os, socket, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65533)
sock = socket.socket(socket.AF_UNIX); sock.settimeout(30); sock.connect(sys.argv[1])
sock.sendall(sys.stdin.buffer.read()); sock.shutdown(socket.SHUT_WR)
while data := sock.recv(65536):
    sys.stdout.buffer.write(data)
"""


def lines() -> bytes:
    return b"".join(
        json.dumps({"id": method, "method": method, "params": params}).encode() + b"\n"
        for method, params in QUESTIONS.items()
    )


def sorted_out(said: bytes) -> dict[str, list[Any]]:
    """method -> its answers (one, or the messages of its stream)."""
    answers: dict[str, list[Any]] = {}
    for line in said.splitlines():
        message = json.loads(line)
        if "error" in message:
            raise AssertionError(message)
        if "method" in message:
            told = {key: value for key, value in message["params"].items() if key not in ("subscription", "end")}
            answers.setdefault(message["method"], []).append(told)
        elif not is_subscription(message["result"]):
            answers.setdefault(message["id"], []).append(message["result"])
    return answers


def asked_by_stranger(node: Node) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, node.socket],
        input=lines(),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return sorted_out(done.stdout)


def asked_by_root(node: Node) -> dict[str, list[Any]]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(node.socket)
        sock.sendall(lines())
        sock.shutdown(socket.SHUT_WR)
        with sock.makefile("rb") as file:
            return sorted_out(file.read())


def test_no_answer_tells_a_stranger_an_argument_and_every_field_is_decided_upon() -> None:
    argv = DAEMON if os.getuid() == 0 else [sys.executable, "-c", AS_ANOTHER]
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "talks", TALKS + CHECK)
        write_job(directory, "tick", 'schedule = "0 2 * * *"\n' + TALKS)
        write_job(directory, "bad", f'owner = "{SECRET}\n')
        with running(directory, argv) as node:
            node.ctl("run", "trigger", "talks", "--arg", f"who={SECRET}", "--id", "1", "--wait", code=1)
            node.ctl("run", "trigger", "talks", "--arg", f"who={SECRET}", "--id", "2")
            full, seen = asked_by_root(node), asked_by_stranger(node)
    assert set(full) == set(seen) == set(QUESTIONS)
    kinds = {event["event"]["type"] for event in full["events.subscribe"] if "event" in event}
    assert {"worker-elect", "task-sent", "task-started", "task-failed"} <= kinds
    assert any(SECRET in json.dumps(event) for event in full["events.subscribe"])
    for method, answers in full.items():
        assert [undecided(METHODS[method], answer) for answer in answers] == [[] for _ in answers], method
    assert SECRET not in json.dumps(seen)
    assert any("event" in event and event["event"]["type"] == "worker-elect" for event in seen["events.subscribe"])
    assert seen["run.show"][0]["args"] == "(hidden)"
