"""Passwords, certificates and keys change while the cluster runs: no run is lost, and no secret leaks."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support import servers

from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import exists, until
from system.lab.secured import (
    TIMING,
    Doors,
    beats,
    bus_is,
    connected,
    coordd,
    hang_up,
    ledger_says,
    never_twice,
    replace,
    trigger,
)

pytestmark = pytest.mark.production

EXIT_CONFIG = 78


# ---- passwords


def test_passwords_are_rotated_by_a_reload() -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        doors = Doors(cluster, "the-first")
        cluster.job("long", "until", cluster.go("go"))
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.start()
        run = trigger(cluster.nodes[0], "long", "1")
        pid = cluster.started(run).pid
        before = [node.status()["bus"]["connections"] for node in cluster.nodes]
        doors.write("the-second")
        doors.change("the-second")
        hang_up(cluster.nodes[0])
        cluster.nodes[1].call("reload")
        doors.cut()
        until(
            lambda: all(n.status()["bus"]["connections"] > b for n, b in zip(cluster.nodes, before, strict=True)),
            why="every node has reconnected",
        )
        connected(cluster)
        beats(cluster, run)  # the runner uses the new password, too
        ends = [trigger(node, "short", node.name) for node in cluster.nodes]
        for end in ends:
            cluster.becomes(end, "success")
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)


def test_a_wrong_password_is_told_and_mended_without_a_restart() -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        doors = Doors(cluster, "the-right-one")
        cluster.job("held", "until", cluster.go("go"), on_lost="hold")
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.start()
        run = trigger(cluster.nodes[0], "held", "1")
        pid = cluster.started(run).pid
        daemons = [node.process for node in cluster.nodes]
        doors.write("the-wrong-one")
        for node in cluster.nodes:
            node.call("reload")
        doors.cut()
        for node in cluster.nodes:
            bus_is(node, "disconnected", "refused the user", "bus_password_file")
            ledger_says(node, "ledger_password_file")
        asked = cluster.nodes[0].call("run.trigger", job="short", id="1")
        assert asked == {"id": "short#1", "durable": "node"}
        assert "password" in cluster.nodes[0].why("short#1")
        told = {check["check"]: check for check in cluster.nodes[0].call("doctor")}
        assert (told["bus"]["state"], told["ledger"]["state"]) == ("fail", "fail")
        doors.write("the-right-one")  # no reload, no restart
        connected(cluster)
        cluster.becomes("short#1", "success")
        beats(cluster, run)
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)
        assert [node.process for node in cluster.nodes] == daemons


# ---- TLS


class Guarded:
    """A broker and a Redis of these tests: the nodes must use TLS and show a client certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = servers.certificates(directory)
        self.rabbit = servers.Rabbit(tls=self.files)
        self.rabbit.config = [line.replace("peer_cert = false", "peer_cert = true") for line in self.rabbit.config]
        self.redis = servers.Redis(tls=self.files)
        self.redis.settings["tls_auth_clients"] = "yes"
        self.rabbit.start()
        self.redis.start()

    def settings(self) -> dict[str, Any]:
        return {
            "bus": self.rabbit.tls_url,
            "ledger": self.redis.tls_url,
            "tls_ca": self.files.ca,
            "tls_cert": self.files.cert,
            "tls_key": self.files.key,
        }

    def renew(self) -> None:
        """Write another authority and other certificates into the same files. The servers use them at once."""
        servers.certificates(self.directory)
        for name in ("tls-ca-cert-file", "tls-cert-file"):
            path = self.files.ca if "ca" in name else self.files.cert
            said = self.redis.cli("CONFIG", "SET", name, path, *(["tls-key-file", self.files.key] * ("ca" not in name)))
            assert said == "OK", said
        self.rabbit.ctl("eval", "ssl:clear_pem_cache().")

    def cut(self) -> None:
        """End every connection."""
        self.redis.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.rabbit.ctl("close_all_connections", "the test")

    def close(self) -> None:
        self.rabbit.close()
        self.redis.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("tls"))
    yield made
    made.close()


