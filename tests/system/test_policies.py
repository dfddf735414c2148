"""A real cluster obeys job files and people: overlap, retry, cancel, resolve, drain, misfire."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from coordd.core.jobs.job import iso
from system.lab.cluster import CallError, Cluster, Node, cluster_of, fire_time
from system.lab.processes import exists, until


@pytest.fixture(scope="module", params=[("embedded", 3), ("production", 3), ("production", 5)], ids=str)
def shared(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose nodes no test of this file harms. Each test has its own jobs."""
    backend, size = request.param
    with cluster_of(size, backend=backend) as cluster:
        yield cluster.start()


def reload(cluster: Cluster) -> None:
    """Make all nodes load the job files as they are now."""
    for node in cluster.nodes:
        node.call("reload")
    until(lambda: len({one["jobs_digest"] for node in cluster.nodes for one in node.call("node.list")}) == 1)


def trigger(node: Node, job: str, ident: str = "1", **args: str) -> str:
    return str(node.call("run.trigger", job=job, id=ident, args=args)["id"])


def nodes_seen(cluster: Cluster, run: str) -> list[str]:
    return [entry.node for entry in cluster.starts(run)]


# ---- overlap


def test_overlap(shared: Cluster) -> None:
    one, two, *_, three = shared.nodes
    for policy in ("forbid", "queue", "allow", "replace"):
        shared.job(policy, "until", shared.go(policy), overlap=policy)
    reload(shared)
    for policy in ("forbid", "queue", "allow", "replace"):
        shared.started(trigger(one, policy))
    for policy in ("forbid", "queue", "allow", "replace"):
        trigger(two, policy, "2")

    row = shared.becomes("forbid#2", "rejected")
    assert row["reason"].startswith("overlap: forbid#1 is started on ")
    assert "overlap" in three.why("forbid#2")

    shared.started("allow#2")

    shared.started("replace#2")
    shared.becomes("replace#1", "revoked")
    first, second = shared.entries("replace#1"), shared.entries("replace#2")
    assert [entry.word for entry in first] == ["start"], "it was ended"
    assert [entry.word for entry in second] == ["start"]

    until(lambda: "overlap" in one.why("queue#2"))
    assert shared.row("queue#2")["state"] == "pending"
    assert not shared.starts("queue#2")
    for policy in ("forbid", "queue", "allow", "replace"):
        shared.go(policy).touch()
    shared.becomes("queue#2", "success")
    ended = next(entry for entry in shared.entries("queue#1") if entry.word == "end")
    assert shared.started("queue#2").at > ended.at
    for run in ("forbid#1", "allow#1", "allow#2", "replace#2"):
        shared.becomes(run, "success")
    assert not shared.starts("forbid#2")


# ---- job files that change


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_run_whose_job_file_has_changed_is_taken_over_as_it_was_begun(backend: str) -> None:
    """The file changes on all nodes, and one daemon restarts with the new file. Then the run's node dies."""
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("edited", "until", cluster.go("old"))
        cluster.start()
        trigger(cluster.nodes[0], "edited")
        cluster.started("edited#1")
        owner = cluster.owner("edited#1")
        restarted, _ = cluster.others(owner)

        cluster.job("edited", "until", cluster.go("new"))
        reload(cluster)
        trigger(cluster.nodes[0], "edited", "2")  # overlap = "forbid": also for a new definition
        cluster.becomes("edited#2", "rejected")
        restarted.stop()
        restarted.start().ready()
        owner.kill_family()

        cluster.started("edited#1", 1)
        cluster.go("new").touch()
        time.sleep(1.0)
        assert cluster.row("edited#1")["state"] == "started"
        cluster.go("old").touch()
        assert cluster.becomes("edited#1", "success")["attempt"] == 1


# ---- failures


