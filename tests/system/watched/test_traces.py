"""Traces of real clusters, as a receiver that reads OTLP's protobuf gets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from support.servers.otlp import Got, Receiver

from coordd.core.trace import span_id, trace_id
from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until


def send_to(cluster: Cluster, receiver: Receiver) -> None:
    for node in cluster.nodes:
        node.settings = f'[tracing]\notlp = "{receiver.url}"\n'


def whole(receiver: Receiver, run: str) -> dict[str, Got]:
    """The spans of a run by name (with the attempt), once its root is there."""
    until(lambda: any(not span.parent for span in receiver.of_run(run)), why=f"the trace of {run} has its root")
    return {named(span): span for span in receiver.of_run(run)}


def named(span: Got) -> str:
    part = span.name in ("election", "claim", "gate", "exec", "end")
    return f"{span.name} {span.attributes['coordd.attempt']}" if part else span.name


def environment(cluster: Cluster, job: str) -> Path:
    """A job that writes its TRACEPARENT into a file, one line an attempt, and runs until it may end."""
    told = cluster.path / f"{job}.traceparent"
    cluster.job(job, "until", cluster.go(job))
    path = cluster.jobs_dir / f"{job}.toml"
    argv = tomllib.loads(path.read_text())["command"]["argv"]
    wrapped = ["/bin/sh", "-c", f'echo $TRACEPARENT >> {told}; exec "$@"', "sh", *argv]
    path.write_text(f"[command]\nargv = {json.dumps(wrapped)}\n")
    return told


def test_a_run_that_is_taken_over_is_one_trace_with_two_attempts() -> None:
    with Receiver() as receiver, cluster_of(3, backend="production") as cluster:
        send_to(cluster, receiver)
        told = environment(cluster, "long")
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="long", id="1")
        until(told.exists)
        owner = cluster.owner("long#1")
        owner.kill_family()
        until(lambda: len(told.read_text().splitlines()) == 2, 120, why="another node has taken over")
        other = cluster.owner("long#1", 1)
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")
        found = whole(receiver, "long#1")

        trace = trace_id(found["run long"].attributes["coordd.cluster"], "long#1")
        assert {span.trace for span in found.values()} == {trace}
        assert {*found} >= {"run long", "fire", "attempt 0", "claim 0", "gate 0", "exec 0", "end 0"}
        assert {*found} >= {"attempt 1", "claim 1", "gate 1", "exec 1", "end 1", "election 0"}
        root, first, second = found["run long"], found["attempt 0"], found["attempt 1"]
        assert (root.parent, root.status, root.attributes["coordd.attempts"]) == ("", "STATUS_CODE_OK", 2)
        assert {first.parent, second.parent, found["fire"].parent, found["election 0"].parent} == {root.id}
        assert {found[f"{name} 1"].parent for name in ("claim", "gate", "exec", "end")} == {second.id}
        assert (first.links, second.links) == ((), ((trace, first.id),))
        assert (first.status, second.status) == ("STATUS_CODE_ERROR", "STATUS_CODE_OK")
        assert first.message.startswith("lost: ")
        assert first.attributes["coordd.node"] == owner.name
        assert second.attributes["coordd.node"] == other.name != owner.name
        assert first.resource["service.instance.id"] != owner.name, "a dead node says nothing of its own"
        assert second.resource["service.instance.id"] == other.name
        assert root.start <= first.start <= first.end <= second.start + 0.001 <= second.end + 0.001 <= root.end + 0.002
        assert told.read_text().splitlines() == [f"00-{trace}-{span_id(trace, 'exec', n)}-01" for n in (0, 1)]
        assert found["exec 1"].id == span_id(trace, "exec", 1)
        assert max(Counter(span.id for span in receiver.of_run("long#1")).values()) == 1, "each span is sent once"
        lines = [json.loads(line) for line in other.log().splitlines() if line.startswith("{")]
        about = [line for line in lines if line.get("run") == "long#1"]
        assert about
        assert {line["trace_id"] for line in about} == {trace}


def test_failures_retries_and_runs_that_never_start_say_why() -> None:
    with Receiver() as receiver, cluster_of(1) as cluster:
        node = cluster.nodes[0]
        node.env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=data",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
        }
        cluster.job("bad", "sleep", 0.1, code=3, retry={"attempts": 2, "delay": "1s"})
        cluster.job("long", "until", cluster.go("long"), overlap="forbid")
        cluster.start()
        node.call("run.trigger", job="bad", id="1")
        bad = whole(receiver, "bad#1")
        assert (bad["run bad"].status, bad["run bad"].message) == ("STATUS_CODE_ERROR", "failure: exit code 3")
        assert [bad[f"exec {n}"].status for n in (0, 1)] == ["STATUS_CODE_ERROR"] * 2
        assert bad["attempt 1"].attributes["coordd.exit_code"] == 3
        assert bad["attempt 1"].links == ((bad["attempt 0"].trace, bad["attempt 0"].id),)
        node.call("run.trigger", job="long", id="1")
        cluster.started("long#1", 0)
        node.call("run.trigger", job="long", id="2")
        rejected = whole(receiver, "long#2")
        assert rejected["run long"].status == "STATUS_CODE_ERROR"
        assert "overlap" in rejected["run long"].attributes["coordd.reason"]
        assert not any(name.startswith("exec") for name in rejected)
        assert bad["run bad"].resource["deployment.environment"] == "test"
        path, headers = receiver.requests[0]
        assert (path, headers["x-team"]) == ("/v1/traces", "data")


def test_a_receiver_that_hangs_holds_nothing_up_and_is_named() -> None:
    with Receiver() as receiver, cluster_of(1) as cluster:
        node = cluster.nodes[0]
        node.env = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        send_to(cluster, receiver)
        receiver.hold.clear()
        cluster.job("good", "sleep", 0.1, overlap="allow")
        cluster.start()
        node.call("run.trigger", job="good", id="1")
        cluster.becomes("good#1", "success")

        def traces() -> dict[str, str]:
            (check,) = [check for check in node.call("doctor") if check["check"] == "traces"]
            return {"state": check["state"], "text": check["text"]}

        until(lambda: traces()["state"] == "warn", 60, why="doctor says that nobody takes the spans")
        node.call("run.trigger", job="good", id="2")
        cluster.becomes("good#2", "success")
        until(lambda: "tracing.not_sent" in node.log())
        assert node.log().count("tracing.not_sent") == 1
        receiver.hold.set()
        until(lambda: bool(receiver.of_run("good#2")), 60, why="the receiver is back")
        node.stop()


@pytest.mark.parametrize(("settings", "env"), [("", {}), ("", {"OTEL_SDK_DISABLED": "true"})])
def test_without_the_setting_nothing_of_opentelemetry_is_loaded(settings: str, env: dict[str, str]) -> None:
    with cluster_of(1) as cluster:
        node = cluster.nodes[0]
        node.settings, node.env = settings, {**env, "PYTHONVERBOSE": "1"}
        told = environment(cluster, "long")
        cluster.start()
        node.call("run.trigger", job="long", id="1")
        until(told.exists)
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")
        assert told.read_text() == "\n", "no TRACEPARENT"
        assert "opentelemetry" not in node.log()
        assert "coordd.services.tracing" in node.log(), "the log names what is loaded"
        assert [check for check in node.call("doctor") if check["check"] == "traces"] == []


def test_without_the_extra_the_check_the_start_and_doctor_say_so(tmp_path: Path) -> None:
    """An empty package of that name hides the installed one."""
    hidden = tmp_path / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    with cluster_of(1) as cluster:
        node = cluster.nodes[0]
        node.env = {"PYTHONPATH": str(tmp_path / "hidden")}
        node.settings = '[tracing]\notlp = "http://127.0.0.1:4318"\n'
        cluster.job("good", "sleep", 0.1)
        cluster.start()
        said = "traces need the otel extra"
        assert said in node.log()
        (check,) = [check for check in node.call("doctor") if check["check"] == "traces"]
        assert (check["state"], said in check["text"]) == ("warn", True)
        node.call("run.trigger", job="good", id="1")
        cluster.becomes("good#1", "success")
        checked = subprocess.run(
            [sys.executable, "-m", "coordd", "check-config", str(node.config_path)],
            env={**os.environ, **node.env},
            cwd=node.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, "jobs do not depend on it"
        assert said in checked.stdout + checked.stderr
