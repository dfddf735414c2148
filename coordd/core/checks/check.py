"""What a check is: what it looks at, how often, on which nodes, and what follows for jobs."""

from __future__ import annotations

from typing import Literal

import msgspec

# The kinds that coordd itself has. REPORT looks at nothing: people and monitoring systems report its state.
HTTP, TCP, COMMAND, DISK, MEMORY, LOAD = "http", "tcp", "command", "disk", "memory", "load"
SPARK_MASTER, AMQP, REDIS, BUS, LEDGER, REPORT = "spark_master", "amqp", "redis", "bus", "ledger", "report"
KINDS = (HTTP, TCP, COMMAND, DISK, MEMORY, LOAD, SPARK_MASTER, AMQP, REDIS, BUS, LEDGER, REPORT)

# Where a check counts: on each node for itself; in the whole cluster, or on the nodes with a tag, from one of them.
NODE, CLUSTER, TAG = "node", "cluster", "tag:"

# What follows for a job while a check of it is bad: a warning; this node leaves its runs to others; it is suspended.
WARN, ABSTAIN, SUSPEND = "warn", "abstain", "suspend"
REACTIONS = (WARN, ABSTAIN, SUSPEND)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check. Durations in seconds.

    ``job``: the job whose file has it; "" for one of coordd.toml. ``then`` of the latter is for all jobs.
    ``degraded_at``, ``unhealthy_at``: the limits of what is measured, in the unit of the kind; None: the kind's own.
    """

    name: str
    kind: str
    job: str = ""
    url: str = ""
    address: str = ""
    argv: tuple[str, ...] = ()
    path: str = ""
    every_s: float = 30.0
    timeout_s: float = 5.0
    fail_after: int = 3
    pass_after: int = 2
    scope: str = NODE
    then: Literal["warn", "abstain", "suspend"] = "warn"
    degraded_at: float | None = None
    unhealthy_at: float | None = None

    @property
    def key(self) -> str:
        """Its name in the whole cluster: NAME, or JOB/NAME if it stands in a job's file."""
        return f"{self.job}/{self.name}" if self.job else self.name

    @property
    def plugged(self) -> bool:
        """True if a package brings its kind."""
        return self.kind not in KINDS

    @property
    def shared(self) -> bool:
        """True if one node looks for all of them."""
        return self.scope != NODE

    def is_for(self, tags: tuple[str, ...]) -> bool:
        """True if it concerns a node with these tags."""
        return not self.scope.startswith(TAG) or self.scope.removeprefix(TAG) in tags


class Use(msgspec.Struct, frozen=True):
    """A job's use of a check of coordd.toml."""

    check: str
    then: Literal["warn", "abstain", "suspend"] = "abstain"