def behind(cluster: Cluster, guarded: Guarded) -> None:
    """Make the nodes use the guarded servers. The rows are in the guarded Redis; the cluster's own stays unused."""
    for node in cluster.nodes:
        node.changes |= guarded.settings()
    cluster.production.ledger_url = guarded.redis.url  # the plain port: only the test uses it


def test_certificates_are_replaced_in_place_without_a_gap(guarded: Guarded) -> None:
    with cluster_of(2, backend="production", **TIMING) as cluster:
        behind(cluster, guarded)
        cluster.job("long", "until", cluster.go("go"))
        cluster.job("tick", "sleep", 0, schedule="every 2s", overlap="allow", misfire="all")
        cluster.start()
        run = trigger(cluster.nodes[0], "long", "1")
        pid = cluster.started(run).pid
        beats(cluster, run)
        guarded.renew()
        hang_up(cluster.nodes[0])
        cluster.nodes[1].call("reload")
        guarded.cut()
        until(lambda: all(n.status()["bus"]["connections"] >= 2 for n in cluster.nodes), why="both reconnect")
        connected(cluster)
        beats(cluster, run)
        seen = len(cluster.starts())
        cluster.launched(seen + 2)
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)
        ticks = sorted({row["fire_at"] for row in cluster.rows() if row["job"] == "tick"})
        assert [later - earlier for earlier, later in itertools.pairwise(ticks)] == [2.0] * (len(ticks) - 1)


def test_servers_that_cannot_be_believed_are_refused_in_a_sentence(guarded: Guarded, tmp_path: Path) -> None:
    stranger = servers.certificates(tmp_path)
    with cluster_of(3, backend="production", **TIMING) as cluster:
        behind(cluster, guarded)
        another, elsewhere, nobody = cluster.nodes
        authority = cluster.path / "ca.pem"
        shutil.copy(stranger.ca, authority)
        another.changes |= {"tls_ca": str(authority)}
        elsewhere.changes |= {
            key: url.replace(servers.HOST, "localhost") for key, url in elsewhere.changes.items() if "://" in str(url)
        }
        nobody.changes |= {"tls_cert": "", "tls_key": ""}
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.ready()
        bus_is(another, "disconnected", "certificate is not accepted", "tls_ca")
        ledger_says(another, servers.HOST, "certificate")
        bus_is(elsewhere, "disconnected", "localhost", "name")
        assert "tls_ca" not in elsewhere.status()["bus"]["error"], "another authority would not help"
        ledger_says(elsewhere, "localhost", "certificate")
        bus_is(nobody, "disconnected", "tls_cert")
        ledger_says(nobody, servers.HOST)
        shutil.copy(guarded.files.ca, authority)  # the same path
        another.call("reload")
        bus_is(another, "connected")
        another.ledger_is("connected")


def test_files_that_are_no_certificates_change_nothing_at_a_reload(guarded: Guarded) -> None:
    with cluster_of(1, backend="production", **TIMING) as cluster:
        behind(cluster, guarded)
        (node,) = cluster.nodes
        key = cluster.path / "key.pem"
        shutil.copy(guarded.files.key, key)
        node.changes |= {"tls_key": str(key), "bus": cluster.production.rabbit.url}  # TLS only for the ledger
        cluster.start()
        node.ledger_is("connected")
        key.write_text("no key\n")
        cluster.job("fresh", "sleep", 0)
        with pytest.raises(CallError, match="tls_key"):
            node.call("reload")
        assert node.call("job.list") == []
        node.ledger_is("connected")
        shutil.copy(guarded.files.key, key)
        assert node.call("reload")["added"] == ["fresh"]


# ---- the keyring


def ring(cluster: Cluster, node: Node) -> Path:
    """A copy of the cluster's keyring for one node."""
    path = cluster.path / f"{node.name}.keys.toml"
    replace(path, cluster.production.keyring.read_text())
    node.changes["keyring"] = str(path)
    return path


