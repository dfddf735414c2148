"""The durations that every world shares, in seconds. They are short, so that much happens in little time."""

from __future__ import annotations

from coordd.core.context import Settings
from coordd.core.wire.events import ControlCancel, ControlRevoke, Task

LEASE, RENEW, LEDGER_TIMEOUT, KILL_GRACE = 8.0, 1.0, 1.0, 3.0
SETTINGS = Settings(
    lease_s=LEASE,
    renew_interval_s=RENEW,
    ledger_timeout_s=LEDGER_TIMEOUT,
    kill_grace_s=KILL_GRACE,
    heartbeat_interval_s=2.0,
    election_timeout_s=1.0,
    mingle_timeout_s=1.0,
    budget_client=6,
)
WALL = 1_700_000_000.0  # Unix time at the beginning of every world
CHAOS_S = 45.0
SCHEDULES_END_S = 60.0  # nothing new fires after this
QUIET_S = 25.0  # minimum time for a healed cluster: it must notice silence, and deliver waiting messages
LOOK_AGAIN_S = 5.0  # interval of the checks after that: is everything settled?
SETTLED_LIMIT_S = 600.0  # a queue of long programs on the only remaining node takes time
PASSED_S = 3.0  # fire times are passed over this long after their start_within
LAG_S = 2.0  # maximum lag of a replica
NEWCOMER_S = 3.0  # as core.ledger.words says, in these worlds
SILENCE_S = 5.0
OLD_S = 25.0  # maximum age of a snapshot
MUST_ARRIVE = (Task, ControlRevoke, ControlCancel)  # these messages wait while there is no connection
