"""Whatever is wrong with a machine, a file or a message: coordd says so in a sentence, stays up, and runs what can be run."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from system.cluster import CallError, Cluster, Node, cluster_of, exists, locked, until

from coordd.core import wire
from coordd.core.events import (
    Action, AnyEvent, Candidacy, Packet, TaskFailed, TaskSucceeded, WorkerElect, WorkerHeartbeat, WorkerOffline,
)  # fmt: skip

EXIT_UNAVAILABLE = 69
EXIT_CONFIG = 78


def trigger(node: Node, job: str, ident: str = "1") -> str:
    return str(node.call("run.trigger", job=job, id=ident)["id"])


@pytest.fixture(scope="module", autouse=True)
def _nobody_crashes() -> Iterator[None]:
    """Every daemon's log of this file is looked through when its cluster is closed."""
    close = Cluster.close

    def look(self: Cluster) -> None:
        for node in self.nodes:
            assert "Traceback" not in node.log(), node.log()[-6000:]
        close(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "close", look)
        yield


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
        third = Node(cluster, "n3", place="n1")  # another name, the first one's directories
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


# ---- disks


@contextmanager
def disk(path: Path, size: str) -> Iterator[None]:
    """A file system so small that it can be filled. It needs root, as the machine has that runs these tests."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # a failed test may hold files open


def test_a_node_whose_disk_is_full_abstains_until_there_is_room() -> None:
    with cluster_of(2) as cluster, disk(cluster.nodes[0].state_dir, "1m"):
        full, other = cluster.nodes
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        trigger(full, "hello", "before")
        cluster.becomes("hello#before", "success")
        ballast = full.state_dir / "ballast"
        with ballast.open("wb") as file, pytest.raises(OSError, match="No space left"):
            while True:
                os.write(file.fileno(), b"x" * 1024)
        other.call("node.drain")
        filling = 0
        while not full.status()["impaired"]:  # what was left of the journal's last page is used up first
            trigger(full, "hello", f"filling-{filling}")
            until(lambda: full.status()["impaired"] or cluster.row(f"hello#filling-{filling}")["state"] == "success")
            filling += 1
            assert filling < 100
        assert "its journal cannot be written" in full.status()["impaired"]
        assert "No space left" in full.status()["impaired"]
        assert "journal.failed" in full.log()
        launched = len(cluster.starts())
        stuck = f"hello#filling-{filling - 1}"
        assert "journal cannot be written" in full.why(stuck)
        until(lambda: "journal cannot be written" in other.why(stuck), why="those who ask elsewhere are told, too")
        assert len(cluster.starts()) == launched
        assert not cluster.starts(stuck)
        other.call("node.resume")
        assert cluster.becomes(stuck, "success")["attempt"] >= 1
        for number in range(10):
            trigger(other, "hello", str(number))
        for number in range(10):
            cluster.becomes(f"hello#{number}", "success")
        assert {entry.node for entry in cluster.starts()[launched:]} == {other.name}
        ballast.unlink()
        until(lambda: not full.status()["impaired"])
        other.call("node.drain")
        trigger(full, "hello", "after")
        cluster.becomes("hello#after", "success")
        assert cluster.starts("hello#after")[0].node == full.name


def test_a_state_directory_that_cannot_be_written_is_said_at_the_start() -> None:
    with cluster_of(2) as cluster, disk(cluster.nodes[0].state_dir, "1m"):
        broken, other = cluster.nodes
        subprocess.run(["mount", "-o", "remount,ro", str(broken.state_dir)], check=True)
        cluster.job("hello", "sleep", 0)
        broken.launch()
        assert broken.wait() == EXIT_UNAVAILABLE
        assert f"{broken.state_dir} cannot be written: Read-only file system" in broken.log()
        other.start()
        trigger(other, "hello")
        cluster.becomes("hello#1", "success")


# ---- the ledger


def test_the_ledger_is_locked_for_longer_than_a_lease() -> None:
    with cluster_of(2) as cluster:
        cluster.job("fenced", "until", cluster.go("on"), overlap="allow")
        cluster.job("held", "until", cluster.go("on"), on_lost="hold")
        cluster.start()
        one, two = cluster.nodes
        trigger(one, "fenced")
        trigger(one, "held")
        fenced, held = cluster.started("fenced#1"), cluster.started("held#1")
        with locked(cluster.ledger_path):
            lease_end = cluster.row("fenced#1")["until"]
            assert one.call("run.trigger", job="fenced", id="2")["durable"] == "node"
            status = one.status()["ledger"]
            assert status["state"] == "unavailable"
            assert "locked by another process" in status["error"]
            until(lambda: not exists(fenced.pid), why="it may not outlive its lease")
            assert held.at < lease_end
            until(lambda: two.status()["clock"] > 0 and _boottime() > lease_end)
            assert exists(held.pid), "a job that says hold goes on without a ledger"
            assert len(cluster.starts()) == 2, "nothing new is launched"
        cluster.go("on").touch()
        assert cluster.becomes("held#1", "success")["attempt"] == 0
        assert cluster.becomes("fenced#1", "success")["attempt"] == 1
        cluster.becomes("fenced#2", "success")
        until(lambda: all(node.status()["ledger"]["state"] == "connected" for node in cluster.nodes))
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
        assert max(entry.at for entry in cluster.entries("fenced#1") if entry.attempt == 0) < lease_end


def _boottime() -> float:
    from system.cluster import boottime

    return boottime()


@pytest.mark.parametrize("harm", ["deleted", "corrupt"])
def test_the_ledger_is_lost_in_mid_run_and_comes_back(harm: str) -> None:
    with cluster_of(2) as cluster:
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.job("held", "until", cluster.go("on"), on_lost="hold")
        cluster.start()
        trigger(cluster.nodes[0], "hello", "before")
        cluster.becomes("hello#before", "success")
        held = cluster.started(trigger(cluster.nodes[1], "held"))
        aside = cluster.ledger_path.with_suffix(".aside")
        header = cluster.ledger_path.read_bytes()[:4096]
        if harm == "deleted":
            cluster.ledger_path.rename(aside)
        else:
            _write(cluster.ledger_path, random.Random(1).randbytes(4096))
        for node in cluster.nodes:
            until(lambda node=node: node.status()["ledger"]["state"] == "unavailable")
            said = node.status()["ledger"]["error"]
            assert "it was there when it was opened" in said if harm == "deleted" else "damaged" in said
        for number, node in enumerate(cluster.nodes):
            assert node.call("run.trigger", job="hello", id=str(number))["durable"] == "node"
            assert "the ledger does not answer" in node.why(f"hello#{number}")
            with pytest.raises(CallError) as caught:
                node.call("run.list")
            assert caught.value.kind == "unavailable"
        assert len(cluster.starts()) == 2
        assert harm == "corrupt" or not cluster.ledger_path.exists(), "nobody begins a new one"
        if harm == "deleted":
            aside.rename(cluster.ledger_path)
        else:
            _write(cluster.ledger_path, header)
        for number in range(2):
            cluster.becomes(f"hello#{number}", "success")
        until(lambda: all(node.status()["ledger"]["state"] == "connected" for node in cluster.nodes))
        assert exists(held.pid)
        cluster.go("on").touch()
        assert cluster.becomes("held#1", "success")["attempt"] == 0
        assert len(cluster.starts()) == 4


def _write(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)
        os.fsync(file.fileno())


# ---- Spark


def test_nodes_without_spark_or_java_abstain() -> None:
    with cluster_of(3) as cluster:
        bare, no_java, able = cluster.nodes
        submit = cluster.path / "spark" / "bin" / "spark-submit"
        bare.settings = f'[spark]\nsubmit = "{submit}"\n'
        no_java.settings = f'[spark]\nsubmit = "{_fake_submit(cluster, "other")}"\n'
        no_java.env = {"PATH": str(cluster.path / "empty")}
        able.settings = f'[spark]\nsubmit = "{_fake_submit(cluster, "able")}"\n'
        cluster.job_file("count", 'overlap = "allow"\n[spark]\napplication = "/srv/count.py"\nargs = ["--rows", "{run}"]\n')
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
    """A spark-submit that starts nothing but the tests' program."""
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
        cluster.job("one", "sleep", 0, description="second")
        for harm, said in (("broken", "is not TOML"), ("dangling", "cannot be read"), ("a directory", "regular file")):
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
        assert descriptions() == before, "a directory that is not mounted is no wish to remove every job"
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
        assert node.status()["jobs"] == {"enabled": 1, "disabled": ["option", "program"]}
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
    return wire.encode(Packet(v, cluster, name, head.get("pid", 1), "1-0000000000000000", 0, 0, events))


