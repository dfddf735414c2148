"""Smaller limits for daemons in a soak, so that every bounded table is full within minutes; and the figures."""

from __future__ import annotations

from soak.judge import Figure

# What retention keeps here, and how often it is looked: so that it all comes around many times within minutes.
KEEP_S = 60.0
CLEAN_S = 10.0
SEGMENT_S = 10.0

# Until the next look, and as long again for a machine that is busy with something else.
SLACK_S = 3 * CLEAN_S

# One run a second and cluster by hand, one every five seconds by the clock.
TRIGGER_EVERY_S = 1.0
RESTART_EVERY_S = 45.0

# Retention must have come around before the warm-up is over.
SECONDS_MIN = 3 * (KEEP_S + SLACK_S)

RUNS_S = 1.0 / TRIGGER_EVERY_S + 0.2

HISTORY = f'[history]\nkeep = "{KEEP_S:.0f}s"\nlogs_keep = "{KEEP_S:.0f}s"\njournal_keep = "{KEEP_S:.0f}s"\n'

# A daemon's memory of ended runs and restarted peers is bounded. Under this load the bounds are reached after an hour
# or after days: in a soak of minutes they would look like a leak. So these limits are small enough for the warm-up.
REMEMBERED_MAX = 50
PEERS_MAX = 8

# The same of what waits to be cleaned up: garbage in cycles until the daemon has made GC_THRESHOLD (20,000) objects
# more than it has freed, which takes a quarter of an hour here, and what trio keeps of deadlines that were moved, above
# a thousand. Python's free lists (two thousand tuples of each size) are emptied by collections of all generations
# alone, so those come as often as they may.
GARBAGE_MAX = 700
OLDER_AFTER = 1
DEADLINES_MAX = 50

# CPython keeps the names of attributes that it has looked up, up to 4,096 of them (its type cache): C code makes a new
# text of the same name for each call (datetime, json and re do), and each fills another place. So it is emptied before
# the blocks are counted. The figure is the minimum of the allocator's blocks over some seconds: it leaves out what one
# request needed for a moment.
BLOCKS_S = 5.0
BLOCKS_LOOK_S = 0.25

# Smaller limits for a daemon, and the number of its blocks, which goes into a file. Python loads sitecustomize before
# anything else; in other programs it does nothing.
SITE = f"""
import sys
if "run" in sys.orig_argv:
    import gc, os, threading, time
    from collections import deque
    from functools import lru_cache
    from trio._core import _run
    from coordd import daemon
    from coordd.adapters.bus import amqp_session
    from coordd.adapters.disk.journal import Journal
    from coordd.core.members import ring
    from coordd.core.node import elections
    from coordd.core.runs import endings, pursuit, witness
    from coordd.core.wire import envelope, windows
    from coordd.services import driver, health
    Journal.__init__.__kwdefaults__["segment_age_s"] = {SEGMENT_S}
    health.CLEAN_S = {CLEAN_S}
    elections.EARLY_MAX = {REMEMBERED_MAX}
    pursuit.EPITAPHS_MAX = endings.EPITAPHS_MAX = witness.SEEN_MAX = {REMEMBERED_MAX}
    elections.DECIDED_MAX = driver.RECENT_MAX = {REMEMBERED_MAX}
    windows.SENDERS_MAX = envelope.INBOXES_MAX = amqp_session.INBOXES_MAX = {PEERS_MAX}
    ring.place = lru_cache({PEERS_MAX})(ring.place.__wrapped__)
    _run.DEADLINE_HEAP_MIN_PRUNE_THRESHOLD = {DEADLINES_MAX}
    daemon.GC_THRESHOLD = {GARBAGE_MAX}
    gc.set_threshold({GARBAGE_MAX}, {OLDER_AFTER}, {OLDER_AFTER})

    def count():
        path = os.path.join(os.path.dirname(__file__), str(os.getpid()))
        seen = deque(maxlen={BLOCKS_S / BLOCKS_LOOK_S:.0f})
        while True:
            sys._clear_type_cache()
            seen.append(sys.getallocatedblocks())
            with open(path + ".new", "w") as file:
                file.write(str(min(seen)))
            os.replace(path + ".new", path)
            time.sleep({BLOCKS_LOOK_S})

    threading.Thread(target=count, daemon=True).start()
"""

# An intended leak, to see the rule fail: each launch leaves some 600 bytes in 26 blocks.
LEAK = """
    from coordd.services.runners import Runners
    kept, launch = [], Runners.launch
    def launch_and_keep(self, *args):
        kept.append([object() for _ in range(25)])
        return launch(self, *args)
    Runners.launch = launch_and_keep
"""

# Bounds of what is measured. Rows are pruned KEEP_S after their end, and found to be due at the next look.
ROWS_MAX = (KEEP_S + SLACK_S) * RUNS_S * 1.5
OF_A_DAEMON = (
    Figure("RSS", "MB", allowance=1.0, hourly=0.05),
    Figure("blocks", "", allowance=1500.0, hourly=0.01),
    Figure("descriptors", "", allowance=3.0),
    Figure("threads", "", allowance=3.0),
    Figure("journal", "kB", allowance=200.0, store=True),
    Figure("journal files", "", allowance=4.0, store=True, ceiling=(KEEP_S + SLACK_S) / SEGMENT_S * 2 + 8),
    Figure("log files", "", allowance=20.0, store=True, ceiling=ROWS_MAX * 1.2),
    Figure("runners' directories", "", allowance=10.0, store=True, ceiling=60.0),
    Figure("outbox", "", allowance=20.0, store=True, ceiling=500.0),
)
OF_A_LEDGER = (
    Figure("runs", "", allowance=20.0, store=True, ceiling=ROWS_MAX),
    Figure("oldest end", "s", allowance=20.0, store=True, ceiling=KEEP_S + SLACK_S),
    Figure("size", "kB", allowance=300.0, store=True),
    Figure("keys", "", allowance=50.0, store=True),
)
