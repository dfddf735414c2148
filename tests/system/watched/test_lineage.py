"""Lineage of real clusters: a receiver gets OpenLineage's events of each run, once, through takeovers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

from coordd.core.lineage import run_id
from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until


class Receiver:
    """Answers POST /api/v1/lineage; the next ``refusals`` are answered with 503."""

    def __init__(self) -> None:
        self.refusals = 0
        self.events: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.tokens.add(self.headers["Authorization"])
                refused = receiver.refusals > 0
                receiver.refusals -= refused
                if not refused and self.path == "/api/v1/lineage":
                    receiver.events.append(checked(json.loads(body)))
                self.send_response(503 if refused else 201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/api/v1/lineage"

    def of(self, run: str) -> list[str]:
        """The types of the events of a run, as they came."""
        return [event["eventType"] for event in self.events if event["run"]["runId"] == run_id("prod", run)]


def checked(event: dict[str, Any]) -> dict[str, Any]:
    """The classes of openlineage-python refuse other documents."""
    RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=Run(event["run"]["runId"], event["run"]["facets"]),
        job=Job(event["job"]["namespace"], event["job"]["name"], event["job"]["facets"]),
        eventType=RunState(event["eventType"]),
    )
    return event


@contextmanager
def receiving(cluster: Cluster) -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.http.serve_forever, daemon=True)
    thread.start()
    token = cluster.path / "token"
    token.write_text("t0ken\n")
    token.chmod(0o600)
    for node in cluster.nodes:
        node.settings = f'[lineage]\nurl = "{receiver.url}"\nnamespace = "prod"\nspark = true\ntoken_file = "{token}"\n'
    try:
        yield receiver
    finally:
        receiver.http.shutdown()
        receiver.http.server_close()
        thread.join()


def no_call_is_open(cluster: Cluster) -> bool:
    return all(row["state"] == "success" for row in cluster.rows() if row["job"] == "hook~openlineage")


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_each_run_has_one_start_and_one_end_through_a_takeover(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster, receiving(cluster) as receiver:
        cluster.job("good", "sleep", 0.1, overlap="allow")
        cluster.job("bad", "sleep", 0.1, code=3)
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="good", id="1")
        cluster.nodes[1].call("run.trigger", job="bad", id="1")
        until(lambda: sorted(receiver.of("good#1")) == ["COMPLETE", "START"], 90)
        until(lambda: sorted(receiver.of("bad#1")) == ["FAIL", "START"], 90)
        cluster.nodes[0].call("run.trigger", job="long", id="1")
        owner = cluster.owner("long#1")
        until(lambda: receiver.of("long#1") == ["START"], 90)
        until(lambda: no_call_is_open(cluster), why="a call that is cut off is made again")
        owner.kill_family()
        cluster.started("long#1", 1)
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")
        until(lambda: receiver.of("long#1") == ["START", "COMPLETE"], 90)
        (failed,) = [event for event in receiver.events if event["eventType"] == "FAIL"]
        assert failed["run"]["facets"]["errorMessage"]["message"] == "exit code 3"
        assert (failed["job"]["namespace"], failed["job"]["name"]) == ("prod", "bad")
        assert receiver.tokens == {"Bearer t0ken"}
        assert len(receiver.events) == 6, "nothing is told twice, and nothing of the calls themselves"


def test_a_receiver_that_refuses_is_tried_again_and_then_there_is_a_dead_letter() -> None:
    with cluster_of(1) as cluster, receiving(cluster) as receiver:
        node = cluster.nodes[0]
        cluster.job("good", "sleep", 0.1, overlap="allow")
        cluster.start()
        receiver.refusals = 2
        node.call("run.trigger", job="good", id="1")
        until(lambda: sorted(receiver.of("good#1")) == ["COMPLETE", "START"], 90)
        receiver.refusals = 1000
        node.call("run.trigger", job="good", id="2")
        cluster.becomes("good#2", "success")

        def letters() -> list[Any]:
            return [one for one in node.call("deadletter.list") if one["kind"] == "hook"]

        until(lambda: len(letters()) == 2, 90)
        assert {one["job"] for one in letters()} == {"hook~openlineage"}
        receiver.refusals = 0
        for letter in letters():
            node.call("deadletter.replay", id=letter["id"])
        until(lambda: sorted(receiver.of("good#2")) == ["COMPLETE", "START"], 90)
