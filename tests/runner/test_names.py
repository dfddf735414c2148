"""The names of runners and watchers in the kernel, by which the runbook finds those that daemons have left behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordd.runner.kernel import RUNNER_NAME, WARM_NAME, WATCHER_NAME

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
NAMED = "from coordd.runner.kernel import take_name; take_name({!r}); print(flush=True); input()"


@pytest.mark.parametrize(("name", "found"), [(RUNNER_NAME, True), (WATCHER_NAME, True), (WARM_NAME, False)])
def test_the_command_of_the_runbook_finds_what_a_restored_ledger_would_end(name: str, found: bool) -> None:
    """The warm parent ends with its daemon, and holds no run."""
    (command,) = re.findall(r"wait until no runner is left \(`(.+?)`\s+prints nothing\)", RUNBOOK.read_text())
    argv = [sys.executable, "-c", NAMED.format(name)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        process.communicate("")
    assert ((str(process.pid), name) in [tuple(line.split(" ", 1)) for line in done.stdout.splitlines()]) is found
