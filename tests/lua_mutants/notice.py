"""Which change is noticed, and by what: first the kept conversation, then the tests on real servers."""

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

# Under a stepped clock: their conversation is kept.
STEPPED = (
    "redis/test_ledger_differential.py",
    "ledger/test_ledger.py",
    "ledger/test_questions.py",
    "ledger/test_settles.py",
    "ledger/test_restores.py",
    "ledger/test_definitions.py",
    "ledger/test_bad_rows.py",
    "ledger/test_overlap.py",
    "ledger/corners",
    "ledger/test_identity.py",
)
# With the old version's scripts beside them, with Redis's own time, with servers that are full, that fail, that
# have replicas: run once for each change that is left.
REAL = (
    "../versions/test_old_rules.py",
    "ledger/test_identity.py",
    "redis/test_redis_full.py",
    "redis/test_redis_ledger.py",
)

SECONDS_MAX = 300


class MissingError(Exception):
    """The tests do not pass with the true scripts."""


def record(*, brief: bool = False) -> list[Exchange]:
    """What the tests under a stepped clock ask and hear; ``brief``: less of it. Raises MissingError when they fail."""
    with tempfile.TemporaryDirectory(prefix="coordd-lua-") as directory:
        path = Path(directory) / "conversation"
        done = _pytest(
            STEPPED,
            ["-k", "scripts or redis"],
            {"LUA_CONVERSATION": str(path), **({"LUA_BRIEF": "1"} if brief else {})},
        )
        if done.returncode != 0:
            raise MissingError(f"the contract tests fail with the true scripts:\n{done.stdout[-2000:]}")
        return load(path)


def interview(kept: list[Exchange]) -> Interview:
    """Asks changed scripts the same; to be closed."""
    return Interview(kept, stepped_redis.rewritten)


def by_real_servers(edit: Edit) -> str:
    """What the tests with real servers say of a change; "" when they pass."""
    try:
        done = _pytest(REAL, ["-x", "-k", "not sqlite and not memory"], {"LUA_MUTANT": edit.name})
    except subprocess.TimeoutExpired:
        return f"{REAL[0]}: not over in {SECONDS_MAX} s"
    if done.returncode == 0:
        return ""
    failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), done.stdout)
    return failed.partition("::")[2][:120] or failed[:120]


def known_survivors() -> dict[str, str]:
    """The changes that nothing notices, and the reason of each."""
    return {one["edit"]: one["reason"] for one in tomllib.loads(SURVIVORS.read_text()).get("survivor", [])}


def _pytest(files: tuple[str, ...], arguments: list[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
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
        timeout=SECONDS_MAX,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
