"""`coordctl why` and the log tell what is known and what comes next, for example when a node dies during a run."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from system.lab.cluster import CallError, Node, cluster_of
from system.lab.processes import until
from system.test_policies import pretend_to_have_been_down


def told(log: str, run: str) -> list[tuple[str, str]]:
    """(level, event) of each log line about a run."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{") and line.endswith("}")]
    return [(line["level"], line["event"]) for line in lines if line.get("run") == run]


def whats(node: Node, method: str = "why") -> list[str]:
    return [step["what"] for step in node.call(method, id="long#1")["timeline"]]


def test_why_tells_of_a_node_that_died_until_another_takes_over() -> None:
    with cluster_of(2, lease=12.0) as cluster:
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="long", id="1")
        cluster.becomes("long#1", "started")
        until(lambda: cluster.starts("long#1"), why="the program has begun")
        (start,) = cluster.starts("long#1")
        holder = next(node for node in cluster.nodes if node.name == start.node)
        other = next(node for node in cluster.nodes if node is not holder)
        assert f"is running on {holder.name}" in other.why("long#1")
        foretold = other.call("why", id="long#1", without=holder.name)["what_if"]
        assert "is taken over as attempt 1" in foretold
        assert f"{other.name} would try first" in foretold
        with pytest.raises(CallError, match='there is no node "edge-7"'):
            other.call("why", id="long#1", without="edge-7")
        holder.kill_family()
        until(lambda: f"{holder.name} was last heard of" in other.why("long#1"), why="it is missed")
        said = other.why("long#1")
        for words in (f"was running on {holder.name}", "is lost since", "its lease ends in", "and tried again"):
            assert words in said, said
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")
        assert [(one.attempt, one.node) for one in cluster.starts("long#1")] == [(0, holder.name), (1, other.name)]
        wanted = [
            ("warning", "run.taken_over"),
            ("warning", "run.retried"),
            ("info", "run.started"),
            ("info", "run.succeeded"),
        ]
        until(lambda: told(other.log(), "long#1") == wanted, why="the log of the node that took over tells it")


@pytest.mark.parametrize(("misfire", "more"), [("skip", {}), ("once", {"start_within": "1m"})])
def test_last_nights_fire_time_that_nobody_launched_is_told_at_once(misfire: str, more: dict[str, Any]) -> None:
    """Whoever asks in the morning asks about the job. The ledger hears of it with the next run: a day later."""
    missed_at = time.time() - 300.0
    daily = time.strftime("%M %H * * *", time.gmtime(missed_at))
    with cluster_of(1) as cluster:
        cluster.job("nightly", "sleep", 0, schedule=daily, misfire=misfire, **more)
        cluster.start()
        (node,) = cluster.nodes
        until(lambda: node.call("ledger.status")["jobs"] == 1, why="the ledger knows the job")
        node.kill()
        pretend_to_have_been_down(cluster, 600.0)
        node.start()
        fire = time.strftime("%Y-%m-%dT%H:%M:00Z", time.gmtime(missed_at))
        until(lambda: fire in node.why("nightly"), why="it is told")
        said = node.why("nightly")
        decision = node.call("job.fires", name="nightly")[-1]
        assert decision["reason"] in said
        assert decision["decision"] == {"skip": "skipped", "once": "missed"}[misfire]
        node.call("run.trigger", job="nightly", id="by-hand")
        cluster.becomes("nightly#by-hand", "success")
        told = f"Its fire time {fire} was {decision['decision']}: {decision['reason']}."
        assert told in node.why("nightly"), "a run by hand does not hide it"
        assert not cluster.starts(f"nightly@{fire}")


def test_a_job_that_this_node_cannot_start_says_so_as_soon_as_it_is_loaded() -> None:
    with cluster_of(1) as cluster:
        cluster.start()
        (node,) = cluster.nodes
        node.call("job.list")
        cluster.job_file("absent", '[command]\nargv = ["/opt/absent.sh"]\n')
        node.call("reload")
        (job,) = node.call("job.list")
        assert "/opt/absent.sh" in job["problems"][0]
        assert "This node cannot start it" in node.why("absent")


