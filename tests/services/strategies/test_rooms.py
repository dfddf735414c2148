"""Strategies in the daemon: what they are told, and what becomes of one that fails, lies or hangs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from plugins.written import hosting, written
from structlog.testing import capture_logs
from support.small_cluster import job

from coordd.core.jobs.job import Concurrency
from coordd.plugins import calling
from coordd.services.strategies import hosted, rooms as module
from coordd.services.strategies.hosted import Hosted
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
            while rooms._hosted.starting:
                await rooms.look()
        await rooms._hosted.keep(())

    with capture_logs() as logs:
        trio.run(look)
    return [entry for entry in logs if entry["event"] == "strategy.absurd"]


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Install a strategy under the name "mine": the body of a function of ``room``."""

    def bring(body: str) -> None:
        folder = tmp_path_factory.mktemp("packages") / "site"
        text = f"import os, sys, time\nasked = []\ndef mine(room):\n    asked.append(room)\n    {body}\n"
        monkeypatch.setattr(calling, "HOST", hosting(written(folder, "coordd.strategies", text, "mine")))

    return bring


HUNG = "no answer within 1 s; it was ended, and is asked again later"


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


def test_a_budget_and_jobs_are_told_what_their_strategies_say(bring: Any, tmp_path: Path) -> None:
    bring(f"open({str(tmp_path / 'told')!r}, 'a').write(repr(room) + chr(10)); return 7")
    machine = Machine(by("load"), by("mine", "ml"), by="mine")
    machine.pursuits.short = True
    assert looked(machine, 2) == []
    assert (machine.budget, machine.concurrency) == (7, {"etl": 6, "ml": 7})
    told = (tmp_path / "told").read_text().splitlines()
    first, *_, second = [line for line in told if "most=10," in line]
    assert first.startswith("Room(least=2, most=10, size=2, busy=1, wanted=True, load=0.95, memory=0.5, at=")
    assert second.startswith("Room(least=2, most=10, size=7, busy=1, wanted=True, ")
    assert not machine.pursuits.short


@pytest.mark.parametrize(
    ("said", "expected"), [("10**6", 10), ("-5", 2), ("True", 2), ("'many'", 2), ("None", 2), ("float('nan')", 2)]
)
def test_an_absurd_answer_is_bounded_and_named_once(bring: Any, said: str, expected: int) -> None:
    bring(f"return {said}")
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert machine.budget == expected
    assert "expected a whole number from 2 to 10" in entry["problem"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return 5 if len(asked) == 1 else {}[3]", "failed: KeyError: 3"),
        ("return 5 if len(asked) == 1 else os._exit(0)", "failed: it ended"),
        ("return 5 if len(asked) == 1 else sys.exit(0)", "failed: SystemExit: 0"),
        ("return 5 if len(asked) == 1 else bytearray(2**31)", "failed: MemoryError"),
        ("return 5 if len(asked) == 1 else time.sleep(60)", HUNG),
        ("return 5 if len(asked) == 1 else os.write(3, b'x' * 20000)", "failed: it said too much"),
        ("return 5 if len(asked) == 1 else os.write(3, b'[]' + bytes((10,)))", "failed: it said what nobody can read"),
    ],
)  # fmt: skip
def test_a_strategy_that_fails_is_named_and_what_held_before_holds(
    bring: Any, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    monkeypatch.setattr(hosted, "ANSWER_BYTES_MAX", 10_000)
    bring(body)
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert machine.budget == 5
    assert (entry["strategy"], entry["of"], entry["problem"]) == ("mine", "budget", why)


def test_one_that_hung_is_asked_again_after_a_pause(
    bring: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hosted, "PAUSE_MIN_S", 0.0)
    file = tmp_path / "mended"
    bring(f"return 5 if os.path.exists({str(file)!r}) else open({str(file)!r}, 'w').close() or time.sleep(60)")
    machine = Machine(by="mine")
    assert len(looked(machine, 2)) == 1
    assert machine.budget == 5


def test_a_start_that_takes_long_is_waited_for(bring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "ASKED_S", 0.001)

    async def main() -> None:
        asks = Hosted("room")
        bring("return 5")
        assert await asks.ask("mine", [(0, 9, 1, 0, False, 0.1, 0.9, 1.0)]) is None
        assert asks.starting
        monkeypatch.setattr(hosted, "ASKED_S", 60.0)
        assert await asks.ask("mine", [(0, 9, 1, 0, False, 0.1, 0.9, 1.0)]) == [5]
        await asks.keep(())
        assert not asks._processes

    trio.run(main)


def test_a_strategy_that_no_package_brings_any_more_is_named() -> None:
    machine = Machine(by("gone"))
    [entry] = looked(machine)
    assert machine.concurrency == {"etl": 1}
    assert "no installed package brings gone" in entry["problem"]


def test_the_doctor_names_each_plug_in_and_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plug_ins-1.5.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-ins\nVersion: 1.5\n")
    lines = ("good = math:floor", "gone = no_such_module:f", "number = math:pi")
    (package / "entry_points.txt").write_text("\n".join(["[coordd.strategies]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(calling, "HOST", hosting(tmp_path))
    said, no = "a strategy of plug-ins 1.5", "cannot be loaded:"
    assert brought("coordd.strategies", "a strategy") == [
        ("gone", said, f"no_such_module:f {no} ModuleNotFoundError: No module named 'no_such_module'"),
        ("good", said, ""),
        ("number", said, f"math:pi {no} TypeError: math:pi is not callable"),
    ]
    monkeypatch.setattr(module, "LOADED_S", 0.001)
    assert brought("coordd.strategies", "a strategy")[1][2] == "math:floor did not load within 0.001 s"
