"""The values that alerts of a whole cluster need: they are there from the start, and count what a person must see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed
from support.small_cluster import job

from coordd.config.sections import MetricsConfig
from coordd.core.jobs.job import Schedule
from coordd.core.ready import Now
from coordd.services.metrics import service as module
from coordd.services.metrics.families import OTHER, STATES
from coordd.services.metrics.service import Metrics
from coordd.services.views.troubles import Found, Trouble

parser: Any = parsed  # it is not typed

WALL = 1_700_000_000.0


def metrics(found: Found, monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """Those of a node without jobs, which has just started."""
    monkeypatch.setattr(module, "node_problem", lambda _driver, _ledger: "")
    node = SimpleNamespace(
        settings=SimpleNamespace(cluster="c"), full_hostname="a.1", jobs={}, elections=SimpleNamespace(),
        planner=SimpleNamespace(next_at={}), member_counts=dict, drains=SimpleNamespace(holds={}),
        alarms=SimpleNamespace(standing={}),
    )  # fmt: skip
    driver = SimpleNamespace(node=node, listeners=[], bus=SimpleNamespace(state="off"), outbox=None, breakers=())
    driver.now = lambda: Now(0.0, WALL)
    ledger = SimpleNamespace(state="connected")
    others = (SimpleNamespace(found=found), SimpleNamespace(problem=""), None)
    return Metrics(MetricsConfig(), cast("Any", driver), cast("Any", ledger), *cast("Any", others))


def values(of: Metrics) -> dict[tuple[str, ...], float]:
    text = trio.run(of.text).decode()
    return {
        (sample.name, *[value for label, value in sorted(sample.labels.items()) if label != "cluster"]): sample.value
        for family in parser(text)
        for sample in family.samples
    }


def test_runs_that_were_given_up_are_counted_until_a_person_has_seen_them(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = tuple([Trouble(f"etl#{n}", "etl", "lost") for n in range(3)])
    assert values(metrics(Found(dead=letters), monkeypatch))["coordd_dead_letters",] == 3
    assert values(metrics(Found(), monkeypatch))["coordd_dead_letters",] == 0


def test_no_success_is_expected_of_a_job_that_is_held_or_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    of = metrics(Found(), monkeypatch)
    lives = {"begins": (WALL + 1.0, WALL + 9.0), "began": (WALL, WALL), "over": (0.0, WALL - 1.0)}
    schedules = {name: Schedule("every", every_s=60.0, start=start, end=end) for name, (start, end) in lives.items()}
    jobs = [job(name, expect_within_s=100.0, schedule=schedule) for name, schedule in schedules.items()]
    jobs += [job("held", expect_within_s=100.0, enabled=False), job("none")]
    node: Any = of._driver.node
    node.jobs = {one.name: one for one in jobs}
    told = {key[1] for key in values(of) if key[0] == "coordd_expect_within_seconds"}
    assert told == {"began"}


def test_a_double_launch_is_counted_until_a_person_has_cleared_its_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `status` told of it: no metric and no alert."""
    of = metrics(Found(), monkeypatch)
    assert values(of)["coordd_alarms",] == 0
    of = metrics(Found(), monkeypatch)
    of._driver.node.alarms.standing["started-twice etl#1/0"] = {}
    assert values(of)["coordd_alarms",] == 1


def test_without_gossip_there_is_no_bus_and_all_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values(metrics(Found(), monkeypatch))
    assert ("coordd_bus_up",) not in found
    assert found["coordd_ledger_up",] == 1


def test_the_first_failure_of_a_hook_is_an_increase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A series that begins with 1 has not increased, so no alert would see it."""
    of = metrics(Found(), monkeypatch)
    assert {state: values(of).get(("coordd_runs_total", OTHER, state)) for state in STATES} == dict.fromkeys(STATES, 0)
