"""Sinks of packages: the program of a sink's run calls one in a process of its own, whatever it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pytest
from plugins.written import installed, written

from outcomes.test_files import END, LIMIT_S, ROOT

SINKS = """
import json, os, sys

def good(of):
    with open(of.path, "w") as file:
        json.dump([of.name, of.to, of.query, of.timeout_s, of.outcome["id"], sorted(os.environ)], file)
    return "it has it"

async def trio_one(of):
    import trio
    await trio.sleep(0)

def raises(of):
    raise ValueError("it is\\nFriday")

def ends(of):
    sys.exit(0)

def floods(of):
    print("x" * 10**7)
"""
NAMES = ["good", "trio_one", "raises", "ends", "loops", "leaks", "floods"]


def sent(site: Path, to: str, timeout_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """The real program, as a run of a sink starts it."""
    sink: dict[str, Any] = {"name": "x", "to": to, "timeout_s": timeout_s}
    sink |= {"password_file": "", "token_file": "", "tls_ca": ""}
    env = {"PATH": "/usr/bin:/bin", "COORDD_HOOK_SECRET": json.dumps(sink), "COORDD_EVENT": json.dumps(END)}
    return subprocess.run(
        [sys.executable, "-m", "coordd.outcomes"],
        env={**env, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, site)))},
        capture_output=True, text=True, timeout=2 * LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return written(tmp_path / "bad", "coordd.sinks", SINKS, *NAMES)


def test_it_gets_the_outcome_and_its_address_but_no_secret_of_the_call(tmp_path: Path, bad: Path) -> None:
    to = f"plugin://good{tmp_path}/said?table=ends"
    done = sent(bad, to)
    assert (done.returncode, done.stdout) == (0, "it has it\n")
    *said, environ = json.loads((tmp_path / "said").read_text())
    assert said == ["x", to, {"table": "ends"}, LIMIT_S, END["id"]]
    assert not {name for name in environ if name.startswith("COORDD_")}
    assert sent(bad, "plugin://trio_one").returncode == 0


@pytest.mark.parametrize(
    ("name", "timeout_s", "code", "why"),
    [
        ("raises", LIMIT_S, 1, "it failed: ValueError: it is Friday"),
        ("ends", LIMIT_S, 1, "it called exit(0)"),
        ("loops", 2.0, 124, "the sink did not end within 2 s"),
        ("leaks", LIMIT_S, 1, "it failed: MemoryError"),
        ("gone", LIMIT_S, 1, "it failed: LookupError: no installed package brings gone (entry points, group"),
    ],
)  # fmt: skip
def test_one_that_fails_fails_the_call_and_is_named(
    bad: Path, name: str, timeout_s: float, code: int, why: str
) -> None:
    done = sent(bad, f"plugin://{name}", timeout_s)
    assert done.returncode == code
    assert why in done.stdout + done.stderr


def test_its_output_is_bounded(bad: Path) -> None:
    assert len(sent(bad, "plugin://floods").stdout) <= 64 * 1024


def test_the_example_keeps_each_end_once(tmp_path: Path) -> None:
    site, path = installed(tmp_path, "sink"), tmp_path / "ends.db"
    assert [sent(site, f"plugin://ends-table{path}").stdout for _ in range(2)] == [
        f"{path} has {END['id']}\n",
        f"{path} has {END['id']} already\n",
    ]
    with closing(connect(path)) as database:
        assert database.execute("SELECT * FROM ends").fetchall() == [(END["id"], 0, "etl", "success")]
