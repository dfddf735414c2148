"""docs/operate.md: each node has a user of its own with the rights of deploy/acl; and one node is revoked."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import servers
from support.servers.rights import rabbit_regex, redis_rules

from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import ROOT, until
from system.lab.secured import TIMING, connected, coordd, never_twice, replace, trigger

pytestmark = pytest.mark.production


def users_of_their_own(cluster: Cluster) -> dict[str, Path]:
    """Give each node its users, its passwords and its copy of the keyring; returns the keyrings by node."""
    rabbit, redis, vhost = cluster.production.rabbit, cluster.production.redis, cluster.path.name
    rabbit.ctl("add_vhost", vhost)
    rings = {}
    for node in cluster.nodes:
        user, password = f"{vhost}-{node.name}", f"password-of-{node.name}"
        file = cluster.path / f"{node.name}.password"
        rings[node.name] = cluster.path / f"{node.name}.keys"
        replace(file, f"{password}\n")
        replace(rings[node.name], cluster.production.keyring.read_text())
        rabbit.ctl("add_user", user, password)
        rabbit.ctl("set_permissions", "-p", vhost, user, *[rabbit_regex(vhost, node.name)] * 3)
        assert redis.cli("ACL", "SETUSER", user, "on", *redis_rules(vhost), f">{password}") == "OK"
        node.changes |= {
            "bus": f"amqp://{user}@{servers.HOST}:{rabbit.port}/{vhost}",
            "ledger": f"redis://{user}@{servers.HOST}:{redis.port}/0",
            "bus_password_file": str(file),
            "ledger_password_file": str(file),
            "keyring": str(rings[node.name]),
        }
    return rings


def steps() -> str:
    return (ROOT / "docs/operate.md").read_text().partition("\n## Revoke one node\n")[2].partition("\n## ")[0]


def refused(node: Node) -> str:
    return str({check["check"]: check["text"] for check in node.call("doctor")}["envelopes refused"])


def test_a_takeover_and_the_revocation_of_a_node_with_the_least_rights() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        rings = users_of_their_own(cluster)
        cluster.job("long", "until", cluster.go("go"))
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        connected(cluster)

        run = trigger(cluster.nodes[0], "long", "1")
        owner = cluster.owner(run)
        owner.kill_family()
        assert cluster.started(run, attempt=1).node != owner.name
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 1
        owner.start()
        cluster.meet()

        # The steps of the section, in its order.
        *left, revoked = cluster.nodes
        user = f"{cluster.path.name}-{revoked.name}"
        assert [line for line in steps().splitlines() if line.startswith("# ")] == [
            "# redis-cli ACL DELUSER edge-3",
            "# rabbitmqctl delete_user edge-3",
            "# coordd keys rotate",
            "# coordctl reload",
        ]
        assert cluster.production.redis.cli("ACL", "DELUSER", user) == "1"
        cluster.production.rabbit.ctl("delete_user", user)
        for _ in range(3):
            assert coordd("keys", "rotate", str(rings[left[0].name])).returncode == 0
            for node in left:
                replace(rings[node.name], rings[left[0].name].read_text())
                node.call("reload")

        until(lambda: all(node.status()["members"]["lost"] == 1 for node in left), why="it is lost to the others")
        until(lambda: revoked.status()["ledger"]["state"] != "connected", why="it has no ledger")
        until(lambda: revoked.status()["bus"]["state"] != "connected", why="it has no bus")
        after = trigger(left[0], "hello", "2")
        assert cluster.becomes(after, "success")["node"].partition(".")[0] != revoked.name

        # With a stolen user of another node its messages are still refused: it has the old key only.
        revoked.stop()
        revoked.changes |= {key: left[0].changes[key] for key in ("bus_password_file", "ledger_password_file")}
        regex = rabbit_regex(cluster.path.name, ".*")
        thief = f"{cluster.path.name}-{left[0].name}"
        cluster.production.rabbit.ctl("set_permissions", "-p", cluster.path.name, thief, *[regex] * 3)
        revoked.changes |= {key: left[0].changes[key] for key in ("bus", "ledger")}
        revoked.launch()
        until(lambda: "a key that is retired here" in refused(left[0]), why="its messages are refused")
        assert all(node.status()["members"]["alive"] == 2 for node in left)
        never_twice(cluster)