def refusals(cluster: Cluster) -> dict[str, int]:
    """The number of messages that each node has refused, by node and reason."""
    said = {node.name: node.status()["bus"] for node in cluster.nodes if node.up}
    return {f"{name} {key}": n for name, bus in said.items() for key, n in bus.items() if key.startswith("refused_")}


def test_a_rotation_of_keys_refuses_nothing_while_elections_run() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        rings = [ring(cluster, node) for node in cluster.nodes]
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        over = threading.Event()
        drills: list[str] = []

        def elect() -> None:
            while not over.is_set():
                node = cluster.nodes[len(drills) % 3]
                drills.append(
                    node.call("election.open", id=f"d{len(drills)}", topic="drill", action={"job": "hello"})["id"]
                )
                over.wait(0.02)

        electing = threading.Thread(target=elect)
        electing.start()
        runs = []
        try:
            master = cluster.production.keyring
            for step in range(1, 4):
                said = coordd("keys", "rotate", str(master))
                assert f"step {step} of 3" in said.stdout + said.stderr, said
                for number, (node, path) in enumerate(zip(cluster.nodes, rings, strict=True)):
                    replace(path, master.read_text())
                    if number % 2:
                        node.call("reload")
                    else:
                        hang_up(node)
                    at = len(drills)
                    until(lambda at=at: len(drills) > at + 6 or over.is_set(), why="more elections")  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                    runs.append(trigger(node, "hello", f"{step}-{node.name}"))
        finally:
            over.set()
            electing.join()
        for run in runs:
            cluster.becomes(run, "success")
        never_twice(cluster)
        assert refusals(cluster) == {}
        assert len(re.findall(r'state = "(\w+)"', master.read_text())) == 2
        cluster.nodes[2].stop()
        cluster.nodes[2].start()  # it knows only the new key: the others must sign with it
        cluster.meet()
        assert refusals(cluster) == {}


def test_who_has_another_keyring_or_none_is_refused_counted_and_told() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        for node in cluster.nodes:
            ring(cluster, node)
        cluster.job("hello", "sleep", 0, overlap="allow")
        odd = cluster.nodes[2]
        other = cluster.path / "other.toml"
        assert coordd("keys", "new", "--output", str(other)).returncode == 0
        odd.changes["keyring"] = str(other)
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.ready()
        first = cluster.nodes[0]
        until(lambda: first.status()["bus"].get("refused_unknown_key", 0) >= 2, why="it is counted")
        until(lambda: odd.status()["bus"].get("refused_unknown_key", 0) >= 2, why="and there the others")
        until(lambda: first.status()["members"] == {**first.status()["members"], "alive": 2}, why="two are members")
        assert odd.status()["members"]["alive"] == 1
        told = [check for check in first.call("doctor") if check["check"] == "envelopes refused"]
        assert [check["state"] for check in told] == ["warn"]
        assert "no key of that id" in told[0]["text"]
        runs = [trigger(node, "hello", node.name) for node in cluster.nodes]
        for run in runs:
            cluster.becomes(run, "success")  # the ledger does not depend on the keyring
        odd.stop()
        odd.changes |= {"unsigned": True}
        for times in (1, 2):
            odd.start()
            until(lambda: first.status()["bus"].get("refused_not_sealed", 0) >= 1, why="nor unsealed messages")
            assert odd.log().count("anybody who reaches the bus can speak as any node") == times
            odd.stop()
        del odd.changes["unsigned"]
        ring(cluster, odd)
        odd.start()
        cluster.meet()
        never_twice(cluster)


def test_a_keyring_that_others_may_read_stops_a_start_and_a_whole_reload() -> None:
    with cluster_of(1, backend="production", **TIMING) as cluster:
        (node,) = cluster.nodes
        path = ring(cluster, node)
        path.chmod(0o644)
        node.launch()
        assert node.wait() == EXIT_CONFIG
        assert "chmod 600" in node.log()
        path.chmod(0o600)
        cluster.start()
        cluster.job("fresh", "sleep", 0)
        path.chmod(0o644)
        with pytest.raises(CallError, match="chmod 600"):
            node.call("reload")
        hang_up(node)
        assert "config.not_reloaded" in node.log()
        assert node.call("job.list") == [], "nothing of it was taken over"
        path.chmod(0o600)
        assert node.call("reload")["added"] == ["fresh"]


