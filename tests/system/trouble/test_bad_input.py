"""Bad machines, files and messages: coordd says what is wrong, stays up, and runs every job that can run."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from coordd.core.wire import codec
from coordd.core.wire.events import (
    Action,
    AnyEvent,
    Candidacy,
    Packet,
    TaskFailed,
    TaskSucceeded,
    WorkerElect,
    WorkerHeartbeat,
    WorkerOffline,
)
from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import exists, until

EXIT_CONFIG = 78


def trigger(node: Node, job: str, ident: str = "1") -> str:
    return str(node.call("run.trigger", job=job, id=ident)["id"])


# ---- names


def test_a_second_node_of_the_same_name_refuses_to_start() -> None:
    with cluster_of(1) as cluster:
        cluster.job("hello", "sleep", 0)
        cluster.start()
        first = cluster.nodes[0]
        assert first.process is not None
        second = Node(cluster, "n1", place="twin")
        cluster.nodes.append(second)
        second.launch()
        assert second.wait() == EXIT_CONFIG
        sentence = f"coordd: another live node is named 'n1' (pid {first.process.pid})"
        assert [line for line in second.log().splitlines() if line.startswith(sentence)]
        third = Node(cluster, "n3", place="n1")  # another name, but the first node's directories
        third.config_path = cluster.path / "third.toml"
        cluster.nodes.append(third)
        third.launch()
        assert third.wait() == EXIT_CONFIG
        assert "in use: another coordd runs with this state_dir" in third.log()
        assert first.status()["members"]["alive"] == 1
        trigger(first, "hello")
        cluster.becomes("hello#1", "success")


def test_of_two_nodes_of_one_name_that_start_together_one_goes_on() -> None:
    with cluster_of(1) as cluster:
        cluster.nodes.append(Node(cluster, "n1", place="twin"))
        for node in cluster.nodes:
            node.launch()
        until(lambda: [node for node in cluster.nodes if not node.up])
        (refused,) = [node for node in cluster.nodes if not node.up]
        assert refused.wait() == EXIT_CONFIG
        assert "another live node is named" in refused.log()
        (other,) = cluster.others(refused)
        other.ready()


# ---- Spark


def test_nodes_without_spark_or_java_abstain() -> None:
    with cluster_of(3) as cluster:
        bare, no_java, able = cluster.nodes
        submit = cluster.path / "spark" / "bin" / "spark-submit"
        bare.settings = f'[spark]\nsubmit = "{submit}"\n'
        no_java.settings = f'[spark]\nsubmit = "{_fake_submit(cluster, "other")}"\n'
        no_java.env = {"PATH": str(cluster.path / "empty")}
        able.settings = f'[spark]\nsubmit = "{_fake_submit(cluster, "able")}"\n'
        cluster.job_file(
            "count", f'overlap = "allow"\n[spark]\napplication = "{cluster.program}"\nargs = ["--rows", "{{run}}"]\n'
        )
        cluster.start()
        for number in range(4):
            trigger(cluster.nodes[number % 3], "count", str(number))
        for number in range(4):
            cluster.becomes(f"count#{number}", "success")
        assert {entry.node for entry in cluster.starts()} == {able.name}
        assert {entry.attempt for entry in cluster.starts()} == {0}
        assert f"spark.submit: {submit} is not there" in bare.why("count")
        assert "no Java: set JAVA_HOME" in no_java.why("count")
        able.call("node.drain")
        trigger(able, "count", "nowhere")
        until(lambda: f"{submit} is not there" in able.why("count#nowhere"))
        assert "no Java" in able.why("count#nowhere")
        assert "draining" in able.why("count#nowhere")
        submit.parent.mkdir(parents=True)
        shutil.copy(cluster.path / "able" / "spark-submit", submit)
        bare.call("reload")
        cluster.becomes("count#nowhere", "success")
        assert cluster.starts("count#nowhere")[0].node == bare.name


def _fake_submit(cluster: Cluster, name: str) -> Path:
    """A spark-submit that only starts the tests' program."""
    path = cluster.path / name / "spark-submit"
    path.parent.mkdir()
    words = " ".join([sys.executable, "-I", "-S", "-E", str(cluster.program), str(cluster.log_path)])
    path.write_text(f"#!/bin/sh\nexec {words} sleep 0 exit 0\n")
    path.chmod(0o755)
    return path


# ---- files


