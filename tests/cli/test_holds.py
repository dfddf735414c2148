"""A real daemon: what a person stops stays stopped over a restart, says who, why and until when, and ends by itself."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_daemon import DAEMON, DEADLINE_S, open_directory, write_job

from cli.test_daemon import HELLO, Node, running

ME = pwd.getpwuid(os.getuid()).pw_name
LONG = "2120-01-01T00:00:00Z"


@pytest.fixture
def directory() -> Iterator[str]:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "sales", 'schedule = "0 2 * * *"\n' + HELLO)
        write_job(directory, "other", HELLO)
        yield directory


def call(node: Node, method: str, **params: Any) -> Any:
    """The answer, or the kind of the error."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(node.socket)
        sock.sendall(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
        with sock.makefile("rb") as file:
            said = json.loads(file.readline())
    return said["result"] if "result" in said else said["error"]["data"]["kind"]


def checks(node: Node) -> dict[str, str]:
    return {check["check"]: check["text"] for check in node.json("doctor")}


def told(hold: dict[str, Any]) -> tuple[Any, ...]:
    return (hold["until"], hold["note"], hold["by"], hold["uid"])


def test_a_suspension_with_its_end_and_note_outlives_the_daemon_and_is_told_everywhere(directory: str) -> None:
    with running(directory, DAEMON) as node:
        done = node.ctl("job", "suspend", "sales", "--until", LONG, "--note", "the table moves")
        assert done.stdout == f"sales is suspended until {LONG} (the table moves)\n"
    with running(directory, DAEMON) as node:
        whole = (LONG, "the table moves", ME, os.getuid())
        sentence = f"sales is suspended until {LONG} by {ME}, uid {os.getuid()}, since "
        listed = {job["name"]: job["suspended"] for job in node.json("job", "list")}
        assert told(listed["sales"]) == whole
        assert listed["other"] is None
        assert told(node.json("job", "show", "sales")["suspended"]) == whole
        node.wait_until(lambda: node.json("status")["suspended"]["jobs"] == ["sales"])
        assert "suspended: sales" in node.ctl("status").stdout
        assert sentence in checks(node)["job suspended"]
        assert sentence in node.ctl("why", "sales").stdout
        assert node.json("job", "show", "sales")["next_fire_at"] == "2120-01-01T02:00:00Z"
        assert (
            f"none of these starts until {LONG}, or coordctl job resume sales"
            in node.ctl("job", "next", "sales").stderr
        )
        shown = node.ctl("job", "list").stdout
        assert re.search(
            rf"^sales +suspended .*suspended until {LONG} by {ME} \(the table moves\)$", shown, re.MULTILINE
        )
        records = node.json("audit")["records"]
        assert f"sales until {LONG}: the table moves" in [record["subject"] for record in records]


def test_a_suspension_ends_by_itself(directory: str) -> None:
    with running(directory, DAEMON) as node:
        node.ctl("job", "suspend", "other", "--until", "6s", "--note", "a moment")
        run = node.ctl("run", "trigger", "other").stdout.strip()
        assert "other is suspended until" in node.ctl("why", run).stdout
        node.wait_until(lambda: node.json("run", "show", run)["state"] == "success")
        assert node.json("job", "show", "other")["suspended"] is None


def test_all_jobs_at_once_and_each_by_itself(directory: str) -> None:
    with running(directory, DAEMON) as node:
        node.ctl("job", "suspend", "sales")
        assert (
            node.ctl("job", "suspend", "--all", "--note", "maintenance").stdout
            == "all jobs are suspended (maintenance)\n"
        )
        run = node.ctl("run", "trigger", "other").stdout.strip()
    with running(directory, DAEMON) as node:
        assert f"All jobs are suspended by {ME}" in node.ctl("why", run).stdout
        assert "job resume --all" in node.ctl("why", "other").stdout
        listed = {job["name"]: job["suspended"]["all"] for job in node.json("job", "list")}
        assert listed == {"sales": False, "other": True}
        node.wait_until(lambda: node.json("status")["suspended"]["all"] is not None)
        assert "all suspended by" in node.ctl("status").stdout
        assert "All jobs are suspended" in checks(node)["all jobs suspended"]
        assert "job resume --all" in node.ctl("job", "resume", "sales").stderr
        node.ctl("job", "suspend", "sales")
        assert node.ctl("job", "resume", "--all").stdout == "jobs may run again\n"
        node.wait_until(lambda: node.json("run", "show", run)["state"] == "success")
        assert node.json("job", "show", "sales")["suspended"]["all"] is False
        assert node.ctl("job", "suspend", "sales", "--all", code=2).stderr
        assert node.ctl("job", "resume", code=2).stderr


def test_a_drain_outlives_the_daemon_and_ends_by_itself(directory: str) -> None:
    with running(directory, DAEMON) as node:
        done = node.ctl("node", "drain", "--until", LONG, "--note", "a new disk")
        assert done.stdout == f"edge-1 is draining until {LONG} (a new disk); 0 of its runs continue\n"
    with running(directory, DAEMON, state="draining") as node:
        whole = (LONG, "a new disk", ME, os.getuid())
        assert told(node.json("status")["drained"]) == whole
        assert f"drained   until {LONG} by {ME} (a new disk)" in node.ctl("status").stdout
        (listed,) = node.json("node", "list")
        assert (listed["says"], told(listed["drained"])) == ("draining", whole)
        assert f"draining until {LONG} by {ME} (a new disk)" in node.ctl("node", "list").stdout
        sentence = f"edge-1 is drained until {LONG} by {ME}, uid {os.getuid()}, since "
        assert sentence in checks(node)["node drained"]
        assert sentence in node.ctl("why", "other").stdout
        run = node.ctl("run", "trigger", "other").stdout.strip()
        assert sentence in node.ctl("why", run).stdout
        node.ctl("node", "drain", "--until", "1s")
        node.wait_until(lambda: node.json("run", "show", run)["state"] == "success")
        assert node.json("status")["drained"] is None
        assert node.json("status")["state"] == "ready"


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"until": 1.0}, "bad_argument"),
        ({"until": 9e12}, "bad_argument"),
        ({"until": "tomorrow"}, "invalid_params"),
        ({"until": [1]}, "invalid_params"),
        ({"note": "x" * 501}, "invalid_params"),
        ({"note": "two\nlines"}, "invalid_params"),
    ],
)
def test_an_end_that_is_over_and_a_note_that_is_no_line_are_refused(
    one: Node, params: dict[str, Any], kind: str
) -> None:
    for method, more in (("job.suspend", {"job": "sales"}), ("job.suspend", {"all": True}), ("node.drain", {})):
        assert call(one, method, **more, **params) == kind


