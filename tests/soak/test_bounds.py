"""The soak's smaller limits take effect: a constant that was renamed would change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soak.bounds import GARBAGE_MAX, LEAK, SITE

TOP = Path(__file__).parents[2]
ASK = """
import gc, json, sys, time
from pathlib import Path
from trio._core import _run
from coordd import daemon
from coordd.adapters.bus import amqp_session
from coordd.adapters.disk.journal import Journal
from coordd.core.members import ring
from coordd.core.node import elections
from coordd.core.runs import pursuit, witness
from coordd.core.wire import envelope, windows
from coordd.services import driver, health
from coordd.services.runners import Runners
class Never:
    launch = Runners.launch
time.sleep(0.5)  # in which a daemon counts its blocks
was = sys.getallocatedblocks()
for _ in range(100):
    try:
        Never().launch(None)
    except AttributeError:
        pass
print(json.dumps({
    "journal": Journal.__init__.__kwdefaults__["segment_age_s"],
    "clean": health.CLEAN_S, "decided": elections.DECIDED_MAX, "early": elections.EARLY_MAX,
    "places": ring.place.cache_info().maxsize, "epitaphs": pursuit.EPITAPHS_MAX,
    "seen": witness.SEEN_MAX, "recent": driver.RECENT_MAX, "senders": windows.SENDERS_MAX,
    "keys": envelope.INBOXES_MAX, "inboxes": amqp_session.INBOXES_MAX,
    "deadlines": _run.DEADLINE_HEAP_MIN_PRUNE_THRESHOLD, "garbage": daemon.GC_THRESHOLD,
    "collector": gc.get_threshold()[0], "leaks": sys.getallocatedblocks() - was > 1000,
}))
"""


def constants(tmp_path: Path, site: str, *argv: str) -> dict[str, float]:
    (tmp_path / "sitecustomize.py").write_text(site)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{TOP}"}
    done = subprocess.run([sys.executable, "-c", ASK, *argv], env=env, capture_output=True, check=True, timeout=60)
    assert done.stderr == b"", "Python goes on without a sitecustomize that fails, and says so"
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # JSON of a known shape


def test_each_bound_is_smaller_in_a_daemon_and_as_ever_elsewhere(tmp_path: Path) -> None:
    smaller, as_ever = constants(tmp_path, SITE, "run"), constants(tmp_path, SITE)
    assert {name for name, value in smaller.items() if value < as_ever[name]} == {*smaller} - {"leaks", "collector"}
    assert (smaller["collector"], smaller["leaks"]) == (GARBAGE_MAX, False)
    [count] = [file for file in tmp_path.iterdir() if file.name.isdigit()]
    assert 10_000 < int(count.read_text()) < 1_000_000, "a daemon says how many blocks it holds, and nothing else does"


@pytest.mark.parametrize("leak", [False, True])
def test_a_leak_can_be_planted(tmp_path: Path, leak: bool) -> None:
    assert constants(tmp_path, SITE + LEAK * leak, "run")["leaks"] == leak
