"""Strategies in the daemon: what they are told, and what becomes of one that fails, lies or hangs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from support.small_cluster import job

from coordd.core.jobs.job import Concurrency
from coordd.core.node.room import Room
from coordd.services.control.doctor import plugin_checks
from coordd.services.strategies import brought as module
from coordd.services.strategies.brought import Brought, StrategyError
from coordd.services.strategies.rooms import Rooms, measured
from services.strategies.conftest import Bring

LIMIT_S = 60.0

ROOM = Room(1, 8, 1, 0, False, 0.5, 0.5, 1000.0)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


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

    async def look() -> None:
        async with trio.open_nursery() as nursery:
            brought = Brought()
            await nursery.start(brought.run)
            driver: Any = machine  # it has all that Rooms uses
            rooms = Rooms(driver, brought, measure=lambda: (0.95, 0.5))
            for _ in range(times):
                await rooms.look()
            nursery.cancel_scope.cancel()

    with capture_logs() as logs:
        trio.run(look)
    return [entry for entry in logs if entry["event"] == "strategy.absurd"]


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


def test_a_budget_and_jobs_are_told_what_their_strategies_say(bring: Bring, tmp_path: Path) -> None:
    bring(f"""
def mine(room):
    with open({str(tmp_path / "told")!r}, "a") as file:
        print(json.dumps(room._asdict()), file=file)
    return 7
""")
    machine = Machine(by("load"), by("mine", "ml"), by="mine")
    machine.pursuits.short = True
    assert looked(machine, 2) == []
    assert (machine.budget, machine.concurrency) == (7, {"etl": 6, "ml": 7})
    told = [Room(**json.loads(line)) for line in (tmp_path / "told").read_text().splitlines()]
    first, second = (room for room in told if room.most == 10)
    assert (first.least, first.size, first.busy, first.wanted, first.load, first.memory) == (2, 2, 1, True, 0.95, 0.5)
    assert (second.size, second.wanted) == (7, True)
    assert not machine.pursuits.short


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("1000000", 10),
        ("-5", 2),
        ("True", 2),
        ("'many'", 2),
        ("None", 2),
        ("math.nan", 2),
        ("object", 2),
        ("10**20", 10),
    ],
)
def test_an_absurd_answer_is_bounded_and_named_once(bring: Bring, said: str, expected: int) -> None:
    bring(f"def mine(room): return {said}")
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert machine.budget == expected
    assert "expected a whole number from 2 to 10" in entry["problem"]


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("raise ValueError('no idea')", "failed: ValueError: no idea"),
        ("sys.exit(3)", "it called exit(3)"),
        ("os._exit(3)", "its process has ended: it ended with exit code 3; it is started again in 60 s"),
        ("os.kill(0, 9)", "its process has ended: signal 9 ended it"),
        ("leaks(room)", "failed: MemoryError"),
        ("loops(room)", "no answer within 4 s; it is started again in 60 s"),
        ("re.match('(a*)*b', 'a' * 64)", "no answer within 4 s"),
        ("os.closerange(3, 99)", "its process has ended: it ended with exit code 1"),
        ("return 10**5000", "failed: ValueError: Exceeds the limit"),
    ],
)
def test_a_strategy_that_fails_is_named_once_and_what_held_before_holds(
    bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, problem: str
) -> None:
    """Its second call fails, whatever it does."""
    if "no answer" in problem:
        monkeypatch.setattr(module, "ASKED_S", 4.0)
    once = tmp_path / "once"
    bring(f"""
def mine(room):
    if not os.path.exists({str(once)!r}):
        open({str(once)!r}, "w").close()
        return 5
    {does}
