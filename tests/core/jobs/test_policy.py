"""What the ledger is told about a job."""

from __future__ import annotations

import pytest

from coordd.core.jobs.job import Command, Job, SparkSubmit


@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
def test_a_driver_on_the_cluster_is_held_when_it_is_lost(on_lost: str) -> None:
    def policy(launch: SparkSubmit | Command) -> str:
        return Job(name="nightly", digest="d", launch=launch, on_lost=on_lost).policy().on_lost  # type: ignore[arg-type]  # a parameter

    assert policy(SparkSubmit("/a.py", deploy_mode="cluster")) == "hold"
    assert policy(SparkSubmit("/a.py")) == on_lost
    assert policy(Command(("true",))) == on_lost
