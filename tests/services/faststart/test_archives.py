"""When class archives are made: tried first, one at a time, bounded, and never in the way of a job."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from coordd.errors import UnavailableError
from coordd.services.faststart import archives as module
from coordd.services.faststart.archives import Archives

MAKE = "printf classes > {part}"


class Faked:
    """An archive whose training and trial are shell commands."""

    def __init__(self, directory: Path, training: str = MAKE, trial: str = "grep -q classes {path}") -> None:
        self.path, self.part = str(directory / "a.jsa"), str(directory / "a.part")
        self.spark, self.java = "/opt/spark", "/opt/java"
        self.commands = {"training": training, "trial": trial}
        self.calls: list[str] = []
        self.in_the_way = ""

    def _command(self, name: str, path: str) -> tuple[list[str], dict[str, str]]:
        self.calls.append(name)
        return ["sh", "-c", self.commands[name].format(part=self.part, path=path)], {"PATH": os.environ["PATH"]}

    def usable(self) -> str:
        return "" if os.path.exists(self.path) else "it is not there"

    def obstacle(self) -> str:
        return self.in_the_way

    def training(self, work: str, limit_s: float) -> tuple[list[str], dict[str, str]]:
        assert os.listdir(work) == []
        return self._command("training", "")

    def trial(self, path: str = "") -> tuple[list[str], dict[str, str]]:
        return self._command("trial", path or self.path)

    def made(self) -> bool:
        return os.path.exists(self.part)

    def text(self) -> str:
        return Path(self.part).read_text() if self.made() else ""

    def accept(self) -> None:
        os.rename(self.part, self.path)

    def discard(self) -> None:
        for path in (self.path, self.part):
            Path(path).unlink(missing_ok=True)


def look(archives: Archives, times: int = 1) -> list[tuple[str, str]]:
    for _ in range(times):
        trio.run(archives.look)
    return [(said["state"], said["text"]) for said in archives.checks()]


def test_it_is_made_tried_and_then_used(tmp_path: Path) -> None:
    one = Faked(tmp_path)
    archives = Archives(str(tmp_path), lambda: [one])
    assert look(archives, 3) == [("ok", "class archive for /opt/spark and /opt/java: in use")]
    assert one.calls == ["training", "trial"]
    assert os.listdir(tmp_path) == ["a.jsa"]


def test_one_of_an_earlier_daemon_is_tried_once(tmp_path: Path) -> None:
    one = Faked(tmp_path)
    Path(one.path).write_text("classes")
    assert look(Archives(str(tmp_path), lambda: [one]), 3)[0][0] == "ok"
    assert one.calls == ["trial"]


def test_one_that_java_refuses_is_replaced(tmp_path: Path) -> None:
    one = Faked(tmp_path)
    Path(one.path).write_text("stale")
    assert look(Archives(str(tmp_path), lambda: [one]))[0][0] == "ok"
    assert one.calls == ["trial", "training", "trial"]
    assert Path(one.path).read_text() == "classes"


@pytest.mark.parametrize(
    ("training", "trial", "why"),
    [
        ("echo no such class; exit 3", "true", "its training failed: exit code 3: no such class"),
        ("true", "true", "Java wrote none"),
        (MAKE, "echo mismatch; exit 1", "Java refuses the new one: exit code 1: mismatch"),
    ],
)
def test_what_cannot_be_made_is_told_and_tried_again_later(tmp_path: Path, training: str, trial: str, why: str) -> None:
    one = Faked(tmp_path, training, trial)
    archives = Archives(str(tmp_path), lambda: [one])
    [(state, text)] = look(archives, 3)
    assert state == "warn"
    assert why in text
    assert text.endswith("jobs with fast_start start without it")
    assert one.calls.count("training") == 1
    assert os.listdir(tmp_path) == []
    archives.known[one.path].again_at = 0.0
    one.commands = {"training": MAKE, "trial": "true"}
    assert look(archives)[0][0] == "ok"


def test_an_obstacle_is_told_and_nothing_is_started(tmp_path: Path) -> None:
    one = Faked(tmp_path)
    one.in_the_way = "only 3 MiB are free"
    [(state, text)] = look(Archives(str(tmp_path), lambda: [one]))
    assert state == "warn"
    assert "only 3 MiB are free" in text
    assert one.calls == []


def test_one_that_takes_too_long_ends_with_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRAIN_S", 0.3)
    monkeypatch.setattr(module, "DUMP_S", 0.2)
    one = Faked(tmp_path, "sleep 60 & echo $! > {part}; wait")
    began = time.monotonic()
    pids: list[int] = []

    async def watched() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(archives.look)
            while not one.text():
                await trio.sleep(0.01)
            pids.append(int(one.text()))

    archives = Archives(str(tmp_path), lambda: [one])
    trio.run(watched)
    assert time.monotonic() - began < 30
    assert "no end within 0.5 s" in look(archives)[0][1]
    assert os.listdir(tmp_path) == []
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pids[0]}") and "Z" not in Path(f"/proc/{pids[0]}/stat").read_text():
        assert time.monotonic() < deadline, "a process of the training lives on"
        time.sleep(0.01)


def test_a_daemon_that_stops_leaves_nothing(tmp_path: Path) -> None:
    one = Faked(tmp_path, "printf half > {part}; sleep 60")

    async def stopped() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Archives(str(tmp_path), lambda: [one], first_s=0.0).run)
            while not one.made():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    began = time.monotonic()
    trio.run(stopped)
    assert time.monotonic() - began < 30
    assert os.listdir(tmp_path) == []


def test_what_a_killed_daemon_left_is_removed_and_a_failing_look_does_not_end_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "work-old").mkdir()
    (tmp_path / "work-old/x").touch()
    looks: list[int] = []

    def wanted() -> list[Faked]:
        looks.append(1)
        raise UnavailableError("the directory cannot be made")

    async def seen() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Archives(str(tmp_path), wanted, first_s=0.0).run)
            while not looks:
                await trio.sleep(0.01)
            await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(seen)
    assert os.listdir(tmp_path) == []


def test_of_many_kinds_only_the_first_few_have_one(tmp_path: Path) -> None:
    made = []
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        made.append(Faked(tmp_path / str(number)))
    look(Archives(str(tmp_path), lambda: made))
    assert [bool(one.calls) for one in made] == [True] * module.ARCHIVES_MAX + [False] * 2
