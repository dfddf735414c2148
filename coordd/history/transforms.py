"""From journal lines to events, runs and attempts: DataFrame in, DataFrame out, nothing read or written.

The rules are those of coordd.core.wire.merge, with Spark's own functions only: no Python function touches a row. The
result depends neither on the order of the lines nor on repeated lines.
"""

from __future__ import annotations

import re
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.ledger.words import INSTANT_MAX, RECEIVED, RESOLVED, RETRY
from coordd.core.wire.journal_line import TAIL_END, TAIL_LENGTH, TAIL_START
from coordd.core.wire.merge import LIFE, MERGE_RULES, PRECEDENCE, STATE_OF, TASK, life_rank, precedence
from coordd.history.schema import ATTEMPTS, EVENTS, FIELDS, GRANTS, IDENTITY, RUN_FIELDS, RUNS, ddl

# The two kinds of lines.
GOOD, BAD = "events", "corrupt"

# Bytes of journal that one task reads, and what opening a file counts for.
TASK_BYTES = 32 * 1024 * 1024
OPEN_BYTES = 64 * 1024

_UNREADABLE = "_unreadable"
EVENT_SCHEMA = ddl({**IDENTITY, **FIELDS}, f"`{_UNREADABLE}` string")

# Why a line was rejected.
TORN = "torn"  # it has no checksum at its end: cut
GLUED = "glued"  # two lines in one, after a partial one
CHECKSUM = "checksum"  # altered
NOT_AN_EVENT = "not an event"  # intact, but not a node's record

_TAIL = TAIL_START.decode() + "[0-9a-f]{8}" + TAIL_END.decode()


def lines(spark: SparkSession, paths: list[str], **options: str) -> DataFrame:
    """Every line of these files: ``value`` (as it is), ``source`` and ``modified`` (of its file), and ``at``. Only a
    newline ends a line. ``options``: which files Spark takes of a directory.

    ``at`` grows by one from line to line of a file, which is read by one task (see ``whole_files``).
    """
    return (
        spark.read.options(lineSep="\n", **options)
        .text(paths)
        .select(
            "value",
            F.col("_metadata.file_path").alias("source"),
            F.col("_metadata.file_modification_time").alias("modified"),
            F.monotonically_increasing_id().alias("at"),
        )
    )