def test_a_run_for_a_node_that_is_not_there_is_refused(one: Node) -> None:
    done = one.ctl("run", "trigger", "other", "--node", "edge-9", code=1)
    assert "no node 'edge-9' is known here" in done.stderr
    assert "known: edge-1" in done.stderr


def test_a_run_for_this_node_runs_here(one: Node) -> None:
    run = one.ctl("run", "trigger", "other", "--node", "edge-1", "--wait").stdout.strip().splitlines()[0]
    shown = one.json("run", "show", run)
    assert (shown["state"], shown["only_node"]) == ("success", "edge-1")


@pytest.fixture(scope="module")
def one() -> Iterator[Node]:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "sales", 'schedule = "0 2 * * *"\n' + HELLO)
        write_job(directory, "other", HELLO)
        with running(directory, DAEMON) as node:
            yield node


# ---- the fire times of a job, and those that pass while it is suspended

SECONDLY = 'schedule = "every 1s"\nstart_within = "2s"\noverlap = "allow"\n' + HELLO
TIMING = "renew_interval = 0.5\nledger_timeout = 0.5\nkill_grace = 1.0\nlease = 30.0"


def decisions(node: Node) -> Counter[str]:
    fires: list[dict[str, Any]] = node.json("job", "fires", "tick")
    times = [fire["fire_time"] for fire in fires]
    assert times == sorted(set(times)), "one line for each fire time"
    return Counter(fire["decision"] for fire in fires)


def test_each_fire_time_has_one_line_and_a_suspension_is_one_span() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "tick", SECONDLY)
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: decisions(node)["launched"] >= 2)
            node.ctl("job", "suspend", "tick")
            node.wait_until(lambda: decisions(node)["suspended"] >= 3)
            table = node.ctl("job", "fires", "tick").stdout
            node.ctl("job", "resume", "tick")
            launched = decisions(node)["launched"]
            node.wait_until(lambda: decisions(node)["launched"] > launched)

            (fire, *_) = [one for one in node.json("job", "fires", "tick") if one["decision"] == "suspended"]
            answer = node.ctl("why", f"tick@{fire['fire_time']}").stdout
            assert "was suspended: the job was suspended until its start_within had passed" in answer.replace("\n", " ")
            times = [one["fire_time"] for one in node.json("job", "fires", "tick")]
            between = node.json("job", "fires", "tick", "--from", times[0], "--to", times[2])
            assert [one["fire_time"] for one in between] == times[:3], "both are included"
            run = next(one["run"] for one in node.json("job", "fires", "tick") if one["decision"] == "launched")
            timeline = node.ctl("why", run).stdout
            assert "AT (UTC)" in timeline
            assert "granted" in timeline

            spans = [line for line in table.splitlines() if "the job was suspended" in line]
            assert len(spans) == 1
            assert " to 2" in spans[0]
            missed = node.json("run", "list", "--state", "missed")
            assert missed == []
