"""A node dies while its driver runs on a cluster: another node adopts the application, and launches no second one."""

from __future__ import annotations

import os
import signal

import pytest

from system.applications.daemons import applications, daemons_on, followed
from system.applications.tracked import FAKES
from system.lab.processes import until

pytestmark = pytest.mark.paired
RUN = "nightly#1"


@pytest.mark.parametrize("kind", FAKES)
def test_the_application_of_a_dead_node_is_adopted(kind: str) -> None:
    with daemons_on(kind) as (cluster, place):
        cluster.job_file("nightly", place.job())
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="nightly", id="1")
        ident = followed(cluster, RUN)
        owner = cluster.node(cluster.row(RUN)["node"].split(".")[0])
        (other,) = cluster.others(owner)

        owner.kill_family()

        until(lambda: cluster.row(RUN)["attempt"] == 1, why="the next attempt")
        assert followed(cluster, RUN) == ident
        assert cluster.row(RUN)["node"].startswith(other.name)
        place.fake.finish(ident)
        row = cluster.becomes(RUN, "success", "failure", "lost")
        assert (row["state"], row["application_id"]) == ("success", ident)
        assert applications(place) == [ident]
        first = cluster.attempts(RUN)[0]
        assert (first["state"], first["reason"]) == ("lost", f"{ident} is alive: the next attempt adopts it")


def test_an_application_that_nobody_shows_any_more_waits_for_a_person() -> None:
    with daemons_on("yarn", 1) as (cluster, place):
        cluster.job_file("nightly", place.job())
        (node,) = cluster.start().nodes
        node.call("run.trigger", job="nightly", id="1")
        ident = followed(cluster, RUN)

        place.fake.purge(ident)
        os.kill(int(node.runner(RUN)["pid"]), signal.SIGKILL)

        until(lambda: f"{ident} was seen, and the cluster manager does not show it any more" in node.log())
        found = node.call("orphans")
        assert [(one["id"], one["state"], one["application_id"]) for one in found["runs"]] == [(RUN, "unknown", ident)]
        assert ident in found["runs"][0]["problem"]
        assert cluster.row(RUN)["state"] == "unknown"

        node.call("run.resolve", id=RUN, **{"as": "relaunch"})
        again = followed(cluster, RUN)
        assert again != ident
        stray = place.submitted_by_another("gone#1", 0, 5)  # of another cluster: no orphan of this one
        place.fake.finish(again)
        cluster.becomes(RUN, "success")
        assert node.call("orphans") == {"applications": [], "runs": [], "problems": []}
        assert stray in applications(place)


def test_a_cancel_that_nobody_could_confirm_is_carried_out_later() -> None:
    with daemons_on("yarn", 1) as (cluster, place):
        place.fake.dies_slowly = True
        cluster.job_file("nightly", place.job())
        (node,) = cluster.start().nodes
        node.call("run.trigger", job="nightly", id="1")
        ident = followed(cluster, RUN)

        node.call("run.cancel", id=RUN)
        cluster.becomes(RUN, "unknown")
        until(lambda: f"{ident} is being ended: the run is cancelled" in node.log())
        assert [one["problem"] for one in node.call("orphans")["runs"]] == [
            f"{ident} is being ended: the run is cancelled"
        ]
        place.fail(ident)

        assert cluster.becomes(RUN, "revoked", "failure")["state"] == "revoked"
