"""A node whose clock is wrong: times are the ledger's, and `why` says that this node opens no scheduled run."""

from __future__ import annotations

import pytest
from support.small_cluster import Cluster, job

from services.waiting.asking import People

HOUR_S = 3600.0
DUE = "sales@2025-01-29T09:00:00Z"
OPENS_NONE = "This node opens no scheduled run: its clock is {} the ledger's (limit 10 s); set this machine's clock"


def people(ahead_s: float) -> People:
    """The job is due since 100 s by the ledger's clock, and this node has opened nothing."""
    cluster = Cluster("a", jobs=[job("sales", every_s=HOUR_S, tags=("gpu",)), job("by_hand")])
    for _ in range(6):
        cluster.wait(HOUR_S / 6)
    cluster.wait(100.0)
    cluster["a"].pursuits.pursuits.clear()
    return People(cluster, ahead_s=ahead_s)


@pytest.mark.parametrize(("ahead_s", "told"), [(300.0, "300 s ahead of"), (-300.0, "300 s behind")])
def test_why_says_that_a_node_with_a_wrong_clock_opens_nothing(ahead_s: float, told: str) -> None:
    wrong = people(ahead_s)
    assert OPENS_NONE.format(told) in wrong.why("sales")
    assert OPENS_NONE.format(told) in wrong.why(DUE)
    assert "its clock" not in wrong.why("by_hand")
    assert "its clock" not in wrong.why("by_hand#1")
    assert "its clock" not in people(9.0).why("sales")


@pytest.mark.parametrize("ahead_s", [-300.0, 0.0, 4000.0])
def test_what_is_due_is_judged_by_the_clock_of_the_ledger(ahead_s: float) -> None:
    """It said that a run is due in 200 s, which was due by the ledger's time, and took the next one for the last."""
    wrong = people(ahead_s)
    assert "it was due, and no node has claimed it yet." in wrong.why(DUE)
    assert "it is due in 3500 s." in wrong.why("sales@2025-01-29T10:00:00Z")
    assert "Next: 2025-01-29T10:00:00Z." in wrong.why("sales")
    assert wrong.ask("job_next", job="sales", count=1)[0]["fire_time"] == "2025-01-29T10:00:00Z"
    assert [one["next"] for one in wrong.ask("job_list") if one["name"] == "sales"] == ["2025-01-29T10:00:00Z"]


def test_a_run_is_late_by_the_clock_of_the_ledger() -> None:
    cluster = Cluster("a", jobs=[job("sales", every_s=HOUR_S, tags=("gpu",))])
    for _ in range(6):
        cluster.wait(HOUR_S / 6)
    cluster.wait(59.0)
    assert not People(cluster, ahead_s=300.0).looked().late
    cluster.wait(2.0)
    assert People(cluster, ahead_s=-300.0).looked().late
