"""The Redis of a cluster goes away, fails over, or comes back with less data: nothing is launched twice."""

from __future__ import annotations

import shutil
import signal
from collections import Counter

from system.lab.cluster import Cluster, Node, cluster_of, fire_time
from system.lab.processes import LIMIT_S, boottime, exists, until

# Limit (seconds) for a failover at Sentinel's default timings, and for the quarantine after it.
FAILOVER_S = 180.0


def trigger(node: Node, job: str, ident: str) -> str:
    return str(node.call("run.trigger", job=job, id=ident)["id"])


def never_twice(cluster: Cluster) -> None:
    launches = Counter((entry.run, entry.attempt) for entry in cluster.starts())
    assert [attempt for attempt, count in launches.items() if count > 1] == []
    assert not [entry for entry in cluster.entries() if entry.word == "overlap"]


def ledger_is_back(cluster: Cluster) -> None:
    """Wait until every node may launch again."""
    for node in cluster.nodes:
        node.ledger_is("connected")


def test_without_redis_nothing_new_is_launched_and_what_is_held_goes_on() -> None:
    with cluster_of(3, backend="production") as cluster:
        cluster.job("held", "until", cluster.go("held"), on_lost="hold")
        cluster.job("again", "until", cluster.go("again"))
        cluster.job("asked", "sleep", 0, overlap="allow")
        cluster.start()
        held, again = trigger(cluster.nodes[0], "held", "1"), trigger(cluster.nodes[0], "again", "1")
        pids = [cluster.started(run).pid for run in (held, again)]
        cluster.production.redis.kill()
        down_at = boottime()
        for node in cluster.nodes:
            node.ledger_is("unavailable")
        said = cluster.nodes[1].call("run.trigger", job="asked", id="1")
        assert (said["id"], said["durable"]) == ("asked#1", "node")
        assert "ledger" in cluster.nodes[1].why("asked#1")
        until(lambda: not exists(pids[1]), why="its lease ends, and so does the job that may be relaunched")
        assert boottime() - down_at <= cluster.timing["lease"] + LIMIT_S
        assert exists(pids[0]), "nobody ends what is held"
        assert not cluster.starts("asked#1")
        cluster.production.redis.start()
        ledger_is_back(cluster)
        cluster.go("held").touch()
        cluster.go("again").touch()
        assert cluster.becomes(held, "success")["attempt"] == 0
        assert cluster.becomes(again, "success")["attempt"] == 1
        cluster.becomes("asked#1", "success")
        assert len(cluster.starts(held)) == len(cluster.starts("asked#1")) == 1
        never_twice(cluster)
        assert all(node.up for node in cluster.nodes)


def test_a_failover_at_default_timings_ends_no_run_and_launches_nothing_twice() -> None:
    defaults = {"lease": 60.0, "renew": 5.0, "ledger_timeout": 2.0, "kill_grace": 10.0}
    with cluster_of(3, backend="production", sentinel=True, **defaults) as cluster:
        cluster.job("held", "until", cluster.go("go"), on_lost="hold")
        cluster.job("again", "until", cluster.go("go"))
        cluster.job("tick", "sleep", 0, schedule="every 10s", overlap="allow", misfire="all")
        cluster.start()
        runs = [trigger(cluster.nodes[number], job, "1") for number, job in enumerate(("held", "again"))]
        pids = [cluster.started(run).pid for run in runs]
        until(lambda: len(cluster.starts()) >= 3, why="a tick")
        sentinels = cluster.production.sentinels
        assert sentinels is not None
        sentinels.primary.kill()
        until(lambda: sentinels.master() is not sentinels.primary, FAILOVER_S, "another Redis is the master")
        failed_over_at = max(fire_time(entry.run) for entry in cluster.starts())
        assert [exists(pid) for pid in pids] == [True, True]
        until(
            lambda: [e for e in cluster.starts() if fire_time(e.run) > failed_over_at + 60.0],
            FAILOVER_S,
            "fire times after the quarantine",
        )
        assert [exists(pid) for pid in pids] == [True, True], "neither was ended"
        cluster.go("go").touch()
        for run in runs:
            assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)
        assert {entry.attempt for entry in cluster.starts()} == {0}