def test_a_failure_is_tried_again_with_back_off_and_no_more_often_than_allowed(shared: Cluster) -> None:
    retry = {"attempts": 3, "delay": "1s", "backoff": "exponential"}
    shared.job("failing", "sleep", 0, code=3, retry=retry)
    shared.job("second-try", "first", "0", code=3, retry=retry)
    shared.job("final", "sleep", 0, code=4, retry={**retry, "never_on": [4]})
    reload(shared)
    for job in ("failing", "second-try", "final"):
        trigger(shared.nodes[0], job)
    row = shared.becomes("failing#1", "failure")
    assert (row["attempt"], row["exit_code"], row["reason"]) == (2, 3, "exit code 3")
    starts = shared.starts("failing#1")
    ends = [entry for entry in shared.entries("failing#1") if entry.word == "end"]
    assert [entry.attempt for entry in starts] == [0, 1, 2]
    assert starts[1].at - ends[0].at >= 1.0
    assert starts[2].at - ends[1].at >= 2.0
    assert len({entry.token for entry in starts}) == 3
    assert [entry.token for entry in starts] == sorted(entry.token for entry in starts)
    shown = shared.nodes[1].call("run.show", id="failing#1")
    assert [attempt["state"] for attempt in shown["attempts"]] == ["failure"] * 3

    assert shared.becomes("second-try#1", "success")["attempt"] == 1
    assert shared.becomes("final#1", "failure")["attempt"] == 0, shared.attempts("final#1")
    assert len(shared.starts("final#1")) == 1


def test_timeout(shared: Cluster) -> None:
    shared.job("slow", "until", shared.go("never"), timeout="1s")
    shared.job("deaf", "deaf", shared.go("never"), timeout="1s")
    reload(shared)
    for job in ("slow", "deaf"):
        trigger(shared.nodes[0], job)
    for job in ("slow", "deaf"):
        row = shared.becomes(f"{job}#1", "failure")
        assert row["reason"] == "timeout after 1 s"
        assert "timeout" in shared.nodes[2].why(f"{job}#1")
        assert [entry.word for entry in shared.entries(f"{job}#1")] == ["start"]


# ---- people


def test_cancel_by_any_node(shared: Cluster) -> None:
    shared.job("endless", "until", shared.go("never"), retry={"attempts": 5, "delay": "0s"})
    reload(shared)
    run = trigger(shared.nodes[0], "endless")
    pid = shared.started(run).pid
    owner = shared.owner(run)
    shared.others(owner)[0].call("run.cancel", id=run)
    row = shared.becomes(run, "revoked")
    assert row["reason"].startswith("cancelled by root")
    until(lambda: not exists(pid))
    assert len(shared.starts(run)) == 1
    with pytest.raises(CallError) as caught:
        owner.call("run.cancel", id=run)
    assert caught.value.kind == "finished"


def test_suspend_and_resume(shared: Cluster) -> None:
    shared.job("paused", "sleep", 0)
    shared.job("late", "sleep", 0, start_within="2s")
    reload(shared)
    one, two, *_, three = shared.nodes
    for job in ("paused", "late"):
        one.call("job.suspend", job=job)
        trigger(two, job)
    assert {"paused", "late"} == {job["name"] for job in three.call("job.list") if job["suspended"]}
    until(lambda: "suspended" in one.why("paused#1"))
    assert "suspended" in two.why("paused")
    row = shared.becomes("late#1", "missed")
    assert "no node could launch it within 2 s of its time" in row["reason"]
    for node in shared.nodes:
        assert row["reason"] in node.why("late#1")
    assert shared.row("paused#1")["state"] == "pending"
    three.call("job.resume", job="paused")
    shared.becomes("paused#1", "success")
    assert not shared.starts("late#1")


def test_drain(shared: Cluster) -> None:
    shared.job("anywhere", "sleep", 0, overlap="allow")
    shared.job("staying", "until", shared.go("staying"))
    reload(shared)
    one = shared.nodes[0]
    run = trigger(one, "staying")
    busy = shared.owner(run)
    *drained, free = shared.others(busy)
    for node in (busy, *drained):
        node.call("node.drain")
    for number in range(8):
        trigger(busy, "anywhere", str(number))
    for number in range(8):
        shared.becomes(f"anywhere#{number}", "success")
        assert nodes_seen(shared, f"anywhere#{number}") == [free.name]
    assert busy.status()["state"] == "draining"
    assert busy.status()["runs"]["active"] == 1, "what runs goes on"
    free.call("node.drain")
    held = trigger(one, "anywhere", "held")
    until(lambda: "draining" in one.why(held))
    assert shared.row(held)["state"] == "pending"
    for node in shared.nodes:
        node.call("node.resume")
    shared.becomes(held, "success")
    shared.go("staying").touch()
    shared.becomes(run, "success")


