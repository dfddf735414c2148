"""A short `make syscalls`: errors and crashes at system calls that a seed selects, with and without cgroups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]

SECONDS = 40


def test_an_error_or_a_crash_at_the_nth_system_call_loses_no_run_and_leaves_nothing_alive() -> None:
    argv = [sys.executable, "-m", "syscalls", "--seed", "9", "--workers", "1", "--seconds", str(SECONDS)]
    env = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