# ---- no secret anywhere


def users_in_urls(doors: Doors, password: str) -> dict[str, str]:
    """Make users whose password is in the URL; returns the settings with these URLs."""
    doors.rabbit.ctl("add_user", f"{doors.user}-url", password)
    doors.rabbit.ctl("set_permissions", "-p", doors.vhost, f"{doors.user}-url", ".*", ".*", ".*")
    doors.redis.cli("ACL", "SETUSER", "in-url", "on", "~*", "&*", "+@all", f">{password}")
    return {
        "bus": f"amqp://{doors.user}-url:{quote(password, safe='')}@{servers.HOST}:{doors.rabbit.port}/{doors.vhost}",
        "ledger": f"redis://in-url:{quote(password, safe='')}@{servers.HOST}:{doors.redis.port}/0",
    }


LOOKS = ("status", "doctor", "node.list", "job.list", "breaker.list", "election.list", "ledger.status", "run.list")


def has_dumped(node: Node, count: int) -> bool:
    return node.log().count("daemon.state") > count


def answers_of(cluster: Cluster, run: str) -> list[Any]:
    """The answers of all nodes while the keyring cannot be read. Each node also dumps its state into its log."""
    answers: list[Any] = []
    for node in cluster.nodes:
        with pytest.raises(CallError) as refused:
            node.call("reload")
        answers.append(str(refused.value))
        for method in LOOKS:
            try:
                answers.append(node.call(method))
            except CallError as exc:
                answers.append(str(exc))
        answers += [node.why(run)]
        count = node.log().count("daemon.state")
        node.signal(signal.SIGUSR1)
        until(partial(has_dumped, node, count), why="it dumps its state")
    return answers


def test_no_secret_is_written_told_or_handed_on() -> None:
    password, inline = "s3cr:t@of/files", "s3cr:t@in/URLs"
    with cluster_of(3, backend="production", **TIMING) as cluster:
        keyring = cluster.production.keyring
        doors = Doors(cluster, password)
        cluster.job("fails", "sleep", 0, code=3, overlap="allow")
        for node in cluster.nodes:
            cluster.job(f"on-{node.name}", "until", cluster.go("go"), on_lost="hold", tags=[node.name])
            node.env = {"COORDD_NODE_TAGS": node.name}
        _, in_url, in_environment = cluster.nodes
        urls = users_in_urls(doors, inline)
        in_url.changes = {**urls, "bus_password_file": "", "ledger_password_file": ""}
        in_environment.changes = {"bus_password_file": "", "ledger_password_file": ""}
        in_environment.env |= {f"COORDD_CLUSTER_{key.upper()}": url for key, url in urls.items()}
        cluster.start()
        runs = [trigger(node, f"on-{node.name}", "1") for node in cluster.nodes]
        assert [cluster.started(run).node for run in runs] == [node.name for node in cluster.nodes]
        watcher = in_url.runner(runs[1])["watcher"]
        os.kill(watcher, signal.SIGKILL)  # a new watcher is started, as a separate program
        cluster.becomes(trigger(cluster.nodes[0], "fails", "1"), "failure")
        doors.redis.cli("ACL", "SETUSER", "in-url", "resetpass", ">another")
        doors.rabbit.ctl("change_password", f"{doors.user}-url", "another")
        doors.redis.cli("CLIENT", "KILL", "USER", "in-url")
        doors.cut()
        for node in (in_url, in_environment):
            bus_is(node, "disconnected", "refused the user")
            ledger_says(node, "refuses the user or the password")
        keyring_text = keyring.read_text()
        replace(keyring, keyring_text + "\nbroken = ")
        answers = answers_of(cluster, runs[0])
        replace(keyring, keyring_text)
        keys = re.findall(r'secret = "(.+)"', keyring_text)
        assert keys
        needles = [*keys, *[base64.b64decode(key).hex() for key in keys], password, inline, quote(inline, safe="")]
        found = leaks(cluster, needles, {node.process.pid for node in (in_environment,) if node.process})
        found += [f"an answer: {needle}" for needle in needles if needle in json.dumps(answers, ensure_ascii=False)]
        assert found == []
        doors.redis.cli("ACL", "SETUSER", "in-url", "resetpass", f">{inline}")
        doors.rabbit.ctl("change_password", f"{doors.user}-url", inline)
        connected(cluster)
        cluster.go("go").touch()
        for run in runs:
            cluster.becomes(run, "success")


