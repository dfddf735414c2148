"""A daemon that measures how long its loop is held."""

from __future__ import annotations

import sys
from pathlib import Path

# The daemon, with a probe. The probe measures how long the loop works between two looks at its timers and sockets, in
# seconds of its own CPU time (so a busy machine does not count). It writes down each new maximum.
PROBED = """
import os, sys, time, trio
class Probe(trio.abc.Instrument):
    worst = since = began = 0.0
    def after_io_wait(self, timeout):
        self.since = time.thread_time()
    def before_io_wait(self, timeout):
        held = time.thread_time() - self.since if self.since else 0.0
        if os.path.exists(sys.argv[-1] + ".go") and held > self.worst:
            self.worst = held
            with open(sys.argv[-1], "w") as file:
                file.write(repr(held))
run = trio.run
probe = sys.argv.pop(1)
trio.run = lambda *args, **options: run(*args, **{**options, "instruments": [Probe()]})
from coordd.cli.coordd import main
sys.argv_probe = probe
Probe.before_io_wait.__globals__["sys"] = type("S", (), {"argv": [probe]})
main()
"""


def probed(held: Path) -> list[str]:
    """The program. It measures as soon as ``held`` with ".go" exists, and keeps the maximum in ``held`` (seconds)."""
    return [sys.executable, "-c", PROBED, str(held)]
