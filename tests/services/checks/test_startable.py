"""A file system that hangs costs the jobs that need it: not the others, not the watchdog, not the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.small_cluster import job
from system.lab.processes import until

from coordd.core.jobs.job import Job
from coordd.services import health
from coordd.services.checks import startable as module
from coordd.services.checks.startable import NOT_YET, Question, Startable
from coordd.services.health import Health

ANSWER_S = 0.2
LONG_S = 60.0


class Disks:
    """What the jobs need: a job named "nfs-1" lies on the disk "nfs", which may hang."""

    def __init__(self) -> None:
        self.hung: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        self.bad: set[str] = set()

    def hang(self, disk: str) -> None:
        self.hung[disk] = threading.Event()

    def answer(self, disk: str) -> None:
        self.hung.pop(disk).set()

    def ask(self, of: Job) -> Iterator[Question]:
        disk = of.name.partition("-")[0]

        def look() -> str:
            self.asked.append(of.name)
            if disk in self.hung:
                self.hung[disk].wait(LONG_S)
            return "it is not there" if of.name in self.bad else ""

        yield Question(disk, f"application /{disk}/{of.name}", look)


@pytest.fixture
def disks() -> Iterator[Disks]:
    made = Disks()
    yield made
    for disk in list(made.hung):
        made.answer(disk)


def started(disks: Disks, *names: str, digest: str = "d1") -> tuple[Startable, dict[str, Job]]:
    return Startable(lambda: disks.ask, answer_s=ANSWER_S), {name: job(name, digest=digest) for name in names}


def silent(name: str) -> str:
    return f"its file system did not answer within {ANSWER_S} s: application /{name.partition('-')[0]}/{name}"


def test_a_hung_disk_costs_the_jobs_on_it_alone(disks: Disks) -> None:
    disks.hang("nfs")
    disks.bad = {"local-1"}
    startable, jobs = started(disks, "nfs-1", "local-1", "nfs-2", "nfs-3", "local-2")
    assert startable.take(jobs, LONG_S) == {
        **{name: silent(name) for name in ("nfs-1", "nfs-2", "nfs-3")},
        "local-1": "it is not there",
    }
    assert disks.asked == ["nfs-1", "local-1", "local-2"], "what hangs is asked once, and has one thread"


def test_it_is_not_asked_again_before_it_answers_and_then_the_problem_goes_away(disks: Disks) -> None:
    disks.hang("nfs")
    startable, jobs = started(disks, "nfs-1", "local-1")
    startable.take(jobs, LONG_S)
    assert startable.again(LONG_S) == {"nfs-1": silent("nfs-1")}
    assert disks.asked.count("nfs-1") == 1
    disks.answer("nfs")
    until(lambda: not startable.again(LONG_S))
    assert disks.asked.count("nfs-1") == 2


def test_a_start_waits_for_no_disk_and_judges_later(disks: Disks) -> None:
    disks.hang("nfs")
    startable, jobs = started(disks, "nfs-1", "local-1")
    assert startable.take(jobs, 0.0) == {"nfs-1": NOT_YET, "local-1": NOT_YET}
    assert startable.unfinished
    startable.look(LONG_S)
    assert startable.found() == {"nfs-1": silent("nfs-1")}
    assert not startable.unfinished


def test_a_reload_keeps_the_verdicts_of_the_same_definitions(disks: Disks) -> None:
    disks.bad = {"local-1"}
    startable, jobs = started(disks, "nfs-1", "local-1")
    startable.take(jobs, LONG_S)
    disks.hang("nfs")
    changed = {"nfs-1": job("nfs-1", digest="d1"), "nfs-2": job("nfs-2"), "local-1": job("local-1", digest="d2")}
    assert startable.take(changed, 0.0) == {"nfs-2": NOT_YET, "local-1": NOT_YET}
    assert startable.take({"local-1": jobs["local-1"]}, LONG_S) == {"local-1": "it is not there"}
    assert startable.take(jobs, LONG_S)["local-1"] == "it is not there"


def test_reloads_while_a_disk_hangs_pile_up_no_threads(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BESIDE_S", 0.0)
    disks.hang("nfs")
    startable, jobs = started(disks, "nfs-1", "local-1")
    startable.take(jobs, 0.0)
    until(lambda: disks.asked == ["nfs-1"])
    for _ in range(3):
        found = startable.take(jobs, LONG_S)
        assert list(found) == ["nfs-1"]
    assert disks.asked.count("nfs-1") == 1


def test_many_hung_disks_have_a_limited_number_of_threads(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_MAX", 2)
    names = [f"nfs{number}-1" for number in range(4)]
    for name in names:
        disks.hang(name.partition("-")[0])
    startable, jobs = started(disks, *names)
    wanted = {name: silent(name) for name in names[:2]} | dict.fromkeys(names[2:], NOT_YET)
    assert startable.take(jobs, LONG_S) == wanted
    assert startable.again(LONG_S) == wanted
    assert disks.asked == names[:2]


def test_a_question_that_fails_is_the_problem_of_its_job() -> None:
    def ask(of: Job) -> Iterator[Question]:
        yield Question("x", "x", lambda: {"good": ""}[of.name])

    startable = Startable(lambda: ask)
    found = startable.take({"odd": job("odd"), "good": job("good")}, LONG_S)
    assert found == {"odd": "whether it can be started here cannot be judged: KeyError: 'odd'"}


# ---- the watchdog


class World:
    """A daemon's health without the daemon."""

    def __init__(self, startable: Startable, clean: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.problems: dict[str, str] = {}
        node = SimpleNamespace(cannot_launch=self._take, runtime_failure="", runtime_failed=lambda _: None)
        driver: Any = SimpleNamespace(node=node, probe_journal=lambda: None, look_at_bus=lambda: None)
        notifier: Any = SimpleNamespace(watchdog_s=0.03, notify=lambda *lines: self.said.extend(lines))
        nothing: Any = SimpleNamespace(look=lambda: None)
        self.health = Health(
            driver, nothing, nothing, notifier, control_path="", startable=startable, check_room=lambda: "", clean=clean
        )
        parts: Any = self.health
        parts._rooms = SimpleNamespace(look=trio.lowlevel.checkpoint)
        parts._job_breakers = parts.readiness = nothing
        parts._breaker_changes = SimpleNamespace(look=lambda _jobs: None)
        parts._priorities = SimpleNamespace(run=trio.sleep_forever)
        monkeypatch.setattr(Health, "say", lambda _: None)
        monkeypatch.setattr(Health, "_proof", self._proof)
        monkeypatch.setattr(health, "LOOK_S", 0.01)
        monkeypatch.setattr(health, "STEP_S", 0.01)

    def _take(self, problems: dict[str, str]) -> None:
        self.problems = problems

    @staticmethod
    async def _proof(_: Health) -> str:
        return ""

    async def beats(self, number: int) -> None:
        """Until the watchdog was told that many times more."""
        wanted = len(self.said) + number
        with trio.fail_after(LONG_S):
            while len(self.said) < wanted:
                await trio.sleep(0.005)


def test_the_watchdog_is_told_while_a_disk_hangs(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    disks.hang("nfs")
    startable, jobs = started(disks, "nfs-1", "local-1")
    startable.take(jobs, 0.0)
    world = World(startable, lambda: None, monkeypatch)
    monkeypatch.setattr(health, "LAUNCH_S", 0.01)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.health.run)
            await world.beats(3)
            with trio.fail_after(LONG_S):
                while world.problems != {"nfs-1": silent("nfs-1")}:
                    await trio.sleep(0.01)
            await world.beats(3)
            disks.answer("nfs")
            with trio.fail_after(LONG_S):
                while world.problems:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert set(world.said) == {"WATCHDOG=1"}


def test_the_watchdog_is_told_while_old_files_are_removed_and_a_stop_does_not_wait(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()
    times = []

    def clean() -> None:
        times.append(time.monotonic())
        begun.set()
        end.wait(LONG_S)

    startable, _ = started(disks)
    world = World(startable, clean, monkeypatch)
    monkeypatch.setattr(health, "CLEAN_S", 0.01)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.health.run)
            await world.beats(10)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert begun.is_set()
    assert not end.is_set()
    assert len(times) == 1, "one at a time"
    end.set()


def test_a_machine_without_a_free_thread_is_asked_again(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload looks too, and must not end the daemon: what was known before holds on."""
    startable, jobs = started(disks, "local-1", "local-2")
    disks.bad = {"local-1"}
    startable.take(jobs, LONG_S)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert startable.take({**jobs, "local-3": job("local-3", digest="d1")}, LONG_S) == {
            "local-1": "it is not there",
            "local-3": NOT_YET,
        }
        assert not startable.unfinished
    startable.look(LONG_S)
    assert startable.found() == {"local-1": "it is not there"}