def _judged(all_lines: DataFrame) -> DataFrame:
    """``problem`` is null for lines that parse to ``event``. Blank lines are left out."""
    # On bytes: characters would have to be counted. The checksum is a member as any other, so the line is parsed whole.
    data = F.col("value").cast("binary")
    length = F.octet_length("value") - TAIL_LENGTH
    body = F.substring(data, F.lit(1), length)
    tail = F.substring(data, length + 1, F.lit(TAIL_LENGTH)).cast("string")
    crc = F.lower(F.lpad(F.hex(F.crc32(body)), 8, "0"))
    intact = (length > 0) & (tail == F.concat(F.lit(TAIL_START.decode()), crc, F.lit(TAIL_END.decode())))
    options = {"columnNameOfCorruptRecord": _UNREADABLE, "allowNonNumericNumbers": "false"}
    event = F.from_json("value", EVENT_SCHEMA, options)
    readable = (
        F.col(f"event.{_UNREADABLE}").isNull()
        & F.col("event.type").isNotNull()
        & F.col("event.hostname").isNotNull()
        & F.col("event.clock").isNotNull()
        & F.col("event.timestamp").between(0.0, INSTANT_MAX)
        & (~F.col("event.type").startswith(TASK) | (F.col("event.uuid") != ""))
    )
    return (
        all_lines.where(F.col("value") != "")
        .select("value", "source", "modified", "at", intact.alias("intact"))
        .select("value", "source", "modified", "at", "intact", F.when(F.col("intact"), event).alias("event"))
        .select(
            F.col("value").alias("line"),
            "source",
            "modified",
            "at",
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


def checked(all_lines: DataFrame) -> DataFrame:
    """Every line with its verdict: the columns of ``events``, ``kind`` and ``date``.

    Blank lines are left out. A rejected line borrows columns, so that one pass over the lines is enough: ``node`` is
    its file, ``reason`` its problem, ``seq`` its place; the others say nothing.
    """
    good = F.col("problem").isNull()
    lent = {"node": "source", "reason": "problem", "seq": "at"}
    rows = _judged(all_lines).select("*", "event.*", F.xxhash64("line").alias("id"))
    columns = _event_columns()
    return rows.select(
        *(
            F.when(good, columns[name]).otherwise(F.col(lent[name])).alias(name)
            if name in lent
            else columns[name].alias(name)
            for name in columns
        ),
        "line",
        F.when(good, GOOD).otherwise(BAD).alias("kind"),
        F.when(good, date_of("timestamp")).otherwise(F.to_date("modified")).alias("date"),
    )


def _event_columns() -> dict[str, Column]:
    """The columns of ``events`` but the line, from those of the schema. An empty text counts as missing."""
    columns = {name: F.col(name) for name in IDENTITY}
    columns["full_hostname"] = F.concat("hostname", F.lit("."), F.coalesce("pid", F.lit(0)).cast("string"))
    columns |= {
        name: F.when(F.col(name) != "", F.col(name)) if kind == "string" else F.col(name)
        for name, kind in FIELDS.items()
    }
    return {**columns, "id": F.col("id")}


def corrupt(checked_lines: DataFrame, all_lines: DataFrame, below: str = "") -> DataFrame:
    """The rejected lines: file, number of the line (from 1), reason, bytes. ``date`` is that of the file's last change.

    ``below``: where the snapshot holds the files; ``source`` says where they were.
    """
    first = all_lines.groupBy("source").agg(F.min("at").alias("first"))
    bad = checked_lines.where(F.col("kind") == BAD)
    return bad.join(first, F.col("node") == F.col("source")).select(
        F.regexp_replace(_decoded("source"), f"^file:/*{re.escape(below)}(?=/)", "").alias("source"),
        (F.col("seq") - F.col("first") + 1).cast("int").alias("line_number"),
        F.col("reason").alias("problem"),
        F.col("line").cast("binary").alias("line"),
        "date",
    )


def _decoded(uri: str) -> Column:
    """A path as it is called: Spark says "%20" for a space. (In a form, which ``url_decode`` is for, "+" is one.)"""
    return F.url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))


def whole_files(spark: SparkSession, largest: int) -> None:
    """Let each file be read by one task, so that lines can be numbered; small files share a task.

    ``largest``: bytes of the largest one.
    """
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(max(TASK_BYTES, largest + 1)))
    spark.conf.set("spark.sql.files.openCostInBytes", str(OPEN_BYTES))
    spark.conf.set("spark.sql.files.minPartitionNum", "1")


def events(checked_lines: DataFrame) -> DataFrame:
    """Every event once. ``id`` is a hash of its line; ``date`` is its day."""
    good = checked_lines.where(F.col("kind") == GOOD)
    return good.dropDuplicates(["id", "clock"]).select(*EVENTS, "date")


def date_of(instant: str) -> Column:
    """The day (UTC) of an instant in Unix seconds, whatever the session's time zone is."""
    return F.date_from_unix_date(F.floor(F.col(instant) / 86_400).cast("int"))


def runs(all_events: DataFrame) -> DataFrame:
    """One row per run: its state by precedence, its fields by the merge rules.

    The events of a run are few: they meet in one array, in their order. A ``retry`` opens a new segment, and so does
    the first event of each attempt. The state is the one of highest precedence in the last segment (its latest event,
    where several share the rank), and each field is its last value. Only a late ``received`` needs the earlier events:
    it contributes some fields alone.
    """
    kind = F.col("type")
    order = {
        "a": F.coalesce("attempt", F.lit(0)),
        "b": F.coalesce("token", F.lit(0)),
        "clock": F.col("clock"),
        "timestamp": F.col("timestamp"),
        "e": F.col("full_hostname"),
        "f": _life_rank(kind),
        "type": kind,
        "g": F.coalesce("incarnation", F.lit("")),
        "h": F.col("id"),
    }
    more = [name for name in RUN_FIELDS if name not in order]
    event = F.struct(
        *(column.alias(name) for name, column in order.items()), _weight(_state(kind)).alias("weight"), *more
    )
    words = {word: word.removeprefix(TASK) for word in LIFE}
    return (
        all_events.where(kind.startswith(TASK))
        .select("uuid", event.alias("event"))
        .groupBy("uuid")
        .agg(F.array_sort(F.collect_list("event")).alias("told"))
        .withColumn("full", F.filter("told", _is_in_time))
        .withColumn("stands", _standing("told"))
        .select(
            "uuid",
            _state(F.col("stands.type")).alias("state"),
            F.col("stands.timestamp").alias("timestamp"),
            *(_last(name).alias(name) for name in RUN_FIELDS),
            *(_last_of_type(word).alias(name) for word, name in words.items()),
            F.size("told").cast("bigint").alias("events"),
            F.array_min("told.timestamp").alias("first_at"),
        )
        .withColumn("job", job_of())
        .select(*RUNS, date_of("first_at").alias("date"))
    )


