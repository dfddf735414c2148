"""A tracker on a fake Standalone cluster: the cases that the other cluster managers do not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters.standalone import WORKER, FakeStandalone

from coordd.core.jobs.applications import MARK, property_mark
from system.applications.test_tracker import RUN, ended, killed, lost_with_a_hint
from system.applications.tracked import Cluster, Place
from system.lab.processes import until
from system.lab.runner_lab import Attempt, World

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


def submission_that_dies(cluster: Cluster) -> tuple[Attempt, str]:
    """The master accepts a driver, which waits for a worker, and spark-submit fails before it prints the id. A second
    call would submit another one.
    """
    place, fake = cluster.place, cluster.place.fake
    place.submits = 3
    words = (place.spark_submit(), "--master", place.master, "--class", "org.example.Waits", "--jars", "waits.jar")
    attempt = cluster.start(env={"SUBMIT_STOPS": "before", "SUBMIT_TO_EXIT": "1", "SUBMIT_TO_FAIL": "1"}, spark=words)
    until(lambda: place.stopped("before"))
    ident = fake.submit(property_mark("prod", RUN, 0, int(attempt.row().token)), "SUBMITTED")
    place.go.touch()
    return attempt, ident


def test_a_driver_that_waits_after_a_failed_spark_submit_may_be_the_runs(standalone: Cluster) -> None:
    standalone.place.settle_s = 4.0
    attempt, ident = submission_that_dies(standalone)

    state, _, reason = ended(attempt)

    assert state == "unknown"
    assert f"whose driver {ident} is cannot be told yet" in reason
    assert [*standalone.place.fake.drivers] == [ident]


def test_a_driver_that_waited_after_a_failed_spark_submit_is_followed_once_it_runs(standalone: Cluster) -> None:
    fake = standalone.place.fake
    attempt, ident = submission_that_dies(standalone)
    until(lambda: "cannot be told yet" in standalone.log(attempt))

    with fake.lock:
        fake.drivers[ident].update(worker=WORKER, state="RUNNING")
        fake.on_worker[ident] = ("RUNNING", "")
    until(lambda: attempt.row().application_id == ident)
    fake.ends(ident, "FINISHED")

    assert ended(attempt)[0] == "success"
    assert [*fake.drivers] == [ident]


def test_a_driver_that_waited_before_is_a_strangers(standalone: Cluster) -> None:
    standalone.place.fake.submit("", "SUBMITTED")

    attempt = standalone.start(env={"SUBMIT_TO_EXIT": "3"})

    until(lambda: attempt.row().state == "retry")
    assert attempt.row().exit_code == 3
    assert "and nothing was submitted" in standalone.log(attempt)