def test_a_job_that_was_removed_with_runs_waiting_is_explained() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        cluster.job("gone", "sleep", 0.1)
        cluster.start()
        node.call("job.suspend", job="gone")
        node.call("run.trigger", job="gone", id="1")
        assert "is suspended" in node.why("gone#1")
        (cluster.jobs_dir / "gone.toml").unlink()
        node.call("reload", no_jobs=True)
        said = node.why("gone")
        assert "1 run of it waits to be launched (gone#1)" in said
        assert "coordctl run revoke --job gone" in said
        assert "This node has no job 'gone'" in node.why("gone#1")
        node.call("run.revoke", id="gone#1")


def test_a_retry_whose_definition_nobody_has_any_more_is_explained_and_ends() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        cluster.job("edited", "until", cluster.go("edited"), start_within="6s")
        cluster.start()
        node.call("run.trigger", job="edited", id="1")
        until(lambda: cluster.starts("edited#1"), why="the program has begun")
        node.kill_family()
        cluster.job("edited", "sleep", 0.1, start_within="6s")
        (node.state_dir / "job-definitions.bin").unlink()
        node.start()
        cluster.becomes("edited#1", "retry")
        until(lambda: "this node cannot take it: job differs" in node.why("edited#1"), why="it is pursued")
        assert "it is missed, 6 s after it was due. `coordctl run revoke edited#1` ends it now." in node.why("edited#1")
        cluster.becomes("edited#1", "missed")
        assert "no node could launch it within 6 s of its time" in node.why("edited#1")
        assert len(cluster.starts("edited#1")) == 1


def test_why_tells_what_journals_of_all_nodes_know_also_on_a_node_that_was_away() -> None:
    with cluster_of(3) as cluster:
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        first, second, away = cluster.nodes
        until(lambda: all(len(node.call("node.list")) == 3 for node in cluster.nodes), why="all know each other")
        away.kill_family()
        first.call("run.trigger", job="long", id="1")
        cluster.becomes("long#1", "started")
        second.call("run.cancel", id="long#1")
        cluster.becomes("long#1", "revoked")
        away.start()
        until(lambda: len(whats(away)) > len(whats(away, "run.show")), why="the journals of the others are asked")
        steps = {step["what"]: step for step in away.call("why", id="long#1")["timeline"]}
        assert steps["run.trigger"]["node"] == first.name
        assert steps["run.cancel"]["detail"].startswith("by ")
        stood = steps["elected"]["detail"]
        assert stood.startswith("attempt 0: ")
        assert first.name in stood
        assert second.name in stood
        assert away.call("why", id="long#1")["unheard"] == []
        second.kill_family()
        until(lambda: away.call("why", id="long#1")["unheard"] == [second.name], why="it says whom it could not ask")


@pytest.mark.parametrize(
    ("limit", "waits_for"),
    [
        ({"overlap": "allow", "concurrency": 1}, "concurrency: 1 of 1 run"),
        ({"overlap": "allow", "pool": "heavy"}, "pool heavy: 1 of 1 run"),
        ({"overlap": "allow", "rate": "1/h"}, "rate: 1 started within 3600 s"),
        ({"overlap": "queue"}, "overlap with busy#1"),
    ],
    ids=["concurrency", "pool", "rate", "overlap"],
)
def test_why_names_the_limit_that_a_run_waits_for(limit: dict[str, Any], waits_for: str) -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.settings = "\n[pools]\nheavy = 1\n"
        cluster.job("busy", "until", cluster.go("busy"), **limit)
        cluster.start()
        node.call("run.trigger", job="busy", id="1")
        until(lambda: cluster.starts("busy#1"), why="the program has begun")
        node.call("run.trigger", job="busy", id="2")
        until(lambda: waits_for in node.why("busy#2"), why=f"why says {waits_for}")
        cluster.go("busy").touch()