def told_ends(node: Node) -> list[tuple[str, str, str]]:
    """Ends of runs in the node's journal: type, run and reason."""
    records = [json.loads(line) for line in (node.state_dir / "journal/current.jsonl").read_text().splitlines()]
    kinds = ("task-succeeded", "task-failed", "task-revoked")
    return [(one["type"], one["run"], one.get("reason", "")) for one in records if one["type"] in kinds]


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_an_unknown_run_is_resolved_by_a_person(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        cluster.job("held", "until", cluster.go("held"), on_lost="hold", overlap="allow")
        cluster.start()
        ways = {"success": "success", "failed": "failure", "relaunch": "success"}
        for way in ways:
            trigger(cluster.nodes[0], "held", way)
        owners = {way: cluster.owner(f"held#{way}") for way in ways}
        for node in set(owners.values()):
            node.kill_family()
        until(lambda: not cluster.processes() or any(node.up for node in cluster.nodes))
        for node in set(owners.values()):
            node.start()
        for way in ways:
            cluster.becomes(f"held#{way}", "unknown")
            assert f"coordctl run resolve held#{way}" in cluster.nodes[1].why(f"held#{way}")
        cluster.go("held").touch()
        for way in ways:
            assert len(cluster.starts(f"held#{way}")) == 1, "nobody starts it again of his own accord"
            cluster.nodes[1].call("run.resolve", **{"id": f"held#{way}", "as": way})
        for way, state in ways.items():
            cluster.becomes(f"held#{way}", state)
        resolved = [end for end in told_ends(cluster.nodes[1]) if end[2].startswith("resolved as ")]
        kinds = {run: kind for kind, run, _ in resolved}
        assert kinds == {"held#success": "task-succeeded", "held#failed": "task-failed"}, "the history hears of it"
        assert [entry.attempt for entry in cluster.starts("held#relaunch")] == [0, 1]
        assert len(cluster.starts("held#success")) == len(cluster.starts("held#failed")) == 1
        with pytest.raises(CallError) as caught:
            cluster.nodes[0].call("run.resolve", **{"id": "held#failed", "as": "success"})
        assert caught.value.kind == "finished"


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_revoked_run_never_starts_not_even_on_a_node_that_was_away(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        cluster.job("due", "sleep", 0, schedule="every 3s", overlap="allow", misfire="all")
        cluster.job("asked", "sleep", 0)
        cluster.start()
        here, away = cluster.nodes
        away.stop()
        upcoming = [fire["run"] for fire in here.call("job.next", job="due", count=6)][4]
        here.call("run.revoke", id=upcoming)
        here.call("run.revoke", id="asked#never")
        until(lambda: len(told_ends(here)) == 2, why="the history hears of both")
        assert {run for _, run, _ in told_ends(here)} == {upcoming, "asked#never"}
        here.stop()
        away.start()
        assert away.call("run.trigger", job="asked", id="never")["state"] == "revoked"
        after = fire_time(upcoming)
        until(
            lambda: [e for e in cluster.starts() if fire_time(e.run) > after], why="a fire time after the revoked one"
        )
        assert cluster.row(upcoming)["state"] == "revoked"
        assert "revoked" in away.why(upcoming)
        assert not cluster.starts(upcoming)
        assert not cluster.starts("asked#never")


# ---- time


def test_fire_times_that_the_whole_cluster_missed() -> None:
    with cluster_of(2) as cluster:
        ways = ("once", "all", "skip")
        for way in ways:
            cluster.job(way, "sleep", 0, schedule="every 10s", misfire=way, overlap="allow")
        cluster.start()
        until(lambda: cluster.nodes[0].call("ledger.status")["jobs"] == len(ways), why="the ledger knows the jobs")
        for node in cluster.nodes:
            node.kill()
        # A program that starts only now belongs to a run that the ledger is about to forget.
        until(lambda: not cluster.processes(), why="the runs of the killed daemons end")
        horizon = pretend_to_have_been_down(cluster, 65.0)
        up_at = time.time()
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.ready()
        missed = [10.0 * step for step in range(int(horizon // 10) + 1, int(up_at // 10) + 1)]
        assert len(missed) >= 6

        def launched(way: str) -> list[float]:
            starts = [entry for entry in cluster.starts() if entry.wall > up_at]
            return sorted(fire_time(entry.run) for entry in starts if entry.run.startswith(f"{way}@"))

        until(lambda: all([at for at in launched(way) if at > missed[-1]] for way in ways), why="the next fire time")
        until(lambda: set(launched("all")) >= set(missed))
        for way in ways:
            assert len(set(launched(way))) == len(launched(way)), "each of them once"
        assert min(launched("once")) >= missed[-1], "of those that were missed the last one at the most"
        assert min(launched("skip")) >= up_at - 30.0, "nothing that was over long ago"


def pretend_to_have_been_down(cluster: Cluster, seconds: float) -> float:
    """Set the ledger back by ``seconds``, as if no daemon had run since. Returns the horizon: every fire time up to it
    is settled."""
    back_to = time.time() - seconds
    with contextlib.closing(sqlite3.connect(cluster.ledger_path, isolation_level=None)) as db:
        db.execute("DELETE FROM runs")
        db.execute("DELETE FROM attempts")
        # The job definitions must be as old as that: fire times count from their activation.
        for table in ("standing", "activations"):
            db.execute(f"UPDATE {table} SET activated_at = ?, counts_from = ?", (back_to, back_to))  # noqa: S608  # constants
        db.execute("UPDATE standing SET horizon = ?", (back_to,))
    return back_to


@pytest.mark.parametrize(("backend", "dies"), [("embedded", False), ("production", False), ("production", True)])
def test_a_trigger_while_the_ledger_is_silent_survives_the_death_of_its_daemon(backend: str, dies: bool) -> None:
    """A Redis that goes on (``dies`` is false) serves what was sent to it, although the sender is dead by then."""
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("asked", "sleep", 0)
        cluster.start()
        node = cluster.nodes[0]
        with cluster.backend.silent():
            said = node.call("run.trigger", job="asked", id="1")
            assert (said["id"], said["durable"]) == ("asked#1", "node")
            assert node.status()["ledger"]["state"] == "unavailable"
            assert node.why("asked#1").startswith("asked#1 was triggered here, and the ledger does not have it yet")
            node.kill()
            assert not cluster.starts()
            if dies:
                cluster.production.redis.kill()
                cluster.production.redis.start()
        if dies or backend == "embedded":
            assert cluster.row("asked#1") == {}, "nobody else knows of it"
        node.start()
        cluster.becomes("asked#1", "success")
        assert node.call("run.trigger", job="asked", id="1")["state"] == "success"
        assert len(cluster.starts()) == 1
        assert not list((node.state_dir / "requests").glob("*.json"))


def test_each_fire_time_has_one_decision_although_the_owner_of_a_run_is_killed() -> None:
    """All nodes answer alike, and each decision fits the starts that the programs have written themselves."""
    with cluster_of(3, backend="production") as cluster:
        cluster.job("ticks", "sleep", 1, schedule="every 2s", overlap="allow", start_within="6s")
        cluster.job("forbids", "sleep", 3, schedule="every 2s", start_within="6s")
        cluster.start()
        until(lambda: any(entry.run.startswith("ticks@") for entry in cluster.starts()))
        killed = cluster.owner(next(entry.run for entry in cluster.starts() if entry.run.startswith("ticks@")))
        killed.kill()
        one, two = cluster.others(killed)

        def decided(node: Node, job: str) -> dict[float, str]:
            fires = node.call("job.fires", job=job)
            times = [fire_time(f"{job}@{fire['fire_time']}") for fire in fires]
            assert times == [times[0] + 2.0 * step for step in range(len(times))], "none is missing, none comes twice"
            return {at: fire["decision"] for at, fire in zip(times, fires, strict=True) if fire["decision"]}

        until(lambda: min(len(decided(one, job)) for job in ("ticks", "forbids")) >= 6, why="six decisions each")
        one.call("job.suspend", job="ticks")
        until(lambda: "suspended" in decided(two, "ticks").values(), why="a fire time is suspended")
        one.call("job.resume", job="ticks")
        killed.start()
        for job, words in (("ticks", {"launched", "suspended"}), ("forbids", {"launched", "rejected"})):
            told, again = decided(one, job), decided(two, job)
            assert told.items() <= again.items(), "another node says the same, a moment later"
            assert words <= set(told.values()) <= {*words, "coalesced", "missed"}
            begun = {fire_time(entry.run) for entry in cluster.starts() if entry.run.startswith(f"{job}@")}
            assert {at for at in begun & told.keys() if told[at] != "launched"} == set()
        suspended = min(at for at, word in decided(one, "ticks").items() if word == "suspended")
        assert "was suspended: " in two.why(f"ticks@{iso(suspended)}")


def test_what_waits_for_a_slot_is_missed_in_time_although_its_owner_is_killed() -> None:
    with cluster_of(3, backend="production") as cluster:
        for node in cluster.nodes:
            node.settings = "\n[pools]\nheavy = 1\n"
        cluster.job("holder", "until", cluster.go("on"), pool="heavy")
        cluster.job("late", "sleep", 0, pool="heavy", start_within="3s")
        cluster.start()
        owner = cluster.owner(trigger(cluster.nodes[0], "holder"))
        asked, *_ = cluster.others(owner)
        trigger(asked, "late")
        owner.kill()

        row = cluster.becomes("late#1", "missed")
        assert "no node could launch it within 3 s of its time" in row["reason"]
        for node in cluster.others(owner):
            assert row["reason"] in node.why("late#1")
        cluster.go("on").touch()
        cluster.becomes("holder#1", "success")
        assert not cluster.starts("late#1")


def test_nothing_fires_in_a_blackout_although_an_owner_is_killed_in_it() -> None:
    with cluster_of(3, backend="production") as cluster:
        begin = float(int(time.time()) + 12)
        end = begin + 6.0
        black: dict[str, Any] = {"[blackout]": {"from": iso(begin), "to": iso(end)}}
        cluster.job("ticks", "sleep", 8, schedule="every 1s", overlap="allow", misfire="all", **black)
        cluster.start()

        def fired() -> list[float]:
            return sorted({fire_time(entry.run) for entry in cluster.starts()})

        until(lambda: time.time() > begin + 1.0 and min(fired(), default=end) < begin, why="it fired before")
        cluster.owner(cluster.starts()[-1].run).kill_family()
        until(lambda: max(fired()) > end + 1.0, why="it fires again")

        assert [at for at in fired() if begin <= at < end] == []
        assert end in fired(), "its end does not lie in it"


def test_a_job_without_a_success_is_late_once_on_each_node_although_its_owner_is_killed() -> None:
    """`expect_within`: every node judges it by the ledger, so it does not matter who ran what."""
    with cluster_of(3, backend="production") as cluster:
        cluster.job("due", "until", cluster.go("on"), schedule="every 2s", expect_within="6s")
        cluster.start()
        first = until(cluster.starts)[0].run
        owner = cluster.owner(first)
        owner.kill_family()
        others = cluster.others(owner)
        until(lambda: all(node.status()["late_jobs"] == ["due"] for node in others), why="it is late")
        cluster.go("on").touch()
        until(lambda: all(node.status()["late_jobs"] == [] for node in others), why="a run has succeeded")
        for node in others:
            told = [line["event"] for line in map(json.loads, node.log().splitlines()) if line.get("job") == "due"]
            assert [event for event in told if event in ("job.late", "job.on_time")][:2] == ["job.late", "job.on_time"]
