"""A tracker on a fake Standalone cluster: the cases that the other cluster managers do not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters.standalone import FakeStandalone

from coordd.core.jobs.applications import MARK, property_mark
from system.applications.test_tracker import killed, lost_with_a_hint
from system.applications.tracked import Cluster, Place
from system.lab.processes import until
from system.lab.runner_lab import World

pytestmark = pytest.mark.paired


class FakePlace(Place):
    def __init__(self, fake: FakeStandalone, directory: Path) -> None:
        super().__init__("standalone", directory, fake)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.fake.port}"

    def conf(self, run: str, attempt: int, token: int) -> str:
        ports = "".join([f"spark.master.{which}.port={self.fake.port}\n" for which in ("ui", "rest")])
        return f"{ports}{MARK}={property_mark('prod', run, attempt, token)}\n"


@pytest.fixture
def standalone(world: World) -> Iterator[Cluster]:
    directory = world.path / "place"
    directory.mkdir()
    with FakeStandalone() as fake:
        yield Cluster(world, FakePlace(fake, directory))


def test_nothing_is_submitted_while_a_living_driver_may_be_the_runs(standalone: Cluster) -> None:
    first = standalone.start(env={"SUBMIT_STOPS": "before"})
    until(lambda: standalone.place.stopped("before"))
    killed(first)
    lost_with_a_hint(standalone)
    ident = standalone.place.fake.submit("", "SUBMITTED")

    second = standalone.start()

    until(lambda: second.row().state == "retry")
    assert f"whose driver {ident} is cannot be told yet" in second.row().reason
    assert list(standalone.place.fake.drivers) == [ident]