def _standing(told: str) -> Column:
    """The event that gives the run its state."""
    before = {"attempt": F.lit(0).cast("bigint"), "weight": F.lit(_NOTHING), "type": F.lit(""), "timestamp": F.lit(0.0)}
    nothing = F.struct(*(column.alias(name) for name, column in before.items()))

    def step(so_far: Column, event: Column) -> Column:
        opens = (event.a > so_far.attempt) | (event.weight == _RETRIES)
        counts = opens | (event.weight >= so_far.weight)
        this = F.struct(event.a.alias("attempt"), event.weight, event.type, event.timestamp)
        return F.when(counts, this).otherwise(so_far)

    return F.aggregate(told, nothing, step)


def _is_in_time(event: Column, index: Column) -> Column:
    """False for a ``received`` after an event of higher precedence of its attempt, with no ``retry`` between."""

    def highest(so_far: Column, one: Column) -> Column:
        return F.when(one.weight == _RETRIES, _RETRIES).otherwise(F.greatest(so_far, one.weight))

    before = F.filter(F.slice("told", F.lit(1), index), lambda one: one.a == event.a)
    late = F.aggregate(before, F.lit(_NOTHING), highest) > event.weight
    return ~((event.type == "task-received") & late)


def _last(name: str) -> Column:
    """The last value of a field among the events that have it and may contribute it."""
    events = "told" if name in MERGE_RULES[RECEIVED] else "full"
    values = F.col(f"{events}.{name}")
    return F.try_element_at(F.filter(values, lambda value: value.isNotNull()), F.lit(-1))


def _last_of_type(word: str) -> Column:
    told = F.filter("told", lambda event: event.type == word)
    return F.try_element_at(told, F.lit(-1)).timestamp


def job_of() -> Column:
    """The job of an event or a run: its name, else what its run's id says."""
    return F.coalesce("name", F.regexp_extract("run", "^[^#@]*", 0))


def granted(all_events: DataFrame) -> DataFrame:
    """One row per grant (job, run, attempt, token, nonce) that events name: ``GRANTS``, launched or not.

    ``hostname`` is the node that started it, and ``hosts`` are all that did: more than one never should. The end is the
    program's exit, at its earliest report (``started`` + ``runtime`` if that is earlier: a report may wait for its
    daemon). Without a known exit, it is when the attempt was first given up, or null. All events of an attempt are few:
    they meet in one array, and are sorted out there.
    """
    kind = F.col("type")
    told = F.struct(
        "type",
        "hostname",
        "clock",
        "timestamp",
        "full_hostname",
        "application_id",
        "runtime",
        "exit_code",
        "reason",
        job_of().alias("job"),
        F.coalesce("token", F.lit(0)).alias("token"),
        F.coalesce("nonce", F.lit("")).alias("nonce"),
    )
    return (
        all_events.where(kind.startswith(TASK) & F.col("run").isNotNull())
        .select("run", F.coalesce("attempt", F.lit(0)).alias("attempt"), told.alias("told"))
        .groupBy("run", "attempt")
        .agg(F.collect_list("told").alias("told"))
        .select("run", "attempt", "told", F.explode(_grants(F.col("told"))).alias("grant"))
        .select("run", "attempt", "grant.*", _of_grant().alias("own"), _ends().alias("ends"))
        .withColumn("launch", F.array_min(F.transform(F.filter("own", _is_start), _first)))
        .withColumn("started", F.col("launch.timestamp"))
        .select(
            "job",
            "run",
            "attempt",
            "token",
            "nonce",
            "launch.hostname",
            F.array_sort(F.array_distinct(F.filter("own", _is_start).hostname)).alias("hosts"),
            F.array_min("own.timestamp").alias("granted"),
            "started",
            F.coalesce(F.array_min(_exits()), F.array_min("ends.timestamp")).alias("ended"),
            F.array_max(F.transform("ends", _weighed)).alias("told"),
            F.array_max("ends.exit_code").alias("exit_code"),
            F.array_max("ends.application_id").alias("application_id"),
        )
        .withColumn("ended", F.when(F.col("ended").isNotNull(), F.greatest("ended", "started")))
        .withColumn("outcome", _state(F.col("told.type")))
        .withColumn("reason", F.col("told.reason"))
        .select(*ATTEMPTS)
    )


