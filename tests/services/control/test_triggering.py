"""Triggers by hand: those of a job are recorded, those of a hook are refused."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.small_cluster import job

from coordd.config.hooks.hook import Hook, jobs_of
from coordd.config.hooks.publisher import Publisher
from coordd.core.context import Settings
from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import Job
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now, Reply
from coordd.errors import RefusedError
from coordd.services.control.callers import ADMIN, OPERATOR, Caller
from coordd.services.control.lookups import Lookups
from coordd.services.control.methods import Methods
from coordd.services.control.rpc import RpcError

PAGE = Hook(on=("run.failure",), argv=("/bin/page", "{event}"), name="page")


class Desk(Methods):
    """The methods, and a node with one job and one hook."""

    def __init__(self) -> None:
        self.triggered: list[str] = []
        node = SimpleNamespace(
            jobs={"etl": job("etl"), **jobs_of([PAGE], 60.0)}, hostname="n1", concurrency={}, settings=Settings()
        )
        driver: Any = SimpleNamespace(
            node=node, trigger=self._trigger, now=lambda: Now(1.0, 1.0), journal_control=lambda *_, **__: None
        )
        self._driver = driver
        self._argv = lambda *_: ["x"]
        self._lookups = Lookups()

    async def _trigger(self, of: Registration) -> Reply:
        self.triggered.append(of.run)
        return Reply(1, {"id": of.run}, "")


def kind_of(desk: Desk, name: str, role: int, **params: Any) -> str:
    """The kind of the refusal, or ""."""
    try:
        trio.run(desk.run_trigger, {"job": name, "id": "1", **params}, Caller(1, frozenset(), role, 1, "ann"))
    except RefusedError as exc:
        return exc.kind
    return ""


@pytest.mark.parametrize("role", [OPERATOR, ADMIN])
@pytest.mark.parametrize("dry_run", [False, True])
def test_nobody_makes_up_an_event_for_a_hook(role: int, dry_run: bool) -> None:
    desk = Desk()
    event = {"event": '{"event": "--exec=/tmp/mine"}'}

    assert kind_of(desk, "hook~page", role, args=event, dry_run=dry_run) == "not_permitted"
    assert desk.triggered == []
    assert kind_of(desk, "etl", role) == ""
    assert desk.triggered == ["etl#1"]


def test_a_trigger_of_a_job_that_expands_records_each_member() -> None:
    desk = Desk()
    jobs: dict[str, Job] = desk._driver.node.jobs  # type: ignore[assignment]  # the desk's own
    jobs["etl"] = job("etl", expand=Expand("region", ("eu", "us")), params={"region": "", "day": "1"})

    assert kind_of(desk, "etl", ADMIN, args={"region": "eu"}) == "invalid_params"
    assert desk.triggered == []
    assert kind_of(desk, "etl", ADMIN, args={"day": "2"}) == ""
    assert desk.triggered == ["etl#1~0", "etl#1~1"]


def test_an_empty_id_is_refused_and_a_missing_one_is_random() -> None:
    """Somebody who gives an id expects one run of it: two random ones would be two."""
    desk, ann = Desk(), Caller(1, frozenset(), ADMIN, 1, "ann")

    queue = Publisher(name="q", to=("events",)).job(60.0)
    desk._driver.node.jobs[queue.name] = queue  # type: ignore[index]  # the desk's own
    for method, params in (
        (desk.run_trigger, {"job": "etl"}),
        (desk.publish, {"to": "q", "body": "x"}),
        (desk.alarm_clear, {"note": "looked at it"}),
    ):
        with pytest.raises(RpcError) as caught:
            trio.run(method, {**params, "id": ""}, ann)
        assert caught.value.kind == "invalid_params"
        assert caught.value.message.startswith('id: expected an id, found ""; leave it out')
    assert desk.triggered == []

    for _ in range(2):
        trio.run(desk.run_trigger, {"job": "etl"}, ann)
    assert len(set(desk.triggered)) == 2


def test_a_dry_run_does_not_hold_up_the_loop() -> None:
    """The command line is made of files, which may lie on a disk that hangs."""
    desk = Desk()
    made_in: list[int] = []
    desk._argv = lambda *_: made_in.append(threading.get_ident()) or ["x"]  # type: ignore[func-returns-value]  # in one line
    assert kind_of(desk, "etl", OPERATOR, dry_run=True) == ""
    assert desk.triggered == []
    assert len(made_in) == 1
    assert made_in != [threading.get_ident()]