def leaks(cluster: Cluster, needles: list[str], told: set[int]) -> list[str]:
    """The places that contain a secret and must not. The search covers every file of a cluster (except
    the files that people wrote), and in /proc the command line and the environment of every process. ``told``: pids of
    processes that got a secret in their environment."""
    given = {str(node.config_path) for node in cluster.nodes} | {
        str(path) for path in cluster.path.iterdir() if path.suffix == ".password" or "keys" in path.name
    }
    looked = 0
    found = []
    for path in [path for path in cluster.path.rglob("*") if path.is_file() and str(path) not in given]:
        looked += 1
        content = path.read_bytes()
        found += [f"{path}: {needle}" for needle in needles if needle.encode() in content]
    assert looked > 20, "logs, journals, specs, state"
    pids = cluster.processes()
    assert len(pids) >= len(cluster.nodes) * 4, "daemons, runners, watchers, programs"
    for pid in pids:
        for name in ("cmdline", "environ"):
            if name == "environ" and pid in told:
                continue
            try:
                content = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # the process has ended
            found += [f"/proc/{pid}/{name}: {needle}" for needle in needles if needle.encode() in content]
    return found


# ---- an unsafe configuration is refused at the start


REMOTE = {"bus": "amqps://u@192.0.2.1/", "ledger": "rediss://192.0.2.1/0"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bus": "amqp://u@broker.example:5672/"}, "amqp:// to broker.example is not encrypted"),
        ({"bus": ["amqp://u@127.0.0.1/", "amqp://u@192.0.2.1/"]}, "amqp:// to 192.0.2.1 is not encrypted"),
        ({"bus": "redis://192.0.2.1/0"}, "redis:// to 192.0.2.1 is not encrypted"),
        ({"ledger": "redis://:s3cret@192.0.2.1/0"}, "redis:// to 192.0.2.1 is not encrypted"),
        ({"ledger": "redis+sentinel://127.0.0.1,192.0.2.1/m"}, "redis+sentinel:// to 192.0.2.1 is not encrypted"),
        ({"bus": "amqps://u@192.0.2.1/?no_verify_ssl=1"}, "no_verify_ssl in the URL believes any server"),
        ({"bus": "kafka://:s3cret@192.0.2.1/"}, "expected a URL that starts with one of unix, amqp"),
        ({"ledger": "mysql://:s3cret@192.0.2.1/"}, "expected a URL that starts with one of sqlite, redis"),
        ({**REMOTE, "keyring": "/nowhere/keys.toml"}, "there is no such keyring"),
        ({**REMOTE, "bus_password_file": "/nowhere/password"}, "it cannot be read"),
        ({**REMOTE, "tls_ca": "/etc/hostname"}, "expected certificates in PEM"),
        ({"ledger": "rediss://192.0.2.1/0", "tls_ca": "/etc/hostname"}, "expected certificates in PEM"),
    ],
)
def test_what_is_not_safe_or_not_known_is_refused_at_the_start(changes: dict[str, Any], said: str) -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        keyring = cluster.path / "keys.toml"
        key = base64.b64encode(bytes(range(32))).decode()
        replace(keyring, f'[[key]]\nid = "a"\nstate = "sign"\nsecret = "{key}"\n')
        node.changes = {"keyring": str(keyring), **changes}
        node.launch()
        assert node.wait() == EXIT_CONFIG
        assert said in node.log()
        assert "s3cret" not in node.log()