def test_garbage_and_forgeries_on_the_bus() -> None:
    with cluster_of(2) as cluster:
        cluster.job("long", "until", cluster.go("long"), overlap="allow")
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        one, two = cluster.nodes
        run = trigger(one, "long")
        first = cluster.started(run)
        chance = random.Random(7)
        forged = [
            packet([WorkerHeartbeat(clock=2**63)]),  # an absurd clock
            packet([WorkerHeartbeat(clock=-1)]),
            packet([WorkerHeartbeat(clock=5)], v=9),  # another protocol
            packet([WorkerHeartbeat(clock=5)], cluster="elsewhere"),
            packet([WorkerOffline(clock=5)], name="n1"),  # our own name; and a peer's, with another pid
            packet([WorkerOffline(clock=5)], name="n2", pid=2),
            packet([TaskSucceeded(clock=9, uuid="x", run=run, name="long", attempt=0, token=first.token, nonce="0" * 16)]),
            packet([TaskFailed(clock=9, uuid="x", run=run, name="long", attempt=0, token=first.token + 1)]),
            packet([WorkerElect(clock=9, id="x/0", topic="none", candidacy=Candidacy(0, 0, "evil.1"))]),
            packet([WorkerElect(
                clock=9, id=f"{run}/7", topic="command", candidacy=Candidacy(0, 0, "evil.1"), view=("evil.1",),
                action=Action("long", run, attempt=7, digest="forged"),
            )]),
            packet([WorkerElect(
                clock=9, id="ghost#1/0", topic="command", candidacy=Candidacy(0, 0, "evil.1"),
                action=Action("hello", "hello#ghost", digest="forged"),
            )]),
        ]  # fmt: skip
        garbage = [chance.randbytes(chance.randrange(1, 2000)) for _ in range(300)]
        garbage += [b"\xdc\xff\xff" * 5000, b"\x91" * 60000, b"\x00", json.dumps({"v": 1}).encode()]
        for good in forged[:4] * 40:
            bad = bytearray(good)
            for _ in range(chance.randrange(1, 6)):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            garbage.append(bytes(bad[: chance.randrange(1, len(bad) + 1)]))
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
            until(lambda node=node: node.status()["counts"]["malformed"] - before[node.name] >= 200)
            assert node.status()["bus"]["rejected"] >= 1, "the oversized one"
            assert "message.refused" in node.log()
            assert node.log().count("message.refused") < 20, "a flood is no log"
        assert two.status()["members"]["alive"] >= 2
        assert exists(first.pid)
        assert cluster.row(run)["state"] == "started", "nobody believes that it has ended"
        cluster.go("long").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        assert len(cluster.starts()) == 5
        assert not cluster.row("hello#ghost")