def test_an_old_snapshot_restored_in_mid_run_launches_nothing_twice() -> None:
    with cluster_of(3, backend="production", appendonly="no") as cluster:
        redis = cluster.production.redis
        cluster.job("held", "until", cluster.go("go"), on_lost="hold")
        cluster.job("again", "until", cluster.go("go"))
        cluster.job("short", "sleep", 0, overlap="allow")
        cluster.job("tick", "sleep", 0, schedule="every 3s", overlap="allow", misfire="all")
        cluster.start()
        trigger(cluster.nodes[0], "short", "before")
        cluster.becomes("short#before", "success")
        redis.cli("SAVE")
        snapshot = redis.directory / "dump.rdb"
        aside = cluster.path / "dump.rdb"
        shutil.copy(snapshot, aside)
        running = [trigger(cluster.nodes[number], job, "1") for number, job in enumerate(("held", "again"))]
        pids = [cluster.started(run).pid for run in running]
        ended = [trigger(cluster.nodes[number], "short", f"after-{number}") for number in range(3)]
        for run in ended:
            cluster.becomes(run, "success")
        until(lambda: len([e for e in cluster.starts() if e.run.startswith("tick@")]) >= 2, why="two ticks")
        redis.kill()
        shutil.copy(aside, snapshot)
        redis.start()
        ledger_is_back(cluster)
        for run in (*running, *ended):
            job, _, ident = run.partition("#")
            trigger(cluster.nodes[2], job, ident)  # as a client that has had no answer asks again
        last = max(fire_time(entry.run) for entry in cluster.starts())
        until(lambda: max(fire_time(e.run) for e in cluster.starts()) >= last + 6.0, why="two more ticks")
        assert [exists(pid) for pid in pids] == [True, True]
        cluster.go("go").touch()
        for run in (*running, *ended):
            assert cluster.becomes(run, "success")["attempt"] == 0
        never_twice(cluster)
        assert {entry.attempt for entry in cluster.starts()} == {0}


def kept(cluster: Cluster, field: str) -> str:
    """What the ledger keeps of itself."""
    return cluster.production.redis.cli("HGET", f"{{coordd:{cluster.production.name}}}:meta", field).strip()


def now_and_whole_end(cluster: Cluster) -> tuple[float, float]:
    """The ledger's time, and the end of its whole quarantine (0.0: it is over)."""
    return float(cluster.production.redis.cli("TIME").split()[0]), float(kept(cluster, "open_at"))


def is_founded(cluster: Cluster) -> None:
    """Wait until the ledger is not new any more."""
    until(lambda: kept(cluster, "founding") == "0", why="the first ten seconds are over")


def test_a_redis_that_restarts_with_its_data_launches_again_before_any_lease_is_over() -> None:
    with cluster_of(3, backend="production", lease=60.0, renew=2.0, ledger_timeout=1.0) as cluster:
        cluster.job("long", "until", cluster.go("go"))
        cluster.job("asked", "sleep", 0, overlap="allow")
        cluster.start()
        is_founded(cluster)
        long = trigger(cluster.nodes[0], "long", "1")
        pid = cluster.started(long).pid
        cluster.production.redis.kill()
        cluster.production.redis.start()
        run = trigger(cluster.nodes[1], "asked", "1")
        cluster.becomes(run, "success")
        now, whole_end = now_and_whole_end(cluster)
        assert now < whole_end, "without the rule nothing is launched before"
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(long, "success")["attempt"] == 0
        never_twice(cluster)


def test_a_redis_that_forgot_a_grant_in_its_last_second_keeps_its_whole_quarantine() -> None:
    with cluster_of(3, backend="production", lease=10.0, renew=1.0, ledger_timeout=1.0, kill_grace=2.0) as cluster:
        redis = cluster.production.redis
        cluster.job("long", "until", cluster.go("go"))
        cluster.job("asked", "sleep", 0, overlap="allow")
        cluster.start()
        is_founded(cluster)
        files, aside = redis.directory / "appendonlydir", cluster.path / "aside"
        shutil.copytree(files, aside)
        long = trigger(cluster.nodes[0], "long", "1")
        pid = cluster.started(long).pid
        redis.kill()
        shutil.rmtree(files)
        shutil.copytree(aside, files)
        redis.start()
        cluster.nodes[0].ledger_is("recovering")
        _, whole_end = now_and_whole_end(cluster)
        run = trigger(cluster.nodes[1], "asked", "1")
        cluster.started(run)
        now, _ = now_and_whole_end(cluster)
        assert now >= whole_end - 1.0
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(long, "success")["attempt"] == 0
        never_twice(cluster)


def test_a_flushed_redis_is_filled_again_by_those_who_know() -> None:
    with cluster_of(2, backend="production") as cluster:
        cluster.job("again", "until", cluster.go("go"))
        cluster.start()
        run = trigger(cluster.nodes[0], "again", "1")
        pid = cluster.started(run).pid
        cluster.production.redis.cli("FLUSHALL")
        until(lambda: cluster.row(run).get("state") == "started", why="the runner has put its run back")
        assert exists(pid)
        assert trigger(cluster.nodes[1], "again", "1") == run
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
        assert len(cluster.starts(run)) == 1


def test_a_redis_that_hangs_is_no_reason_to_end_what_is_held() -> None:
    with cluster_of(2, backend="production") as cluster:
        cluster.job("held", "until", cluster.go("go"), on_lost="hold")
        cluster.start()
        run = trigger(cluster.nodes[0], "held", "1")
        pid = cluster.started(run).pid
        owner = cluster.owner(run)
        with cluster.backend.silent():
            owner.ledger_is("unavailable")
            owner.signal(signal.SIGTERM)
            assert owner.wait() == 0, "a daemon stops in time, also without its ledger"
        owner.start()
        assert exists(pid)
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0
