"""From journal lines to events, runs and attempts: DataFrame in, DataFrame out, nothing read or written.

The rules are those of coordd.core.wire.merge, with Spark's own functions only: no Python function touches a row. The
result depends neither on the order of the lines nor on repeated lines.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.ledger.words import RECEIVED, RETRY
from coordd.core.wire.journal_line import TAIL_END, TAIL_LENGTH, TAIL_START
from coordd.core.wire.merge import LIFE, MERGE_RULES, PRECEDENCE, STATE_OF, TASK, life_rank, precedence

# The schema of an event. Other fields stay in ``line``; null and absent are the same.
IDENTITY = {
    "type": "string",
    "hostname": "string",
    "pid": "bigint",
    "incarnation": "string",
    "seq": "bigint",
    "utcoffset": "int",
    "clock": "bigint",
    "timestamp": "double",
    "uuid": "string",
}
FIELDS = {
    "name": "string", "args": "string", "kwargs": "string", "run": "string", "attempt": "bigint",
    "token": "bigint", "nonce": "string", "node": "string", "fire_at": "double", "application_id": "string",
    "runtime": "double", "result": "string", "exit_code": "bigint", "exception": "string",
    "traceback": "string", "reason": "string", "retries": "bigint", "eta": "string", "expires": "string",
    "parent_id": "string", "root_id": "string",
}  # fmt: skip
_UNREADABLE = "_unreadable"
EVENT_SCHEMA = ", ".join(f"`{n}` {t}" for n, t in {**IDENTITY, **FIELDS}.items()) + f", `{_UNREADABLE}` string"

# The fields of a run; the first three are from its last event.
RUN_FIELDS = ("hostname", "pid", "clock", *FIELDS)

# Why a line was rejected.
TORN = "torn"  # it has no checksum at its end: cut
GLUED = "glued"  # two lines in one, after a partial one
CHECKSUM = "checksum"  # altered
NOT_AN_EVENT = "not an event"  # intact, but not a node's record

_TAIL = TAIL_START.decode() + "[0-9a-f]{8}" + TAIL_END.decode()


def checked(lines: DataFrame) -> DataFrame:
    """Lines (``value``, ``source``) with their verdict: ``problem`` is null for those that parse to ``event``.

    Blank lines are left out.
    """
    body = F.expr(f"substring(value, 1, length(value) - {TAIL_LENGTH})")
    crc = F.lower(F.lpad(F.hex(F.crc32(body.cast("binary"))), 8, "0"))
    intact = F.concat(body, F.lit(TAIL_START.decode()), crc, F.lit(TAIL_END.decode())) == F.col("value")
    options = {"columnNameOfCorruptRecord": _UNREADABLE, "allowNonNumericNumbers": "false"}
    event = F.from_json(F.concat("body", F.lit("}")), EVENT_SCHEMA, options)
    readable = (
        F.col(f"event.{_UNREADABLE}").isNull()
        & F.col("event.type").isNotNull()
        & F.col("event.hostname").isNotNull()
        & F.col("event.clock").isNotNull()
        & F.col("event.timestamp").isNotNull()
        & (~F.col("event.type").startswith(TASK) | (F.col("event.uuid") != ""))
    )
    return (
        lines.where(F.col("value") != "")
        .select("value", "source", body.alias("body"), intact.alias("intact"))
        .select("value", "source", "intact", F.when(F.col("intact"), event).alias("event"))
        .select(
            F.col("value").alias("line"),
            "source",
            "event",
            F.when(F.col("intact"), F.when(~F.coalesce(readable, F.lit(False)), NOT_AN_EVENT))
            .when(F.col("value").rlike(_TAIL + r"\{"), GLUED)
            .when(
                F.col("value").rlike(_TAIL + r"\z"),
                F.when(F.col("value").rlike(r'.\{"type":'), GLUED).otherwise(CHECKSUM),
            )
            .otherwise(TORN)
            .alias("problem"),
        )
    )


def corrupt(checked_lines: DataFrame) -> DataFrame:
    """The rejected lines, each with its reason and its file."""
    return checked_lines.select("source", "problem", "line").where(F.col("problem").isNotNull())


def events(checked_lines: DataFrame) -> DataFrame:
    """Every event once, in the total order (clock, timestamp, full_hostname)."""
    return (
        checked_lines.select("problem", "event.*", "line")
        .where(F.col("problem").isNull())
        .dropDuplicates(["line"])
        .select(
            *(F.col(name) for name in IDENTITY),
            F.concat("hostname", F.lit("."), F.coalesce("pid", F.lit(0)).cast("string")).alias("full_hostname"),
            # An empty text counts as missing.
            *(F.when(F.col(n) != "", F.col(n)).alias(n) if t == "string" else F.col(n) for n, t in FIELDS.items()),
            "line",
        )
        .orderBy("clock", "timestamp", "full_hostname", "line")
    )


def runs(all_events: DataFrame) -> DataFrame:
    """One row per run: its state by precedence, its fields by the merge rules.

    Per run the events are numbered in their order. A ``retry`` opens a new segment. The state is the one of
    highest precedence in the last segment (its latest event, where several share the rank), and each field
    is its last value, by number. Only a late ``received`` needs the earlier values.
    """
    kind = F.col("type")
    life = Window.partitionBy("uuid").orderBy(
        F.coalesce("attempt", F.lit(0)),
        F.coalesce("token", F.lit(0)),
        "clock",
        "timestamp",
        "full_hostname",
        _life_rank(kind),
        kind,
        F.coalesce("incarnation", F.lit("")),
        F.crc32(F.col("line").cast("binary")),
    )
    so_far = life.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = life.rowsBetween(Window.unboundedPreceding, -1)
    stands = F.struct("segment", "weight")
    numbered = (
        all_events.select("type", "uuid", "timestamp", "full_hostname", "incarnation", "line", *RUN_FIELDS)
        .where(kind.startswith(TASK))
        .withColumn("state", _state(kind))
        .withColumn("weight", _weight(F.col("state")))
        .withColumn("segment", F.sum((F.col("state") == RETRY).cast("int")).over(so_far))
        .withColumn("n", F.row_number().over(life))
        .withColumn("stood", F.max(stands).over(before))
        .withColumn("late", F.coalesce(F.col("stood") > stands, F.lit(False)))
    )
    kept = set(MERGE_RULES[RECEIVED])
    full = ~(F.col("late") & (F.col("state") == RECEIVED))
    last = F.col("n")
    defining = F.struct("segment", "weight", "n")
    return (
        numbered.groupBy("uuid")
        .agg(
            F.max_by("state", defining).alias("state"),
            F.max_by("timestamp", defining).alias("timestamp"),
            *(_last(name, last, None if name in kept else full) for name in RUN_FIELDS),
            *(F.max_by("timestamp", F.when(kind == word, last)).alias(word.removeprefix(TASK)) for word in LIFE),
            F.count(F.lit(1)).alias("events"),
        )
        .withColumn("job", F.coalesce("name", F.regexp_extract("run", "^[^#@]*", 0)))
    )


def attempts(all_events: DataFrame) -> DataFrame:
    """One row per launch (run, attempt, token, nonce): its node, start and end.

    ``hostname`` is the node that started it. The end is the program's exit, at its earliest report (``started`` +
    ``runtime`` if that is earlier: a report may wait for its daemon). Without a known exit, it is when the attempt was
    first given up, or null.
    """
    kind = F.col("type")
    of_tasks = all_events.select(
        "type",
        "hostname",
        "clock",
        "timestamp",
        "full_hostname",
        "run",
        "application_id",
        "runtime",
        "exit_code",
        "reason",
        F.coalesce("name", F.regexp_extract("run", "^[^#@]*", 0)).alias("job"),
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        F.coalesce("token", F.lit(0)).alias("token"),
        F.coalesce("nonce", F.lit("")).alias("nonce"),
    ).where(kind.startswith(TASK) & F.col("run").isNotNull())
    exited = F.col("exit_code").isNotNull() | (F.col("end_type") == "task-succeeded")
    # least() ignores nulls: without a runtime it is the report's own time.
    exit_at = F.when(exited, F.least("timestamp", F.col("started") + F.col("runtime")))
    return (
        _launches(of_tasks)
        .join(_ends(of_tasks), ["run", "attempt"], "left")
        # An end without a token or a nonce comes from a node that did not know the grant.
        .withColumn("mine", _same("end_token", "token", 0) & _same("end_nonce", "nonce", ""))
        .withColumn("exit_at", F.when(F.col("mine"), exit_at))
        .withColumn("told_at", F.when(F.col("mine"), F.col("timestamp")))
        .withColumn("told", F.when(F.col("mine"), F.struct("weight", "timestamp", "end_type", "reason")))
        .groupBy("job", "run", "attempt", "token", "nonce", "hostname", "started")
        .agg(
            F.coalesce(F.min("exit_at"), F.min("told_at")).alias("ended"),
            F.max("told").alias("told"),
            F.max(F.when(F.col("mine"), F.col("exit_code"))).alias("exit_code"),
            F.max(F.when(F.col("mine"), F.col("application_id"))).alias("application_id"),
        )
        .select(
            "job",
            "run",
            "attempt",
            "token",
            "nonce",
            "hostname",
            "started",
            F.greatest("ended", F.when(F.col("ended").isNotNull(), F.col("started"))).alias("ended"),
            _state(F.col("told.end_type")).alias("outcome"),
            F.col("told.reason").alias("reason"),
            "exit_code",
            "application_id",
        )
    )


def _launches(of_tasks: DataFrame) -> DataFrame:
    first = F.struct("clock", "timestamp", "full_hostname")
    return (
        of_tasks.where(F.col("type") == "task-started")
        .groupBy("job", "run", "attempt", "token", "nonce")
        .agg(F.min_by("hostname", first).alias("hostname"), F.min_by("timestamp", first).alias("started"))
    )


def _ends(of_tasks: DataFrame) -> DataFrame:
    kind = F.col("type")
    return of_tasks.where(kind.isin(*ENDS)).select(
        "run",
        "attempt",
        F.col("token").alias("end_token"),
        F.col("nonce").alias("end_nonce"),
        "timestamp",
        "runtime",
        "exit_code",
        "reason",
        "application_id",
        kind.alias("end_type"),
        _weight(_state(kind)).alias("weight"),
    )


# The events that end an attempt.
ENDS = ("task-succeeded", "task-failed", "task-revoked", "task-retried")


def _state(kind: Column) -> Column:
    """core.wire.merge.state_of, as a column."""
    named = F.create_map(*(F.lit(text) for pair in STATE_OF.items() for text in pair))
    return F.coalesce(F.try_element_at(named, kind), F.regexp_replace(kind, f"^{TASK}", ""))


def _weight(state: Column) -> Column:
    """core.wire.merge.precedence, inverted: more counts more; retry opens a segment, so it has the lowest weight."""
    ranks = [(name, -precedence(name)) for name in PRECEDENCE if name not in (None, RETRY)]
    ranks.append((RETRY, -len(PRECEDENCE)))
    return _lookup(state, ranks, -precedence("a state of its own"))


def _same(end: str, launch: str, unknown: int | str) -> Column:
    """True if the end's mark is that of the launch, or unknown; without an end there is no mark."""
    return F.coalesce((F.col(end) == unknown) | (F.col(end) == F.col(launch)), F.lit(False))


def _life_rank(kind: Column) -> Column:
    """core.wire.merge.life_rank, as a column."""
    return _lookup(kind, [(word, life_rank(word)) for word in LIFE], life_rank("unknown"))


def _lookup(column: Column, pairs: list[tuple[str, int]], otherwise: int) -> Column:
    (first, value), *rest = pairs
    chain = F.when(column == first, value)
    return reduce(lambda so_far, pair: so_far.when(column == pair[0], pair[1]), rest, chain).otherwise(otherwise)


def _last(name: str, n: Column, counts: Column | None) -> Column:
    """The field's last value, by number, among the events that have it and may contribute it."""
    has = F.col(name).isNotNull()
    return F.max_by(name, F.when(has if counts is None else has & counts, n)).alias(name)
