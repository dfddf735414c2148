"""`dedupe` on real daemons: triggers with the same key, on whichever nodes, are one run."""

from __future__ import annotations

import pytest

from system.lab.cluster import CallError, cluster_of
from system.lab.processes import until


def test_triggers_with_the_same_key_are_one_run_on_all_nodes() -> None:
    with cluster_of(2) as cluster:
        params = {"customer": "", "mood": ""}
        cluster.job("bill", "sleep", 0, dedupe="{customer}", params=params, overlap="allow")
        once = {"key": "all", "period": "28d", "then": "refuse"}
        cluster.job("once", "sleep", 0, dedupe=once, overlap="allow")
        cluster.start()
        one, two = cluster.nodes

        first = one.call("run.trigger", job="bill", args={"customer": "acme", "mood": "good"})
        assert (first["id"], "duplicate" in first) == ("bill#acme", False)
        for node, mood in ((one, "good"), (two, "good"), (two, "bad")):
            again = node.call("run.trigger", job="bill", args={"customer": "acme", "mood": mood})
            assert (again["id"], again["duplicate"]) == ("bill#acme", True)
        other = two.call("run.trigger", job="bill", args={"customer": "Müller & Co"})["id"]
        for run in ("bill#acme", other):
            cluster.becomes(run, "success")
        assert [entry.run for entry in cluster.starts()].count("bill#acme") == 1
        with pytest.raises(CallError, match="dedupe makes the ids"):
            one.call("run.trigger", job="bill", id="1", args={"customer": "acme"})

        cluster.becomes(one.call("run.trigger", job="once")["id"], "success")
        with pytest.raises(CallError, match="was triggered before with the same key"):
            two.call("run.trigger", job="once")
        assert len(cluster.starts()) == 3
        until(lambda: "trigger.duplicate" in two.log(), why="the duplicate is logged")
