"""Published revisions in a Redis under Sentinel: after a fail-over the next one is published and comes into force."""

from __future__ import annotations

import pytest
from support import servers

from system.lab.cluster import CallError, cluster_of
from system.lab.processes import until
from system.revisions.test_rolling import taken, texts

pytestmark = pytest.mark.production


def test_a_revision_is_published_after_a_fail_over() -> None:
    with (
        servers.sentinels(replicas=1, down_after_ms=500, failover_timeout_ms=3000) as group,
        cluster_of(2, backend="production") as cluster,
    ):
        for node in cluster.nodes:
            node.settings = f'[jobs]\nbackend = "redis"\nurl = "{group.url}"\n'
        first, second = cluster.start().nodes
        first.call("config.publish", files=texts(cluster, "every 2s"))
        taken(cluster.nodes, 1)
        before = group.master()
        before.kill()

        def published() -> int:
            try:
                return int(second.call("config.publish", files=texts(cluster, "every 3s"))["number"])
            except (CallError, OSError):
                return 0

        after = until(published, why="the new primary takes a revision")
        taken(cluster.nodes, after)
        until(lambda: group.master() is not before, why="the first sentinel has heard of it too")
        until(lambda: not any(node.status()["jobs_from"]["problem"] for node in cluster.nodes), why="all is well")
