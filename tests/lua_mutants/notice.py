"""Finds which changes are noticed, and by which test: first by the recorded conversation,
then by tests on real servers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from support import stepped_redis

from lua_mutants.conversation import Exchange, Interview, load
from lua_mutants.edits import Edit

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")

# Tests under a stepped clock: their conversation is recorded.
STEPPED = (
    "redis/test_ledger_differential.py",
    "redis/test_redis_quarantine.py",
    "ledger/test_ledger.py",
    "ledger/test_questions.py",
    "ledger/test_settles.py",
    "ledger/test_restores.py",
    "ledger/test_definitions.py",
    "ledger/test_bad_rows.py",
    "ledger/test_overlap.py",
    "ledger/test_holds.py",
    "ledger/test_gate_ahead.py",
    "test_fires.py",
    "test_inputs.py",
    "ledger/corners",
    "ledger/feed",
    "ledger/marks",
    "ledger/test_identity.py",
)
# Tests with the old version's scripts, with Redis's own time, and with servers that are full, that fail, or that have
# replicas. They run once for each remaining change.
REAL = (
    "../versions/test_old_rules.py",
    "ledger/test_identity.py",
    "redis/test_redis_full.py",
    "redis/test_redis_ledger.py",
)

# Timeouts (seconds): of the tests with real servers under one change, and of the recording on a loaded machine.
SECONDS_MAX = 300
RECORDING_S = 1800


class MissingError(Exception):
    """The tests do not pass with the unchanged scripts."""


def record(*, brief: bool = False) -> list[Exchange]:
    """The requests and replies of the tests under a stepped clock; ``brief``: fewer.
    Raises MissingError if a test fails.
    """
    with tempfile.TemporaryDirectory(prefix="coordd-lua-") as directory:
        path = Path(directory) / "conversation"
        done = _pytest(
            STEPPED,
            ["-k", "(scripts or redis) and not loop"],  # trio's loop would ask the same, past the recorder
            {"LUA_CONVERSATION": str(path), **({"LUA_BRIEF": "1"} if brief else {})},
            RECORDING_S,
        )
        if done.returncode != 0:
            raise MissingError(f"the contract tests fail with the true scripts:\n{done.stdout[-2000:]}")
        return load(path)


def interview(kept: list[Exchange]) -> Interview:
    """Make an Interview, which asks changed scripts the same. The caller must close it."""
    return Interview(kept, stepped_redis.rewritten)


def by_real_servers(edit: Edit) -> str:
    """The first failure of the tests with real servers under a change; "" if they pass."""
    try:
        done = _pytest(REAL, ["-x", "-k", "not sqlite and not memory"], {"LUA_MUTANT": edit.name}, SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"{REAL[0]}: not over in {SECONDS_MAX} s"
    if done.returncode == 0:
        return ""
    failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), done.stdout)
    return failed.partition("::")[2][:120] or failed[:120]


def known_survivors() -> dict[str, str]:
    """The changes that no test notices, each with its reason."""
    return {one["edit"]: one["reason"] for one in tomllib.loads(SURVIVORS.read_text()).get("survivor", [])}


def _pytest(
    files: tuple[str, ...], arguments: list[str], more: dict[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    tests = ROOT / "tests"
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "lua_mutants.recorder",
            "-p",
            "no:cacheprovider",
            *arguments,
            *(str(tests / "contract" / file) for file in files),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tests}", **more},
        timeout=limit_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