def attempts(all_grants: DataFrame) -> DataFrame:
    """One row per launch: the grants that were started."""
    return all_grants.where(F.col("started").isNotNull()).select(*ATTEMPTS, date_of("started").alias("date"))


def grants(all_grants: DataFrame) -> DataFrame:
    """One row per fencing token and what it was for; also where nothing was launched."""
    return all_grants.where(F.col("token") > 0).select(*GRANTS, date_of("granted").alias("date"))


def _grants(told: Column) -> Column:
    named = F.filter(told, lambda one: (one.token > 0) | _is_start(one))
    return F.array_distinct(F.transform(named, lambda one: F.struct(one.job, one.token, one.nonce)))


def _of_grant() -> Column:
    own, of = F.col("told"), F.col("grant")
    return F.filter(own, lambda one: (one.job == of.job) & (one.token == of.token) & (one.nonce == of.nonce))


def _ends() -> Column:
    """An end without a token or a nonce comes from a node that did not know the grant: it counts for all."""
    of = F.col("grant")
    return F.filter(
        F.col("told"),
        lambda one: (
            one.type.isin(*ENDS)
            & ((one.token == 0) | (one.token == of.token))
            & ((one.nonce == "") | (one.nonce == of.nonce))
        ),
    )


def _exits() -> Column:
    """When the program exited, by each report of it, not by a person who resolves it later. least() ignores nulls: no
    runtime, then the report's own time.
    """

    def tells(one: Column) -> Column:
        resolved = F.coalesce(one.reason.startswith(RESOLVED), F.lit(False))
        return one.exit_code.isNotNull() | ((one.type == "task-succeeded") & ~resolved)

    exited = F.filter("ends", tells)
    return F.transform(exited, lambda one: F.least(one.timestamp, F.col("started") + one.runtime))


def _is_start(one: Column) -> Column:
    return one.type == "task-started"


def _first(one: Column) -> Column:
    return F.struct(one.clock, one.timestamp, one.full_hostname, one.hostname)


def _weighed(one: Column) -> Column:
    return F.struct(_weight(_state(one.type)).alias("weight"), one.timestamp, one.type, one.reason)


# The weights (see ``_weight``) of ``retry``, which is the lowest, and of nothing at all.
_RETRIES = -len(PRECEDENCE)
_NOTHING = _RETRIES - 1

# The events that end an attempt.
ENDS = ("task-succeeded", "task-failed", "task-revoked", "task-retried")


def _state(kind: Column) -> Column:
    """core.wire.merge.state_of, as a column."""
    named = F.create_map(*(F.lit(text) for pair in STATE_OF.items() for text in pair))
    return F.coalesce(F.try_element_at(named, kind), F.regexp_replace(kind, f"^{TASK}", ""))


def _weight(state: Column) -> Column:
    """core.wire.merge.precedence, inverted: more counts more; retry opens a segment, so it has the lowest weight."""
    ranks = [(name, -precedence(name)) for name in PRECEDENCE if name not in (None, RETRY)]
    ranks.append((RETRY, _RETRIES))
    return _lookup(state, ranks, -precedence("a state of its own"))


def _life_rank(kind: Column) -> Column:
    """core.wire.merge.life_rank, as a column."""
    return _lookup(kind, [(word, life_rank(word)) for word in LIFE], life_rank("unknown"))


def _lookup(column: Column, pairs: list[tuple[str, int]], otherwise: int) -> Column:
    (first, value), *rest = pairs
    chain = F.when(column == first, value)
    return reduce(lambda so_far, pair: so_far.when(column == pair[0], pair[1]), rest, chain).otherwise(otherwise)
