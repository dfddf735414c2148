"""The process of a topic: it is the program of a run, whatever the plug-in does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.written import HOST, written

TOPICS = """
import os, sys
from coordd.plugins import Program

def good(of):
    print(*of, sep="\\n")

async def trio_one(of):
    import trio
    await trio.sleep(0)

def becomes(of):
    print("before")
    return Program(("/bin/sh", "-c", "echo $COORDD_RUN $MORE $$"), {"MORE": str(os.getpid())})

def code(of):
    return 3

def ends(of):
    sys.exit("it is Friday")

def raises(of):
    raise ValueError("it is Friday")

def wrong(of):
    return "done"

def absent(of):
    return Program(("/nowhere/x",))

def loops(of):
    while True:
        pass

def leaks(of):
    kept = []
    while True:
        kept.append(bytearray(2**20))
"""
NAMES = ["good", "trio_one", "becomes", "code", "ends", "raises", "wrong", "absent", "loops", "leaks"]
RUN = {
    "COORDD_JOB": "etl", "COORDD_RUN": "etl#1", "COORDD_ATTEMPT": "2", "COORDD_TOKEN": "7", "COORDD_NODE": "edge-1",
    "COORDD_FIRE_TIME": "2026-11-24T02:00:00Z", "COORDD_SOCKET": "/run/x.sock",
}  # fmt: skip
LIMIT_S = 120.0


def ran(tmp_path: Path, name: str, *words: str, memory: int = 0) -> subprocess.CompletedProcess[str]:
    bad = written(tmp_path / "bad", "coordd.topics", TOPICS, *NAMES)
    argv = [sys.executable, "-c", HOST, str(bad), "coordd.topics", name, json.dumps({"memory": memory}), *words]
    return subprocess.run(argv, env={**os.environ, **RUN}, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_it_gets_its_run_and_its_arguments_and_what_it_prints_is_the_output(tmp_path: Path) -> None:
    done = ran(tmp_path, "good", "region=eu", "text=a=b {x}")
    args = "{'region': 'eu', 'text': 'a=b {x}'}"
    assert done.stdout.splitlines() == ["good", "etl", "etl#1", "2", "7", "edge-1", *[RUN["COORDD_FIRE_TIME"]], *[
        RUN["COORDD_SOCKET"], args,
    ]]  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_coroutine_function_runs_under_trio(tmp_path: Path) -> None:
    assert ran(tmp_path, "trio_one").returncode == 0


def test_a_program_that_it_returns_takes_its_place(tmp_path: Path) -> None:
    before, after = ran(tmp_path, "becomes").stdout.splitlines()
    assert before == "before"
    run, pid_before, pid = after.split()
    assert (run, pid_before) == ("etl#1", pid)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("code", 3, ""),
        ("ends", 1, "it is Friday"),
        ("raises", 1, "ValueError: it is Friday"),
        ("wrong", 1, "topic wrong returned 'done'; expected nothing, an exit code or a Program"),
        ("absent", 1, "FileNotFoundError"),
        ("leaks", 1, "MemoryError"),
        ("gone", 1, "LookupError: no installed package brings gone (entry points, group coordd.topics)"),
    ],
)
def test_its_end_is_the_end_of_the_attempt(tmp_path: Path, name: str, code: int, said: str) -> None:
    done = ran(tmp_path, name, memory=256 * 2**20)
    assert done.returncode == code
    assert said in done.stderr