def test_a_reload_is_all_or_nothing() -> None:
    with cluster_of(1) as cluster:
        cluster.job("one", "sleep", 0, description="first")
        cluster.job("two", "sleep", 0, description="first")
        cluster.start()
        node = cluster.nodes[0]

        def descriptions() -> dict[str, str]:
            return {job["name"]: job["description"] for job in node.call("job.list") if job["enabled"]}

        before = descriptions()
        assert before == {"one": "first", "two": "first"}
        path = cluster.jobs_dir / "two.toml"
        good = path.read_text()
        config = node.config_path.read_text()
        cluster.job("one", "sleep", 0.01, description="second")
        for harm, said in (
            ("broken", "is not TOML"),
            ("dangling", "cannot be read"),
            ("a directory", "cannot be read"),
        ):
            path.unlink(missing_ok=True)
            if harm == "broken":
                path.write_text("[command\n")
            elif harm == "dangling":
                path.symlink_to(cluster.path / "nowhere")
            else:
                path.mkdir()
            with pytest.raises(CallError, match=said) as caught:
                node.call("reload")
            assert "two.toml" in str(caught.value)
            assert descriptions() == before, harm
            path.rmdir() if path.is_dir() else path.unlink()
        path.write_text(good)
        away = cluster.path / "away"
        cluster.jobs_dir.rename(away)
        with pytest.raises(CallError, match="no such directory"):
            node.call("reload")
        assert descriptions() == before, "a directory that is not mounted must not remove every job"
        away.rename(cluster.jobs_dir)
        node.config_path.write_text(config.replace("renew_interval", "renew_intervall"))
        with pytest.raises(CallError, match='did you mean "renew_interval"'):
            node.call("reload")
        assert descriptions() == before
        node.config_path.write_text(config)
        trigger(node, "two")
        cluster.becomes("two#1", "success")
        assert "config.not_reloaded" in node.log()

        cluster.job_file("new", 'argv = "none"\n')
        said = node.call("reload")
        assert (said["changed"], said["disabled"]) == (["one"], ["new"])
        path.unlink()
        assert node.call("reload")["removed"] == ["two"]
        assert descriptions() == {"one": "second"}
        (bad,) = [job for job in node.call("job.list") if not job["enabled"]]
        assert (bad["name"], "new.toml" in bad["problems"][0]) == ("new", True)
        with pytest.raises(CallError) as caught:
            trigger(node, "new")
        assert caught.value.kind == "bad_job"


def test_an_application_that_would_be_an_option() -> None:
    with cluster_of(1) as cluster:
        cluster.job_file("option", '[spark]\napplication = "--class"\n')
        cluster.job_file("program", '[command]\nargv = ["-c", "true"]\n')
        cluster.job("given", "sleep", "{seconds}", params={"seconds": "0"})
        cluster.start()
        node = cluster.nodes[0]
        assert node.status()["jobs"] == {"enabled": 1, "held": [], "disabled": ["option", "program"]}
        for job in ("option", "program"):
            with pytest.raises(CallError) as caught:
                trigger(node, job)
            assert caught.value.kind == "bad_job"
            assert f"{job}.toml" in node.why(job)
        node.call("run.trigger", job="given", id="1", args={"seconds": "--help"})
        row = cluster.becomes("given#1", "failure")
        assert row["exit_code"] == 1, "float('--help') fails in the program; nobody took it for an option"
        assert cluster.starts("given#1")


# ---- messages


def packet(events: list[AnyEvent], *, name: str = "evil", cluster: str = "default", v: int = 1, **head: int) -> bytes:
    return codec.encode(Packet(v, cluster, name, head.get("pid", 1), "1-0000000000000000", 0, 0, events))


def refuses(node: Node, count: int) -> None:
    """Wait until a node has refused that many messages."""
    until(lambda: node.status()["counts"]["malformed"] >= count, why=f"{node.name} refuses {count}")