""")
    machine = Machine(by="mine")
    [entry] = looked(machine, 4)
    assert machine.budget == 5
    assert (entry["strategy"], entry["of"]) == ("mine", "budget")
    assert problem in entry["problem"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise ValueError('no idea')", "it failed: ValueError: no idea"),
        ("sys.exit(3)", "it called exit(3)"),
        ("os._exit(3)", "it ended with exit code 3"),
        ("mine = 3", "bad_plug_ins:mine is not callable"),
        ("", "AttributeError"),
    ],
)
def test_one_that_cannot_be_loaded_is_named(bring: Bring, text: str, problem: str) -> None:
    bring(text)
    machine = Machine(by="mine")
    [entry] = looked(machine, 3)
    assert machine.budget == 2
    assert problem in entry["problem"]


def test_one_that_is_loaded_for_long_holds_nothing_up(bring: Bring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_S", 0.05)
    monkeypatch.setattr(module, "START_S", 0.3)
    bring("time.sleep(60)")
    machine = Machine(by="mine")
    [entry] = looked(machine, 10)
    assert machine.budget == 2
    assert "it was not loaded within 0.3 s" in entry["problem"]


def test_all_are_asked_at_once(bring: Bring, tmp_path: Path) -> None:
    """Each answers when the other has been asked: several that hang take no longer than one."""
    bring(f"""
def meets(own, other):
    open(f"{tmp_path}/{{own}}", "w").close()
    while not os.path.exists(f"{tmp_path}/{{other}}"):
        time.sleep(0.01)
    return 3

def mine(room): return meets("a", "b")
def yours(room): return meets("b", "a")
""")
    machine = Machine(by("yours"), by="mine")
    assert looked(machine) == []
    assert (machine.budget, machine.concurrency) == (3, {"etl": 3})


def test_a_process_is_started_again_after_a_failure_and_ends_when_nobody_asks(
    bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.1)
    monkeypatch.setattr(module, "IDLE_S", 1.0)
    fail = tmp_path / "fail"
    fail.touch()
    bring(f"""
def mine(room):
    if os.path.exists({str(fail)!r}):
        os._exit(1)
    return os.getpid()
""")

    async def ask() -> None:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                brought = Brought()
                await nursery.start(brought.run)

                async def said() -> int:
                    while not (answers := await brought.ask("mine", "room", [ROOM])):
                        await trio.sleep(0.05)
                    return int(answers[0].value)

                with pytest.raises(StrategyError, match="exit code 1"):
                    await said()
                assert brought.problems() == {"mine": "its process has ended: it ended with exit code 1"}
                fail.unlink()
                while brought.problems():
                    await trio.sleep(0.05)
                pid = await said()
                assert await said() == pid
                while is_alive(pid):
                    await trio.sleep(0.05)
                assert await said() != pid
                nursery.cancel_scope.cancel()

    trio.run(ask)


def test_it_ends_with_the_daemon(bring: Bring) -> None:
    bring("def mine(room): return os.getpid()")

    async def ask() -> int:
        async with trio.open_nursery() as nursery:
            brought = Brought()
            await nursery.start(brought.run)
            while not (answers := await brought.ask("mine", "room", [ROOM])):
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        return int(answers[0].value)

    assert not is_alive(trio.run(ask))


def test_a_strategy_that_no_package_brings_any_more_is_named() -> None:
    machine = Machine(by("gone"))
    [entry] = looked(machine)
    assert machine.concurrency == {"etl": 1}
    assert "no installed package brings gone" in entry["problem"]


def test_the_doctor_names_each_plug_in_and_loads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "plug_ins-1.5.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-ins\nVersion: 1.5\n")
    strategies, backends = "bad = ends_all:f\ngone = no_such_module:f\n", "ends = ends_all:f\n"
    (package / "entry_points.txt").write_text(f"[coordd.strategies]\n{strategies}[coordd.config_backends]\n{backends}")
    (tmp_path / "ends_all.py").write_text("import os; os._exit(1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [(one["check"], one["state"], one["text"]) for one in plugin_checks({"bad": "it ended"})] == [
        ("plug-in ends", "ok", "a configuration backend of plug-ins 1.5"),
        ("plug-in bad", "warn", "it ended"),
        ("plug-in gone", "warn", "plug-ins 1.5 names no_such_module:f, and there is no module no_such_module"),
    ]
