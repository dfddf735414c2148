"""Drivers on a cluster, asked on the way that a ResourceManager or an API server shows. A real master's workers are
asked in tests/system/applications/test_standalone.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.clusters.kubernetes import FakeKubernetes
from support.clusters.wire import driver_of
from support.clusters.yarn import FakeYarn

from coordd.adapters.cluster.opening import open_manager
from coordd.adapters.drivers.far_ui import FarUi
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.ports import Applications, Driven, Seen

RUN = "etl@2026-12-01T02:00:00Z"
JOB = {
    "jobId": 0, "stageIds": [0, 1], "numTasks": 40, "numCompletedTasks": 12, "numSkippedTasks": 0, "numFailedTasks": 1,
    "numCompletedStages": 1, "numSkippedStages": 0,
}  # fmt: skip


class Site(NamedTuple):
    """A cluster manager with an application; ``address`` is that of its driver's UI."""

    fake: FakeYarn | FakeKubernetes
    open: Callable[[], Applications]
    ident: str
    address: str

    def ui(self, *settings: tuple[str, str]) -> FarUi:
        return FarUi(Driven(RUN, 2, 7, "/runs/etl", dict(settings), "edge-1"), self.open)

    def answers(self, *jobs: dict[str, Any], run: str = RUN, attempt: int = 2) -> None:
        """The driver's UI is there."""
        self.fake.drivers[self.ident] = driver_of(run, attempt, *jobs)


@pytest.fixture(params=["yarn", "kubernetes"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "yarn":
        with FakeYarn() as yarn:
            env = yarn.configuration(tmp_path / "conf")
            ident = yarn.submit("etl", "")
            yield Site(yarn, lambda: open_manager("yarn", {}, env), ident, f"{yarn.url}/proxy/{ident}")
    else:
        with FakeKubernetes() as api:
            env = {**api.kubeconfig(tmp_path / "config", {}), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
            name = api.submit("etl-driver", {})
            base = f"{api.url}/api/v1/namespaces/default/pods/{name}:4040/proxy"
            yield Site(api, lambda: open_manager(f"k8s://{api.url}", {}, env), name, base)


def why(ui: FarUi, ident: str) -> str:
    with pytest.raises(CoorddError) as caught:
        ui.look(ident, 5.0)
    return str(caught.value)


def test_a_driver_tells_how_far_it_is(site: Site) -> None:
    site.answers(JOB, JOB)
    ui = site.ui()
    assert ui.look(site.ident, 5.0) == Seen(4, 2, 80, 24, 2, site.address)

    site.fake.asked.clear()
    assert ui.look(site.ident, 5.0).tasks == 80
    assert len(site.fake.asked) == 1, "it is not searched again"


@pytest.mark.parametrize(("run", "attempt"), [("other#1", 2), (RUN, 1)])
def test_the_driver_of_another_attempt_does_not_count(site: Site, run: str, attempt: int) -> None:
    site.answers(JOB, run=run, attempt=attempt)
    assert why(site.ui(), site.ident) == "its driver has no UI yet"


def test_what_is_not_there_yet_is_asked_again(site: Site) -> None:
    ui = site.ui()
    assert why(ui, "") == "its application is not known yet"
    assert "instead of the driver's progress" in why(ui, site.ident)
    site.answers(JOB)
    assert ui.look(site.ident, 5.0).tasks_done == 12
    del site.fake.drivers[site.ident]
    assert "instead of the driver's progress" in why(ui, site.ident)
    site.answers(JOB)
    assert ui.look(site.ident, 5.0).tasks_done == 12


@pytest.mark.parametrize(
    "mischief", ["away", "silent", "dribbling", "forbidden", "failing", "garbage", "html", "endless"]
)
def test_a_cluster_manager_that_misbehaves_is_named_in_time(site: Site, mischief: str) -> None:
    site.answers(JOB)
    site.fake.mischief = mischief
    ui, began = site.ui(), time.monotonic()
    with pytest.raises(UnavailableError):
        ui.look(site.ident, 2.0)
    assert time.monotonic() - began < 30.0
    site.fake.mischief = ""
    assert ui.look(site.ident, 5.0).tasks == 40


def test_a_driver_without_ui_is_not_asked_for(site: Site) -> None:
    with pytest.raises(RefusedError):
        site.ui(("spark.ui.enabled", "false")).look(site.ident, 5.0)
    assert site.fake.asked == []


def test_on_kubernetes_the_right_that_is_missing_is_named(tmp_path: Path) -> None:
    with FakeKubernetes() as api:
        env = {**api.kubeconfig(tmp_path / "config", {}), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        api.submit("etl-driver", {})
        api.no_proxy = True
        ui = FarUi(Driven(RUN, 2, 7, "/runs/etl", {}, "edge-1"), lambda: open_manager(f"k8s://{api.url}", {}, env))
        assert "the verb get on pods/proxy" in why(ui, "etl-driver")


def test_an_application_that_has_ended_on_yarn_has_no_driver_to_ask(tmp_path: Path) -> None:
    with FakeYarn() as yarn:
        env = yarn.configuration(tmp_path / "conf")
        ident = yarn.submit("etl", "")
        ui = FarUi(Driven(RUN, 2, 7, "/runs/etl", {}, "edge-1"), lambda: open_manager("yarn", {}, env))
        yarn.apps[ident]["trackingUrl"] = f"{yarn.url}/elsewhere/{ident}/"
        assert f"{ident} has no tracking URL at YARN's proxy now" in why(ui, ident)
        yarn.apps[ident]["trackingUrl"] = f"{yarn.url}/proxy/{ident}/"
        yarn.finish(ident)
        assert f"{ident} has no tracking URL at YARN's proxy now" in why(ui, ident)


def test_hadoops_command_leads_to_no_driver(tmp_path: Path) -> None:
    with FakeYarn() as yarn:
        env = yarn.configuration(tmp_path / "conf")
        command = lambda: open_manager("yarn", {}, env, yarn_command="/opt/hadoop/bin/yarn")  # noqa: E731 - one line
        with pytest.raises(RefusedError):
            FarUi(Driven(RUN, 2, 7, "/runs/etl", {}, "edge-1"), command).look("application_1_0001", 5.0)