def forgeries(run: str, token: int) -> list[bytes]:
    """Packets that are well formed, but false."""
    return [
        packet([WorkerHeartbeat(clock=2**63)]),  # an absurd clock
        packet([WorkerHeartbeat(clock=-1)]),
        packet([WorkerHeartbeat(clock=5)], v=9),  # another protocol
        packet([WorkerHeartbeat(clock=5)], cluster="elsewhere"),
        packet([WorkerOffline(clock=5)], name="n1"),  # a node's own name; then a peer's name with another pid
        packet([WorkerOffline(clock=5)], name="n2", pid=2),
        packet([TaskSucceeded(clock=9, uuid="x", run=run, name="long", attempt=0, token=token)]),
        packet([TaskFailed(clock=9, uuid="x", run=run, name="long", attempt=0, token=token + 1)]),
        packet([WorkerElect(clock=9, id="x/0", topic="none", candidacy=Candidacy(0, 0, "evil.1"))]),
        packet(
            [
                WorkerElect(
                    clock=9,
                    id=f"{run}/7",
                    topic="command",
                    candidacy=Candidacy(0, 0, "evil.1"),
                    view=("evil.1",),
                    action=Action("long", run, attempt=7, digest="forged"),
                )
            ]
        ),
        packet(
            [
                WorkerElect(
                    clock=9,
                    id="ghost#1/0",
                    topic="command",
                    candidacy=Candidacy(0, 0, "evil.1"),
                    action=Action("hello", "hello#ghost", digest="forged"),
                )
            ]
        ),
    ]


def rubbish(packets: list[bytes]) -> list[bytes]:
    """Random bytes, decoder bombs (deep nesting, huge lengths), and these packets with some bytes changed."""
    chance = random.Random(7)
    garbage = [chance.randbytes(chance.randrange(1, 2000)) for _ in range(300)]
    garbage += [b"\xdc\xff\xff" * 5000, b"\x91" * 60000, b"\x00", json.dumps({"v": 1}).encode()]
    for good in packets * 40:
        bad = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        garbage.append(bytes(bad[: chance.randrange(1, len(bad) + 1)]))
    return garbage


def test_garbage_and_forgeries_on_the_bus() -> None:
    with cluster_of(2) as cluster:
        cluster.job("long", "until", cluster.go("long"), overlap="allow")
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        one, two = cluster.nodes
        run = trigger(one, "long")
        first = cluster.started(run)
        forged = forgeries(run, first.token)
        garbage = rubbish(forged[:4])
        before = {node.name: node.status()["counts"]["malformed"] for node in cluster.nodes}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(30)
            for address in sorted((cluster.path / "bus").iterdir()):
                for data in [*forged, *garbage, b"x" * 100_000, *forged]:
                    sock.sendto(data, str(address))
        for number in range(4):
            trigger(cluster.nodes[number % 2], "hello", str(number))
        for number in range(4):
            cluster.becomes(f"hello#{number}", "success")
        for node in cluster.nodes:
            refuses(node, before[node.name] + 200)
            assert node.status()["bus"]["rejected"] >= 1, "the oversized one"
            assert "message.refused" in node.log()
            assert node.log().count("message.refused") < 20, "it logs fewer lines than messages"
        assert two.status()["members"]["alive"] >= 2
        assert exists(first.pid)
        assert cluster.row(run)["state"] == "started", "nobody believes that it has ended"
        cluster.go("long").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        assert len(cluster.starts()) == 5
        assert not cluster.row("hello#ghost")


def test_the_doctor_tells_jobs_that_do_not_run_from_those_that_a_file_has_a_remark_on() -> None:
    with cluster_of(1) as cluster:
        cluster.job("hint", "sleep", 0, misfire="skip")  # without a schedule
        cluster.job("wrong", "sleep", 0, retries=0)
        (cluster.jobs_dir / "nowhere.toml").write_text('[command]\nargv = ["no-such-program"]\n')
        (node,) = cluster.start().nodes

        told = {check["check"]: check for check in node.call("doctor")}
        states = {name: told[f"job {name}"]["state"] for name in ("hint", "wrong", "nowhere")}
        assert states == {"hint": "warn", "wrong": "fail", "nowhere": "warn"}
        assert '"no-such-program" is in no directory of the PATH' in told["job nowhere"]["text"]
        assert "This node cannot start it" in node.call("why", id="nowhere")["sentence"]
        assert f'"socket":"{node.socket}"' in node.log()


def test_a_message_that_nobody_could_decode_is_shown_to_people() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.start().nodes

        def told() -> dict[str, str]:
            (check,) = [check for check in node.call("doctor") if check["check"] == "messages refused"]
            return dict(check)

        assert told()["state"] == "ok"
        (address,) = (cluster.path / "bus").iterdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"\xc1 from a stranger", str(address))
        refuses(node, 1)
        assert told()["state"] == "warn"
        assert "1 could not be decoded; the newest at " in told()["text"]

        node.signal(signal.SIGUSR1)
        until(lambda: "message.kept" in node.log(), why="it is in the log")
        assert b"\xc1 from a stranger".hex() in node.log()
