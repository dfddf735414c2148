"""Strategies in the daemon: what they are told, and what becomes of one that fails, lies or hangs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from support.small_cluster import job

from coordd.core.jobs.job import Concurrency
from coordd.core.node.room import Room
from coordd.services.strategies import rooms as module
from coordd.services.strategies.rooms import Rooms, brought, measured


class Machine:
    """A node without a daemon: what it is told of its room."""

    def __init__(self, *jobs: Any, by: str = "") -> None:
        self.budget: int | None = -1
        self.concurrency: dict[str, int] = {}
        self.pursuits = SimpleNamespace(short=False, running={"a#1": ("", "", False), "b#1": ("", "", True)})
        self.settings = SimpleNamespace(budget_by=by, budget_min=2, budget_client=10)
        self.jobs = {job.name: job for job in jobs}
        self.node = self

    def loaded(self, average: tuple[float, float, float], budget: int | None, concurrency: dict[str, int]) -> None:
        assert len(average) == 3
        self.budget, self.concurrency = budget, concurrency


def looked(machine: Machine, times: int = 1) -> list[Any]:
    """The log of some looks at it."""
    rooms = Rooms(machine, measure=lambda: (0.95, 0.5))  # type: ignore[arg-type]  # it has all that Rooms uses

    async def look() -> None:
        for _ in range(times):
            await rooms.look()

    with capture_logs() as logs:
        trio.run(look)
    return [entry for entry in logs if entry["event"] == "strategy.absurd"]


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a strategy under the name "mine"."""

    def bring(strategy: Any) -> None:
        monkeypatch.setattr(module, "installed", lambda name: SimpleNamespace(load=lambda: strategy))

    return bring


def by(strategy: str, name: str = "etl") -> Any:
    return job(name=name, concurrency=Concurrency(max=11, min=1, by=strategy))


def test_the_machine_is_measured() -> None:
    load, memory = measured()
    assert load >= 0
    assert 0 < memory < 1


def test_without_a_strategy_nothing_is_said() -> None:
    machine = Machine(job(), job(name="two", concurrency=Concurrency(max=3)))
    assert looked(machine) == []
    assert (machine.budget, machine.concurrency) == (None, {})


def test_a_budget_and_jobs_are_told_what_their_strategies_say(bring: Any) -> None:
    told: list[Room] = []

    def seven(room: Room) -> int:
        told.append(room)
        return 7

    bring(seven)
    machine = Machine(by("load"), by("mine", "ml"), by="mine")
    machine.pursuits.short = True
    assert looked(machine, 2) == []
    assert (machine.budget, machine.concurrency) == (7, {"etl": 6, "ml": 7})
    first, second = (room for room in told if room.most == 10)
    assert (first.least, first.size, first.busy, first.wanted, first.load, first.memory) == (2, 2, 1, True, 0.95, 0.5)
    assert (second.size, second.wanted) == (7, True)
    assert not machine.pursuits.short


def test_an_absurd_answer_is_bounded_and_named_once(bring: Any) -> None:
    for said, expected in ((1_000_000, 10), (-5, 2), (True, 2), ("many", 2), (None, 2), (float("nan"), 2)):
        bring(lambda room, said=said: said)
        machine = Machine(by="mine")
        [entry] = looked(machine, 3)
        assert machine.budget == expected
        assert "expected a whole number from 2 to 10" in entry["problem"]


def test_a_strategy_that_fails_is_named_and_what_held_before_holds(bring: Any) -> None:
    answers = iter([5])
    bring(lambda room: next(answers))
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert machine.budget == 5
    assert (entry["strategy"], entry["of"]) == ("mine", "budget")


def test_a_strategy_that_no_package_brings_any_more_is_named() -> None:
    machine = Machine(by("gone"))
    [entry] = looked(machine)
    assert machine.concurrency == {"etl": 1}
    assert "no installed package brings it" in entry["problem"]


def test_the_doctor_names_each_plug_in_and_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plug_ins-1.5.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-ins\nVersion: 1.5\n")
    lines = ("good = math:floor", "gone = no_such_module:f", "number = math:pi")
    (package / "entry_points.txt").write_text("\n".join(["[coordd.strategies]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    said = "a strategy of plug-ins 1.5"
    assert brought() == [
        ("gone", said, "no_such_module:f cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("good", said, ""),
        ("number", said, "math:pi is not callable"),
    ]


def test_a_strategy_that_hangs_holds_nothing_up_and_is_not_asked_again(
    bring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASKED_S", 0.05)
    asked: list[int] = []

    def hang(_room: Room) -> int:
        asked.append(1)
        time.sleep(0.5)
        return 9

    bring(hang)
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert (machine.budget, len(asked)) == (2, 1)
    assert "not asked again" in entry["problem"]


def test_one_that_hangs_while_it_is_imported_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load() -> Any:
        asked.append("loaded")
        time.sleep(0.5)

    monkeypatch.setattr(module, "ASKED_S", 0.05)
    monkeypatch.setattr(module, "installed", lambda name: SimpleNamespace(load=load))
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert (machine.budget, len(asked)) == (2, 1)
    assert "not asked again" in entry["problem"]
