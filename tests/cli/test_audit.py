"""The audit of a real daemon: each privileged call, done or refused, with its caller; and a broken chain."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.fake_daemon import DAEMON, DEADLINE_S, open_directory, write_job

from cli.test_daemon import AS_ANOTHER, running
from cli.test_viewers import STRANGER
from coordd.services.control.methods import Methods

JOB = '[command]\nargv = ["/bin/true"]\n[[check]]\nname = "room"\nkind = "load"\n'

# One call of each privileged method.
CALLS: dict[str, dict[str, Any]] = {
    "node.drain": {}, "node.resume": {}, "job.suspend": {"job": "j"}, "job.resume": {"job": "j"},
    "run.trigger": {"job": "j", "id": "1"}, "run.cancel": {"id": "j#9"}, "run.revoke": {"id": "j#2"},
    "run.resolve": {"id": "j#2", "as": "failed"}, "run.logs": {"id": "j#1"}, "run.rerun": {"id": "j#9"},
    "election.open": {"id": "e", "topic": "drill"}, "breaker.reset": {"name": "ledger"}, "reload": {},
    "breaker.isolate": {"name": "job:j"},
    "check.run": {"name": "j/room"}, "check.report": {"name": "j/room", "state": "degraded"},
    "ledger.export": {}, "ledger.import": {"rows": []}, "ledger.accept_epoch": {}, "ledger.accept-epoch": {},
    "job.backfill": {"job": "j", "from": 0.0, "to": 1.0},
    "alarm.clear": {"note": "seen"}, "job.activate": {"job": "j"}, "audit": {},
    "ledger.accept_identity": {}, "ledger.accept-identity": {},
    "deadletter.replay": {"id": "j#9"}, "deadletter.discard": {"id": "j#9", "note": "seen"},
    "config.publish": {"files": {}}, "config.show": {}, "config.rollback": {},
    "pool.set": {"name": "heavy", "size": 1}, "pool.unset": {"name": "heavy"},
    "publish": {"to": "warehouse", "body": "x"},
}  # fmt: skip


def lines(calls: dict[str, dict[str, Any]]) -> bytes:
    return b"".join(
        json.dumps({"id": f"ask-{method}", "method": method, "params": params}).encode() + b"\n"
        for method, params in calls.items()
    )


def as_stranger(path: str, data: bytes) -> bytes:
    argv = [sys.executable, "-I", "-c", STRANGER, path]
    return subprocess.run(argv, input=data, capture_output=True, timeout=DEADLINE_S, check=True).stdout


def test_each_privileged_call_is_recorded_done_or_refused() -> None:
    privileged = {name for name, method in Methods.table(Methods.__new__(Methods)).items() if method.privileged}
    assert privileged == set(CALLS), "a new method needs a call here"
    argv = DAEMON if os.getuid() == 0 else [sys.executable, "-c", AS_ANOTHER]
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "j", JOB)
        with running(directory, argv) as node:
            said = as_stranger(node.socket, lines(CALLS))
            assert {json.loads(line)["error"]["data"]["kind"] for line in said.splitlines()} == {"not_permitted"}
            for method, params in CALLS.items():
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(DEADLINE_S)
                    sock.connect(node.socket)
                    sock.sendall(lines({method: params}))
                    sock.recv(65536)
            records = node.json("audit", "--since", "1h")["records"]
            assert node.ctl("audit", "--since", "2020-01-01").stdout.count("refused") >= len(CALLS)
            assert node.json("audit", "--since", "2120-01-01")["records"] == []
    refused = [record for record in records if record["outcome"] == "refused" and "may not" in record["reason"]]
    assert {record["method"] for record in refused} == set(CALLS)
    assert {(record["uid"], record["request"]) for record in refused} == {
        (65533 if os.getuid() == 0 else os.getuid(), f"ask-{method}") for method in CALLS
    }
    assert all(record["pid"] for record in records)
    done = {record["method"] for record in records if record["outcome"] == "done"}
    named = {record["method"]: record for record in records if record["by"] == "root"}
    assert set(named) == set(CALLS) - {
        "ledger.accept-identity"
    }  # which is recorded by its other name; also what could not be done, with the reason
    assert done >= {
        "node.drain",
        "node.resume",
        "job.suspend",
        "run.trigger",
        "election.open",
        "reload",
        "ledger.export",
    }
    assert named["run.trigger"]["subject"] == "j#1"
    assert "no run" in named["run.cancel"]["reason"]


def test_a_flood_of_refused_calls_is_counted_not_written() -> None:
    argv = DAEMON if os.getuid() == 0 else [sys.executable, "-c", AS_ANOTHER]
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        with running(directory, argv) as node:
            line = b'{"id":1,"method":"node.drain","params":{"node":"' + b"x" * 500 + b'"}}\n'
            for _ in range(10):
                assert as_stranger(node.socket, line * 300).count(b"not_permitted") == 300
        with running(directory, argv) as node:
            records = node.json("audit")["records"]
            size = sum(path.stat().st_size for path in Path(directory, "state", "journal").iterdir())
    drains = [record for record in records if record["method"] == "node.drain"]
    assert len(drains) == 2
    assert sum(record["count"] for record in drains) == 3000
    assert size < 200_000


def test_a_broken_chain_is_named_and_a_restart_is_none() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        for number in range(3):
            with running(directory, DAEMON) as node:
                node.ctl("node", "drain")
                node.ctl("node", "resume")
                if number == 1:
                    node.process.send_signal(signal.SIGKILL)
                    node.process.wait(DEADLINE_S)
        with running(directory, DAEMON) as node:
            assert node.json("audit")["chain"]["intact"]
            assert {c["check"]: c["state"] for c in node.json("doctor")}["audit"] == "ok"
            segment = Path(directory, "state", "journal", "00000001.jsonl")
            segment.write_bytes(segment.read_bytes().replace(b'"node.drain"', b'"node.nudge"', 1))
            at = next(n for n, line in enumerate(segment.read_bytes().splitlines(), 1) if b"node.nudge" in line)
            broken = node.ctl("audit", code=1)
            assert f"00000001.jsonl:{at}: this line is not what was written" in broken.stderr
            told = {c["check"]: c for c in node.json("doctor", code=1)}["audit"]
            assert told["state"] == "fail"
            assert f"00000001.jsonl:{at}" in told["text"]


def test_a_reload_by_a_signal_is_recorded_done_or_refused() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        with running(directory, DAEMON) as node:

            def reloads() -> list[tuple[str, str, int]]:
                """Oldest first."""
                records = sorted(node.json("audit")["records"], key=lambda record: record["n"])
                return [(one["outcome"], one["by"], one["uid"]) for one in records if one["method"] == "reload"]

            node.process.send_signal(signal.SIGHUP)
            node.wait_until(lambda: len(reloads()) == 1)
            Path(directory, "coordd.toml").write_text("nonsense = 1\n")
            node.process.send_signal(signal.SIGHUP)
            node.wait_until(lambda: len(reloads()) == 2)

            assert reloads() == [("done", "SIGHUP", os.getuid()), ("refused", "SIGHUP", os.getuid())]
            assert node.process.poll() is None
