"""Checks whose kind a package brings: each look is a process of its own, whatever the plug-in does."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import trio
from plugins.written import hosting, written

from coordd.core.checks.check import Check
from coordd.core.checks.state import Result
from coordd.services.checks import plugin
from coordd.services.programs import child

CHECKS = """
import os, sys

def good(of):
    return "insecure", f"{of.name} on {of.node} at {of.path}", "n=1;;2"

def word(of):
    print("this is not an answer")
    return "unavailable"

def raises(of):
    raise ValueError("it is\\nFriday | night")

def ends(of):
    sys.exit(0)

def dies(of):
    os.abort()

def lies(of):
    return "fine"

def nothing(of):
    pass

def stays(of):
    import threading
    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
    return "healthy"
"""

NAMES = ("good", "word", "raises", "ends", "dies", "lies", "nothing", "loops", "leaks", "stays", "gone")
LIMIT_S = 60.0


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "bad", "coordd.checks", CHECKS, *NAMES)
    monkeypatch.setattr(child, "HOST", hosting(tmp_path / "bad"))


def look(kind: str, timeout_s: float = LIMIT_S) -> Result:
    return trio.run(plugin.look, Check(name="x", kind=kind, path="/data", timeout_s=timeout_s), "edge-1")


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        ("good", "insecure", "x on edge-1 at /data"),
        ("word", "unavailable", ""),
        ("raises", "unknown", "exit code 3: it failed: ValueError: it is Friday / night"),
        ("ends", "unknown", "exit code 3: it called exit(0)"),
        ("dies", "unknown", "signal 6 ended it"),
        ("lies", "unknown", "exit code 3: it answered 'fine'; expected one of healthy, degraded,"),
        ("nothing", "unknown", "exit code 3: it failed: TypeError: 'NoneType' object is not iterable"),
        ("gone", "unknown", "exit code 3: it failed: AttributeError: module 'bad_plug_ins' has no attribute 'gone'"),
        ("missing", "unknown", "exit code 3: it failed: LookupError: no installed package brings missing"),
        ("stays", "healthy", ""),
    ],
)
def test_what_it_says_or_does_is_the_result(kind: str, state: str, text: str) -> None:
    found = look(kind)
    assert found.state == state
    assert found.text.startswith(text)
    assert found.figures == ("n=1;;2" if kind == "good" else "")


@pytest.mark.usefixtures("packages")
def test_one_that_loops_is_killed_at_its_end() -> None:
    assert look("loops", timeout_s=1.0) == Result("unhealthy", "it did not end within 1 s")


@pytest.mark.usefixtures("packages")
def test_one_that_leaks_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugin.LIMITS, resource.RLIMIT_DATA, 256 * 2**20)
    found = look("leaks")
    assert (found.state, found.text) == ("unknown", "exit code 3: it failed: MemoryError")
