"""The breaker of a job on real daemons: it opens, one run tries although its owner is killed, a person isolates it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import until
from system.test_policies import trigger

OPEN_FOR_S = 6

# The type of the journal's record of a breaker.
CHANGED = "breaker-changed"


def breaker(node: Node, job: str = "fragile") -> dict[str, Any]:
    return next(one for one in node.call("breaker.list") if one["name"] == f"job:{job}")


def told_states(node: Node, name: str) -> list[str]:
    """The states of a breaker in a node's journal, in order."""
    return [str(told["state"]) for told in node.journal(CHANGED) if told["breaker"] == name]


def fail(cluster: Cluster, number: int) -> None:
    run = trigger(cluster.nodes[number % 3], "fragile", f"bad-{number}")
    cluster.becomes(run, "failure")


def test_a_breaker_opens_one_run_tries_although_its_owner_is_killed_and_it_closes() -> None:
    with cluster_of(3, backend="production") as cluster:
        keys = {"after": 2, "open_for": f"{OPEN_FOR_S}s", "growth": "linear"}
        cluster.job("fragile", "until", cluster.go("open"), code=3, overlap="allow", breaker=keys)
        one, two, three = cluster.start().nodes
        cluster.go("open").touch()
        fail(cluster, 0)
        assert breaker(two)["state"] == "closed"
        fail(cluster, 1)
        cluster.go("open").unlink()

        opened = breaker(three)
        assert (opened["state"], opened["failures"], opened["last_failed"]) == ("open", 2, "fragile#bad-1")
        row = cluster.becomes(trigger(two, "fragile", "stopped"), "rejected")
        assert row["reason"] == "breaker"
        assert not cluster.starts("fragile#stopped")
        assert "the breaker of its job was open then" in one.why("fragile#stopped")
        until(lambda: all("job:fragile" in node.status()["breakers_open"] for node in cluster.nodes))
        assert {view["breaker"] for view in one.call("job.list") if view["name"] == "fragile"} <= {"open"}
        until(lambda: "breaker.opened" in two.log(), why="the change is logged")
        assert any(found["check"] == "breaker job:fragile" for found in one.call("doctor"))

        numbers, tries = itertools.count(), ""

        def one_tries() -> bool:
            nonlocal tries
            tries = trigger(one, "fragile", f"try-{next(numbers)}")
            until(lambda: cluster.row(tries)["state"] in ("started", "rejected"))
            return bool(cluster.row(tries)["state"] == "started")

        until(one_tries, limit_s=30.0, why="one run tries")
        cluster.started(tries)
        assert (breaker(two)["state"], breaker(two)["probe"]) == ("half_open", tries)
        cluster.becomes(trigger(two, "fragile", "beside"), "rejected")
        cluster.owner(tries).kill_family()  # its run goes on elsewhere, and is still the one that tries
        cluster.started(tries, 1)
        node = next(node for node in cluster.nodes if node.up)
        assert breaker(node)["probe"] == tries
        cluster.go("open").touch()
        cluster.becomes(tries, "failure")
        assert (breaker(node)["state"], breaker(node)["opened"]) == ("open", 2), "a failed try opens it again"

        assert node.call("breaker.reset", name="job:fragile")["state"] == "closed"
        cluster.becomes(trigger(node, "fragile", "after"), "failure")
        left = [each for each in cluster.nodes if each.up]
        for each in left:
            until(lambda each=each: "closed" in told_states(each, "job:fragile"), why=f"{each.name} journals its end")  # type: ignore[misc]  # a default binds the loop's variable
            assert told_states(each, "job:fragile")[0] == "open"
        openings = [next(told["since"] for told in each.journal(CHANGED) if told["state"] == "open") for each in left]
        assert len(set(openings)) == 1, "all tell the ledger's instant"


def test_a_person_isolates_a_breaker_from_any_node() -> None:
    with cluster_of(3, backend="embedded") as cluster:
        cluster.job("fragile", "quick", overlap="allow", breaker={"enforce": False})
        cluster.job("plain", "quick")
        one, two, three = cluster.start().nodes
        two.call("breaker.isolate", name="job:fragile", note="the source is away")
        seen = breaker(three)
        assert (seen["state"], seen["note"]) == ("isolated", "the source is away")
        cluster.becomes(trigger(one, "fragile", "1"), "rejected")
        until(lambda: "the source is away" in json.dumps(three.call("why", id="fragile")))
        until(lambda: told_states(one, "job:fragile") == ["isolated"], why="it is journalled")
        with pytest.raises(CallError, match="plain has no breaker"):
            one.call("breaker.isolate", name="job:plain")
        with pytest.raises(CallError, match="cannot be held open by hand"):
            one.call("breaker.isolate", name="ledger")
        one.call("breaker.reset", name="job:fragile")
        cluster.becomes(trigger(three, "fragile", "2"), "success")


def ledger_breaker(node: Node) -> dict[str, Any]:
    return next(one for one in node.call("breaker.list") if one["name"] == "ledger")


def test_a_ledger_that_fails_now_and_then_opens_the_breaker_by_its_window() -> None:
    with cluster_of(1, backend="production") as cluster:
        (node,) = cluster.nodes
        node.settings = '[breakers]\nledger = { after = 10, window = "10m" }\n'
        cluster.start()
        redis = cluster.production.redis
        redis.kill()
        node.ledger_is("unavailable")
        redis.start()
        node.ledger_is("connected")
        seen = ledger_breaker(node)
        assert (seen["state"], seen["opened"]) == ("closed", 0)
        assert 0 < seen["failures"] < 10, "it works again, and the window still counts"
        redis.kill()
        until(lambda: ledger_breaker(node)["opened"] == 1, limit_s=60.0, why="failures of both times open it")
        redis.start()
        until(lambda: ledger_breaker(node)["state"] == "closed", why="the probe succeeds")
        until(lambda: told_states(node, "ledger") == ["open", "closed"], why="it is journalled")
        assert ledger_breaker(node)["failures"] < 10
