"""Triggers of packages: a function in a process of its own says what is there, whatever else it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import trio
from plugins.written import hosting, written

from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.errors import UnavailableError
from coordd.services.programs import child as program
from coordd.services.triggering.programs import OUTPUT_BYTES_MAX, CommandSource, PluggedSource
from coordd.services.triggering.sources import Look

TRIGGERS = f"""
import os, sys, threading

def good(of):
    print("this is not an arrival")
    yield "a"
    yield "b", {{"customer": of.job, "vip": True, "list": [1], "place": of.node + of.url + of.path + of.query}}
    yield "a"
    yield "two\\nlines"

def nothing(of):
    return []

def raises(of):
    yield "a"
    raise ValueError("it is\\nFriday")

def returns(of):
    return 3

def wrong(of):
    return [3]

def ends(of):
    sys.exit(0)

def dies(of):
    os.abort()

def sleeps(of):
    threading.Event().wait()

def floods(of):
    for number in range({OUTPUT_BYTES_MAX // 1000}):
        yield str(number) + "x" * 1000

def spoils(of):
    for fd in range(3, 10):
        try:
            os.write(fd, b"{{\\n")
        except OSError:
            pass
    return []
"""
NAMES = [
    "good", "nothing", "raises", "returns", "wrong", "ends", "dies", "loops", "sleeps", "leaks", "floods", "spoils",
]  # fmt: skip
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "bad", "coordd.triggers", TRIGGERS, *NAMES)
    monkeypatch.setattr(program, "HOST", hosting(tmp_path / "bad"))


def look(kind: str, timeout_s: float = LIMIT_S, **more: str) -> Look:
    trigger = Trigger(kind=kind, name="new", timeout_s=timeout_s, **more)  # type: ignore[arg-type]  # as a test says

    async def main() -> Look:
        return await PluggedSource("load", trigger, "edge-1").look()

    return trio.run(main)


def test_its_arrivals_have_ids_and_fields_and_bad_ids_are_refused() -> None:
    found = look("good", url="x://h", path="/p", query="q")
    assert found.arrivals == [
        Arrival("a", {"key": "a"}),
        Arrival("b", {"body.customer": "load", "body.vip": "true", "body.place": "edge-1x://h/pq", "key": "b"}),
    ]
    assert [why for _, why in found.refused] == [r"an id must not have the character '\n'"]
    assert look("nothing").arrivals == []


@pytest.mark.parametrize(
    ("kind", "timeout_s", "why"),
    [
        ("raises", LIMIT_S, "the plug-in raises: it failed: ValueError: it is Friday"),
        ("returns", LIMIT_S, "the plug-in returns: it failed: TypeError: 'int' object is not iterable"),
        ("wrong", LIMIT_S, "it said 3; expected a text, or a text and its fields"),
        ("ends", LIMIT_S, "it called exit(0)"),
        ("dies", LIMIT_S, "the plug-in dies ended with -6: "),
        ("loops", 1.0, "the plug-in loops did not end within 1 s"),
        ("leaks", LIMIT_S, "it failed: MemoryError"),
        ("floods", LIMIT_S, f"the plug-in floods printed more than {OUTPUT_BYTES_MAX} bytes: nothing was taken"),
        ("spoils", LIMIT_S, "the plug-in spoils answered what nobody can read"),
        ("gone", LIMIT_S, "no installed package brings gone (entry points, group coordd.triggers)"),
    ],
)  # fmt: skip
def test_a_look_that_fails_takes_nothing_and_says_why(kind: str, timeout_s: float, why: str) -> None:
    with pytest.raises(UnavailableError) as failed:
        look(kind, timeout_s)
    assert why in str(failed.value)


def test_a_process_that_was_ended_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        look("loops", 1.0)
    assert [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_child(pid, tmp_path)] == []


def _is_child(pid: str, folder: Path) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"coordd.triggers\0loops" in argv and os.fsencode(folder) in argv


@pytest.mark.parametrize("kind", ["loops", "sleeps"])
def test_a_process_whose_daemon_has_died_ends_after_its_time(kind: str) -> None:
    context = {"job": "load", "node": "edge-1", "name": "new", "timeout_s": 1.0, "url": "", "path": "", "query": ""}
    argv = program.host("coordd.triggers", kind, json.dumps({**context, "argv": [], "password_file": ""}))
    assert subprocess.run(argv, check=False, timeout=LIMIT_S).returncode == -signal.SIGALRM


def test_the_kernel_ends_a_program_that_works_on_when_the_daemon_has_died() -> None:
    body = 'until [ "$(ulimit -t)" != unlimited ]; do :; done; ulimit -t'
    trigger = Trigger(kind="command", name="new", timeout_s=LIMIT_S, argv=("/bin/sh", "-c", body))

    async def main() -> Look:
        return await CommandSource(trigger).look()

    assert [one.key for one in trio.run(main).arrivals] == [str(int(LIMIT_S + 1) * (os.cpu_count() or 1))]
