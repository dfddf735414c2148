"""Published revisions on real nodes, RabbitMQ and Redis: one definition at a time, whatever dies or cannot read it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from coordd.core.context import LEAD_S
from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import until
from system.lab.secured import TIMING, never_twice

pytestmark = pytest.mark.production

BACKEND = '[jobs]\nbackend = "redis"\n'


def texts(cluster: Cluster, schedule: str, **keys: Any) -> dict[str, str]:
    """The job files of a revision: one job, which ends at once."""
    cluster.job("tick", "sleep", 0, schedule=schedule, overlap="allow", **keys)
    return {"tick": (cluster.jobs_dir / "tick.toml").read_text()}


def source(node: Node) -> dict[str, Any]:
    return dict(node.status()["jobs_from"])


def taken(nodes: list[Node], number: int) -> None:
    until(lambda: all(source(node)["revision"] == number for node in nodes), why=f"all have revision {number}")


def in_force_from(cluster: Cluster) -> float:
    """The ledger's instant, in Unix seconds."""
    kept = cluster.production.redis.cli("HGET", f"{{coordd:{cluster.production.name}}}:drains", "revision")
    return float(kept.split()[2])


def fires(cluster: Cluster) -> list[tuple[float, str]]:
    """(due time, definition) of every run, in order."""
    rows = [row for row in cluster.rows() if "@" in row["run"]]
    return sorted((datetime.fromisoformat(row["run"].partition("@")[2]).timestamp(), row["digest"]) for row in rows)


def fired(cluster: Cluster, digests: set[str], count: int) -> None:
    """Wait until a definition other than these has fired so often."""
    until(
        lambda: len([one for _, one in fires(cluster) if one not in digests]) >= count,
        why=f"{count} more runs have rows",
    )


def test_a_rolling_change_never_fires_a_job_by_two_definitions() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        for node in cluster.nodes:
            node.settings = BACKEND
        first, second, third = cluster.start().nodes
        assert source(first)["revision"] == 0
        first.call("config.publish", files=texts(cluster, "every 2s"))
        taken(cluster.nodes, 1)
        fired(cluster, set(), 3)
        before = {one for _, one in fires(cluster)}

        third.kill()
        until(lambda: first.status()["members"]["lost"] == 1, why="the killed node is lost")
        second.call("config.publish", files=texts(cluster, "every 3s"))  # other fire times, so other runs
        taken([first, second], 2)
        at = in_force_from(cluster)
        fired(cluster, before, 2)
        third.start()  # it still has revision 1 on its disk
        taken(cluster.nodes, 2)
        fired(cluster, before, 5)

        decided = fires(cluster)
        old = [due for due, one in decided if one in before]
        new = [due for due, one in decided if one not in before]
        assert max(old) <= at + LEAD_S, "its row was written before that instant"
        assert min(new) > max(at, *old)
        assert len({one for _, one in decided}) == 2
        assert max(Counter(due for due, _ in decided).values()) == 1
        never_twice(cluster)
        first.call("job.suspend", all=True)


def test_a_revision_that_a_member_cannot_read_is_not_put_in_force() -> None:
    """Only some nodes know the pool that a job names."""
    with cluster_of(3, backend="production", **TIMING) as cluster:
        for node in cluster.nodes:
            node.settings = BACKEND + "[pools]\nheavy = 1\n"
        cluster.nodes[1].settings = BACKEND
        first, second, third = cluster.start().nodes
        first.call("config.publish", files=texts(cluster, "every 2s"))
        taken(cluster.nodes, 1)

        first.call("config.publish", files=texts(cluster, "every 2s", pool="heavy"))

        until(lambda: all(source(node)["problem"] for node in cluster.nodes), why="everybody says what is wrong")
        for node in cluster.nodes:
            said = source(node)
            assert (said["revision"], said["in_force"], said["waiting"]) == (1, 1, 2)
            assert "revision 2 is not put in force: n2 cannot use it" in said["problem"]
            assert 'there is no pool "heavy"' in said["problem"]
            (check,) = [one for one in node.call("doctor") if one["check"] == "jobs"]
            assert check["state"] == "fail"
            assert "jobs.source_failed" in node.log()
        newest, earlier = third.call("config.list")
        assert (newest["state"], earlier["state"]) == ("waiting", "in force")
        assert len(newest["waits"]) == 1

        assert second.call("config.rollback")["number"] == 3
        taken(cluster.nodes, 3)
        until(lambda: not any(source(node)["problem"] for node in cluster.nodes), why="nothing is wrong any more")
        assert [one["state"] for one in first.call("config.list")] == ["in force", "earlier", "earlier"]
        first.call("job.suspend", all=True)


def test_a_cluster_comes_from_files_without_losing_a_fire_time() -> None:
    """The revision is published before the last node is restarted, and comes into force when that node is gone."""
    with cluster_of(2, backend="production", **TIMING) as cluster:
        files = texts(cluster, "every 2s", misfire="all")
        first, last = cluster.nodes
        first.settings = BACKEND
        cluster.start()
        fired(cluster, set(), 2)
        first.call("config.publish", files=files)
        until(lambda: "n2 has not said" in (source(first)["problem"] or ""), why="n2 has its jobs from files")
        assert source(last) == {"backend": "files", "problem": None}

        last.stop()
        last.settings = BACKEND
        last.start()
        taken(cluster.nodes, 1)
        fired(cluster, set(), len(fires(cluster)) + 3)

        due = [at for at, _ in fires(cluster)]
        assert due == [due[0] + 2 * number for number in range(len(due))]
        assert len({one for _, one in fires(cluster)}) == 1, "the same definition"
        never_twice(cluster)
        first.call("job.suspend", all=True)
