"""A cluster whose servers require passwords: its own virtual host, its own users, and the files that the nodes read."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from support import servers
from support.servers.rights import rabbit_regex, redis_rules

from system.lab.cluster import Cluster, Node
from system.lab.processes import LIMIT_S, ROOT, until

USER = "coordd"

# Short, so that a lease without renewals ends soon. Still long enough for a loaded machine.
TIMING = {"lease": 7.0, "renew": 1.0, "ledger_timeout": 1.0, "kill_grace": 2.0}


class Doors:
    """The passwords of one cluster, at its servers and in its files."""

    def __init__(self, cluster: Cluster, password: str) -> None:
        self.cluster = cluster
        self.rabbit, self.redis = cluster.production.rabbit, cluster.production.redis
        self.vhost = self.user = cluster.path.name
        self.bus_file, self.ledger_file = cluster.path / "bus.password", cluster.path / "ledger.password"
        self.rabbit.ctl("add_vhost", self.vhost)
        self.rabbit.ctl("add_user", self.user, password)
        self.rabbit.ctl("set_permissions", "-p", self.vhost, self.user, *[rabbit_regex(self.vhost)] * 3)
        rules = redis_rules(self.vhost)
        assert self.redis.cli("ACL", "SETUSER", USER, "on", *rules, f">{password}") == "OK"
        self.write(password)
        for node in cluster.nodes:
            node.changes |= {
                "bus": f"amqp://{self.user}@{servers.HOST}:{self.rabbit.port}/{self.vhost}",
                "ledger": f"redis://{USER}@{servers.HOST}:{self.redis.port}/0",
                "bus_password_file": str(self.bus_file),
                "ledger_password_file": str(self.ledger_file),
            }

    def write(self, password: str) -> None:
        """Write the password into the files."""
        for path in (self.bus_file, self.ledger_file):
            replace(path, f"{password}\n")

    def change(self, password: str) -> None:
        """Change the password at the servers. From then on they refuse every other password."""
        self.rabbit.ctl("change_password", self.user, password)
        assert self.redis.cli("ACL", "SETUSER", USER, "resetpass", f">{password}") == "OK"

    def cut(self) -> None:
        """End every connection of the cluster, of daemons and of runners."""
        assert int(self.redis.cli("CLIENT", "KILL", "USER", USER)) > 0
        self.rabbit.ctl("close_all_connections", "--vhost", self.vhost, "the test")


def replace(path: Path, text: str) -> None:
    """Replace the file of a secret in one step. Only the owner may read the file."""
    fresh = path.with_suffix(".fresh")
    fresh.touch(0o600)
    fresh.write_text(text)
    fresh.rename(path)


def hang_up(node: Node) -> None:
    """Reload by SIGHUP, and wait until it was done or refused."""

    def count() -> int:
        return node.log().count("config.reloaded") + node.log().count("config.not_reloaded")

    before = count()
    node.signal(signal.SIGHUP)
    until(lambda: count() > before, why=f"{node.name} has answered SIGHUP")


def coordd(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the command line ``coordd``."""
    return subprocess.run(
        [sys.executable, "-m", "coordd", *args],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def trigger(node: Node, job: str, ident: str) -> str:
    return str(node.call("run.trigger", job=job, id=ident)["id"])


def connected(cluster: Cluster) -> None:
    """Wait until every node is connected to its bus and its ledger, and all nodes see each other."""
    for node in cluster.nodes:
        bus_is(node, "connected")
        node.ledger_is("connected")
    cluster.meet()


def bus_is(node: Node, state: str, *words: str) -> str:
    """Wait until a node reports this state of its bus, with these words in the error; returns the error."""

    def look() -> bool:
        bus = node.status()["bus"]
        return bus["state"] == state and all(word in (bus["error"] or "") for word in words)

    until(look, why=f"the bus of {node.name} is {state} {words}, last: {node.status()['bus']}")
    return str(node.status()["bus"]["error"] or "")


def ledger_says(node: Node, *words: str) -> None:
    """Wait until a node reports that its ledger is unavailable, with these words in the error."""

    def look() -> bool:
        ledger = node.status()["ledger"]
        return ledger["state"] == "unavailable" and all(word in (ledger["error"] or "") for word in words)

    until(look, why=f"the ledger of {node.name} is unavailable: {words}, last: {node.status()['ledger']}")


def beats(cluster: Cluster, run: str, count: int = 2) -> None:
    """Wait until a run's lease is renewed ``count`` more times. This shows that its runner reaches the ledger."""
    before = int(cluster.row(run)["beat"])
    until(lambda: int(cluster.row(run)["beat"]) >= before + count, why=f"the lease of {run} is renewed")


def never_twice(cluster: Cluster) -> None:
    launches = Counter((entry.run, entry.attempt) for entry in cluster.starts())
    assert [attempt for attempt, count in launches.items() if count > 1] == []
    assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
