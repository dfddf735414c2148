"""The names of all metrics: the one list that the exporter, the documents and the tests of dashboards read."""

from __future__ import annotations

from typing import NamedTuple

from coordd.core.ledger.words import FAILURE, LOST, MISSED, REJECTED, REVOKED, SUCCESS
from coordd.services.views.fires import DECISIONS

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"

# The label of a job. Prometheus itself uses `job` and `instance`.
JOB = "coordd_job"
CLUSTER = "cluster"

# Runs of hooks and of `coordd exec` have names that no job file has; all of them count under this name.
OTHER = "(other)"

# The final states of a run, and `lost`, in which an attempt may end.
STATES = (SUCCESS, FAILURE, REVOKED, REJECTED, MISSED, LOST)

# Upper bounds of the buckets (seconds).
RUN_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
DELAY_S = (0.1, 1.0, 5.0, 30.0, 300.0)
ELECTION_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5)
LEDGER_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0)


class Family(NamedTuple):
    """One metric. ``name`` is without the suffixes that its kind adds (_total, _bucket, _info)."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def samples(self) -> tuple[str, ...]:
        """The names as queries use them."""
        endings = {COUNTER: ("_total",), INFO: ("_info",), HISTOGRAM: ("_bucket", "_count", "_sum"), GAUGE: ("",)}
        return tuple([self.name + ending for ending in endings[self.kind]])


FIRES = Family("coordd_fires", COUNTER, "Fire times that this node decided", (JOB, "decision"))
RUNS = Family("coordd_runs", COUNTER, "Runs that ended here in this state, and attempts that were lost", (JOB, "state"))
TAKEOVERS = Family("coordd_takeovers", COUNTER, "Attempts of other nodes that this node found lost", (JOB,))
RUN_DURATION = Family("coordd_run_duration_seconds", HISTOGRAM, "From exec to the end of an attempt", (JOB,), RUN_S)
DELAY = Family("coordd_launch_delay_seconds", HISTOGRAM, "From the due time to exec, first attempts", (JOB,), DELAY_S)
LAST_SUCCESS = Family("coordd_last_success_timestamp_seconds", GAUGE, "When the job last succeeded", (JOB,))
EXPECT_WITHIN = Family("coordd_expect_within_seconds", GAUGE, "A success is expected this often", (JOB,))
NEXT_FIRE = Family("coordd_next_fire_timestamp_seconds", GAUGE, "When the job is due next", (JOB,))
LATE = Family("coordd_job_late", GAUGE, "1: no success within the time that is expected", (JOB,))
# Of each job, in the order in which they are written.
OF_JOBS = (LAST_SUCCESS, EXPECT_WITHIN, NEXT_FIRE, LATE, FIRES, RUNS, TAKEOVERS, RUN_DURATION, DELAY)

ELECTIONS = Family("coordd_elections", COUNTER, "Elections that this node opened and that are decided")
ELECTION_DURATION = Family("coordd_election_duration_seconds", HISTOGRAM, "From opening to decision", (), ELECTION_S)
LEDGER_OP = Family("coordd_ledger_op_duration_seconds", HISTOGRAM, "Until the ledger answers", ("op",), LEDGER_S)
MEMBERS = Family("coordd_members", GAUGE, "Nodes as this node knows them, itself included", ("state",))
BUS_UP = Family("coordd_bus_up", GAUGE, "1: the bus is connected; absent without gossip")
LEDGER_UP = Family("coordd_ledger_up", GAUGE, "1: the ledger answers and is the right one")
BREAKER_OPEN = Family(
    "coordd_breaker_open", GAUGE, "1: the breaker is open, of bus, ledger, job:NAME or service:NAME", ("name",)
)
CHECK_STATE = Family(
    "coordd_check_state", GAUGE, "0 healthy, 1 degraded, 2 unhealthy, 3 unavailable, 4 insecure, -1 unknown", ("check",)
)
OUTBOX = Family("coordd_outbox_messages", GAUGE, "Messages that wait for the bus")
NODE_READY = Family("coordd_node_ready", GAUGE, "1: this node takes new runs")
CLUSTER_READY = Family("coordd_cluster_ready", GAUGE, "1: more than half of the known nodes take new runs")
UNKNOWN_RUNS = Family("coordd_unknown_runs", GAUGE, "Runs whose end is not known: a person decides")
ALARMS = Family("coordd_alarms", GAUGE, "Double launches that this node knows of, until a person clears them")
DEAD_LETTERS = Family("coordd_dead_letters", GAUGE, "Runs that were given up: a person replays or discards each")
SINK_COPIED = Family("coordd_sink_copied", COUNTER, "Files that were copied to a sink", ("sink",))
SINK_FAILED = Family("coordd_sink_failed", COUNTER, "Tries to copy a file that failed", ("sink",))
SINK_WAITING = Family("coordd_sink_waiting", GAUGE, "Files that wait to be copied", ("sink",))
SINK_DEAD = Family("coordd_sink_dead", GAUGE, "Files whose copy was given up: dead letters of this node", ("sink",))
TRIGGER_TAKEN = Family("coordd_trigger_taken", COUNTER, "Arrivals at triggers that this node took", ("trigger",))
TRIGGER_WAITING = Family("coordd_trigger_waiting", GAUGE, "Arrivals that wait, as this node sees them", ("trigger",))
TRIGGER_DEAD = Family(
    "coordd_trigger_dead", GAUGE, "Messages that could start nothing, as this node sees them", ("trigger",)
)
TRIGGER_UP = Family("coordd_trigger_up", GAUGE, "1: the last look of this node, which polls, succeeded", ("trigger",))
# In the order of what triggers tell of themselves.
TRIGGERS = (TRIGGER_TAKEN, TRIGGER_WAITING, TRIGGER_UP, TRIGGER_DEAD)
PUBLISH_WAITING = Family("coordd_publish_waiting", GAUGE, "Messages that wait, as each node knows", ("publish",))
PUBLISH_OLDEST = Family("coordd_publish_oldest_seconds", GAUGE, "How long the oldest of them has waited", ("publish",))
PUBLISH_CONNECTIONS = Family("coordd_publish_connections", GAUGE, "Connections to its brokers", ("publish",))
PUBLISH_FAILING = Family("coordd_publish_failing", GAUGE, "Addresses that this node tries last", ("publish",))
# In the order of what the messages of a destination tell.
PUBLISHED = (PUBLISH_WAITING, PUBLISH_OLDEST, PUBLISH_CONNECTIONS, PUBLISH_FAILING)
TRACE_SPANS = Family("coordd_trace_spans", COUNTER, "Spans of traces, by what became of them", ("result",))
TRACE_WAITING = Family("coordd_trace_spans_waiting", GAUGE, "Spans that wait for the receiver of traces")
BUILD = Family("coordd_build", INFO, "The version of this daemon", ("version",))
OF_NODE = (
    ELECTIONS, ELECTION_DURATION, LEDGER_OP, MEMBERS, BUS_UP, LEDGER_UP, BREAKER_OPEN, CHECK_STATE, OUTBOX, NODE_READY,
    CLUSTER_READY, ALARMS, UNKNOWN_RUNS, DEAD_LETTERS, SINK_COPIED, SINK_FAILED, SINK_WAITING,
    SINK_DEAD, TRIGGER_TAKEN, TRIGGER_WAITING, TRIGGER_UP, TRIGGER_DEAD, *PUBLISHED, TRACE_SPANS, TRACE_WAITING, BUILD,
)  # fmt: skip

FAMILIES = (*OF_JOBS, *OF_NODE)

# What each label of a job's counters may say: these series exist from the start.
WORDS = {"decision": DECISIONS, "state": STATES}
