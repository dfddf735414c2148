"""Records of attempts in the state directory: written before the runner starts, read by the next daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.small_cluster import Lone, job

from coordd.adapters import place, process, recording
from coordd.adapters.recording import RecordingLauncher
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import OK, STALE, UNAVAILABLE
from coordd.core.runs.knowledge import EXECUTORS, PLACE
from coordd.core.wire.events import TaskSucceeded
from coordd.services.runners import Runners

HERE = {"machine": "m1", "host": "edge-1", "boot": "b1", "pid_ns": "4026531836", "container": ""}
RESTARTED = {**HERE, "boot": "b2"}
SPEC: dict[str, Any] = {
    "run": "sales#1", "job": "sales", "attempt": 0, "token": 7, "nonce": "n", "fire_at": 1.0, "deadline": 5.0,
    "lease_s": 60.0, "args": "{}", "digest": "d1", "policy": "", "due": 0.0, "elsewhere": "",
    "argv": ["/bin/true"], "env": {"SECRET": "xyzzy"},
}  # fmt: skip


class Driver:
    """The driver of a lone node."""

    def __init__(self) -> None:
        self.lone = Lone(job()).ready()
        self.node = self.lone.node

    def now(self) -> Any:
        return self.lone.now

    def feed(self, call: Any, *args: Any) -> None:
        self.lone.do(call, *args)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[RecordingLauncher]:
    """A launcher that starts nothing, on a machine outside of containers."""
    warned: list[str] = []
    made = RecordingLauncher(str(tmp_path / "run"), str(tmp_path), lambda word, **_: warned.append(word))
    made.warned = warned  # type: ignore[attr-defined]  # for the tests alone
    with at(HERE), mock.patch.object(made, "_spawn"):
        yield made


def at(where: dict[str, str]) -> Any:
    return mock.patch.multiple(recording, here=lambda: where)


def back(launcher: RecordingLauncher, *journal: Any) -> tuple[Runners, Lone]:
    """The next daemon of this node begins."""
    driver = Driver()
    runners = Runners(launcher, lambda _launch: {}, "")
    runners.driver = driver  # type: ignore[assignment]  # a stand-in with what is asked of it
    for event in journal:
        runners.saw(event)
    runners.adopt()
    driver.lone.take()
    return runners, driver.lone


def reboot(launcher: RecordingLauncher) -> None:
    """RUNTIME_DIR is in memory."""
    for directory in launcher.scan():
        os.unlink(f"{directory}/spec.json")
    launcher.clear_away()
    assert launcher.scan() == []


def test_the_record_is_on_the_disk_before_the_runner_starts_and_has_no_secrets(launcher: RecordingLauncher) -> None:
    def spawned(directory: str, _spec: Any, _listener: Any) -> None:
        text = Path(launcher.records_dir, f"{os.path.basename(directory)}.json").read_text()
        record = json.loads(text)
        assert set(record["place"]) == set(PLACE)
        assert {key: record[key] for key in ("run", "token", "nonce")} == {"run": "sales#1", "token": 7, "nonce": "n"}
        assert "xyzzy" not in text
        found.append(record)

    found: list[Any] = []
    with mock.patch.object(launcher, "_spawn", spawned):
        directory = launcher.start(SPEC)
    assert len(found) == 1
    launcher.forget(directory)
    assert launcher.records() == []


def test_an_attempt_that_was_not_started_leaves_no_record(launcher: RecordingLauncher) -> None:
    with (
        mock.patch.object(launcher, "_spawn", side_effect=OSError(12, "no memory")),
        pytest.raises(Exception, match="memory"),
    ):
        launcher.start(SPEC)
    assert launcher.records() == []


def test_after_a_restart_of_the_machine_the_ledger_is_told(launcher: RecordingLauncher) -> None:
    launcher.start(SPEC)
    reboot(launcher)
    with at(RESTARTED):
        runners, lone = back(launcher)
    [said] = lone.waiting(Report)
    assert (said.state, said.reason) == ("lost", "its machine has restarted")
    assert (said.grant.run, said.grant.attempt, said.grant.token, said.grant.nonce) == ("sales#1", 0, 7, "n")
    runners._repeat()
    lone.answer("report", Answer(UNAVAILABLE))
    runners._repeat()
    assert len(launcher.records()) == 1, "a daemon that dies now tells it again"
    lone.answer("report", Answer(OK))
    runners._repeat()
    assert launcher.records() == []
    assert [event.run for event in lone.heard_said("task-retried")] == ["sales#1"]  # type: ignore[attr-defined]  # a Task


def test_an_attempt_that_the_ledger_has_given_up_leaves_nothing(launcher: RecordingLauncher) -> None:
    launcher.start(SPEC)
    reboot(launcher)
    with at(RESTARTED):
        runners, lone = back(launcher)
    lone.answer("report", Answer(STALE))
    runners._repeat()
    assert (launcher.records(), lone.said) == ([], [])


def test_the_end_in_the_journal_comes_first(launcher: RecordingLauncher) -> None:
    launcher.start(SPEC)
    reboot(launcher)
    ended = TaskSucceeded(uuid="u", run="sales#1", name="sales", attempt=0, token=7, nonce="n", exit_code=0)
    other = TaskSucceeded(uuid="u", run="sales#1", name="sales", attempt=1, token=9, nonce="m", exit_code=0)
    with at(RESTARTED):
        _, lone = back(launcher, ended, other)
    [said] = lone.waiting(Report)
    assert (said.state, said.exit_code, said.grant.token) == ("success", 0, 7)


@pytest.mark.parametrize(
    ("now", "elsewhere"),
    [
        (HERE, ""),  # somebody has removed RUNTIME_DIR: the runner may live
        ({**RESTARTED, "machine": "m2"}, ""),
        ({**RESTARTED, "host": "edge-2"}, ""),
        ({**RESTARTED, "container": "PID namespace"}, ""),
        ({**HERE, "pid_ns": "4026532001"}, ""),
        (RESTARTED, EXECUTORS),
    ],
)
def test_who_cannot_tell_says_nothing(launcher: RecordingLauncher, now: dict[str, str], elsewhere: str) -> None:
    launcher.start({**SPEC, "elsewhere": elsewhere})
    reboot(launcher)
    with at(now):
        runners, lone = back(launcher)
    runners._repeat()
    assert (lone.waiting(Report), lone.said, launcher.records()) == ([], [], [])


def test_an_attempt_with_its_directory_is_adopted_and_not_spoken_of(launcher: RecordingLauncher) -> None:
    directory = launcher.start(SPEC)
    with at(RESTARTED):
        runners, lone = back(launcher)
    assert list(runners.runners) == [directory]
    assert (lone.waiting(Report), len(launcher.records())) == ([], 1)


@pytest.mark.parametrize(
    "text", ["", "7", "{}", "[" * 100_000, '{"place": 5}', '{"run": "sales#1", "place": {"boot": 3}}']
)
def test_a_damaged_record_prevents_nothing(launcher: RecordingLauncher, text: str) -> None:
    launcher.start(SPEC)
    reboot(launcher)
    [path] = Path(launcher.records_dir).iterdir()
    path.write_text(text)
    with at(RESTARTED):
        _, lone = back(launcher)
    assert (lone.waiting(Report), launcher.records()) == ([], [])


def test_a_disk_that_refuses_the_record_does_not_refuse_the_run(launcher: RecordingLauncher) -> None:
    Path(launcher.records_dir).write_text("in the way")
    directory = launcher.start(SPEC)
    assert launcher.scan() == [directory]
    assert launcher.warned == ["record.not_kept"]  # type: ignore[attr-defined]  # see the fixture


# ---- the place


def test_this_place_is_read_from_the_kernel() -> None:
    where = place.here()
    assert tuple(where) == PLACE
    assert where["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert where["pid_ns"] == str(os.stat("/proc/self/ns/pid").st_ino)


@pytest.mark.parametrize(
    ("pid_ns", "cgroup_ns", "file", "why"),
    [
        (str(0xEFFFFFFC), str(0xEFFFFFFB), False, ""),
        (str(0xEFFFFFFC), str(0xEFFFFFFB), True, "found"),
        ("4026532000", str(0xEFFFFFFB), False, "PID namespace"),
        (str(0xEFFFFFFC), "4026532001", False, "cgroup namespace"),
        ("", "", False, "PID namespace"),
    ],
)
def test_containers_are_known(
    pid_ns: str, cgroup_ns: str, file: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    if file:
        mark.touch()
    monkeypatch.setattr(place, "CONTAINER_FILES", (str(mark),))
    assert place._container(pid_ns, cgroup_ns) == (str(mark) if why == "found" else why)


@pytest.mark.parametrize(
    ("mounts", "shows"),
    [
        ("proc /proc proc rw,relatime 0 0", True),
        ("proc /proc proc rw,relatime 0 0\nproc /proc proc rw,nosuid,hidepid=invisible 0 0", False),
        ("proc /proc proc rw,hidepid=2,gid=5 0 0", False),
        ("tmpfs /run tmpfs rw 0 0", False),
        ("", False),
    ],
)
def test_hidden_processes_are_noticed(mounts: str, shows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_text", lambda _path: mounts)
    assert place.shows_every_process() is shows


def test_a_cgroup_is_empty_only_if_the_kernel_says_so(tmp_path: Path) -> None:
    parent = tmp_path / "unit"
    cgroup = parent / "attempt-1"
    cgroup.mkdir(parents=True)
    assert not place.cgroup_is_empty(str(cgroup)) or (cgroup / "cgroup.events").exists()
    (cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert not place.cgroup_is_empty(str(cgroup))
    (cgroup / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert place.cgroup_is_empty(str(cgroup))
    (cgroup / "cgroup.events").unlink()
    cgroup.rmdir()
    assert not place.cgroup_is_empty(str(cgroup)), "these are not cgroups"
    (parent / "cgroup.procs").touch()
    assert place.cgroup_is_empty(str(cgroup)), "only an empty one can be removed"


def test_the_watcher_loads_nothing_more_for_it() -> None:
    script = "import coordd.adapters.place, coordd.core.runs.knowledge, sys; print(*sorted(sys.modules))"
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {process.ROOT!r}); {script}"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert not {"json", "typing", "re", "collections"} & set(told.stdout.split())
