"""Checks the safety properties against the journals: launches, overlaps, tokens.

Each audit takes the grants or the attempts and returns findings (``FINDING``). A *violation* breaks a promise. A
*notice* needs a person's look and may be harmless: the clocks of two machines differ, and an event is journalled a
moment after it happened.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.history.proof.judge import BY_CLOCKS, GRANT_ORDER_S
from coordd.history.schema import LAUNCH_ORDER
from coordd.history.transforms import date_of

FINDING = ("kind", "severity", "job", "run", "attempt", "at", "detail")

VIOLATION = "violation"
NOTICE = "notice"

LAUNCHED_TWICE = "launched_twice"
OVERLAP = "overlap"
END_UNKNOWN = "end_unknown"
SUCCEEDED_TWICE = "succeeded_twice"
TOKEN_REPEATED = "token_repeated"  # noqa: S105 - a kind of finding, no secret
TOKEN_BACKWARDS = "token_backwards"  # noqa: S105 - the same

# A shorter overlap (seconds) may be the difference of two machines' clocks (NTP keeps it in milliseconds) and the delay
# of journal lines.
CLOCK_SKEW_S = 0.5

GRANT_ORDER_US = int(GRANT_ORDER_S * 1e6)


def audit(all_grants: DataFrame, all_attempts: DataFrame, clock_skew_s: float = CLOCK_SKEW_S) -> DataFrame:
    """All findings. Of ``all_attempts``, those of ``several`` are enough."""
    if all_attempts.isEmpty():  # as it is mostly: then four queries are saved
        return tokens(all_grants).withColumn("date", date_of("at"))
    return findings(all_grants, all_attempts, clock_skew_s)


def findings(all_grants: DataFrame, all_attempts: DataFrame, clock_skew_s: float = CLOCK_SKEW_S) -> DataFrame:
    """The same, without a look at any row: a declared table must not run a query."""
    found = (
        launched_twice(all_attempts),
        overlaps(all_attempts, clock_skew_s),
        ends_unknown(all_attempts),
        succeeded_twice(all_attempts),
    )
    return reduce(DataFrame.unionByName, found, tokens(all_grants)).withColumn("date", date_of("at"))


def several(all_attempts: DataFrame) -> DataFrame:
    """The attempts of runs that were launched more than once: a finding about attempts needs two of a run."""
    again = all_attempts.groupBy("run").agg(F.sum(F.size(_hosts())).alias("n")).where(F.col("n") > 1).select("run")
    return all_attempts.join(again, "run", "left_semi")


def launched_twice(all_attempts: DataFrame) -> DataFrame:
    """One (run, attempt) was started under two grants, or one grant on two nodes: S1 is broken."""
    return (
        all_attempts.select("job", "run", "attempt", "started", _grant().alias("grant"), _hosts().alias("hosts"))
        .withColumn("who", F.transform("hosts", lambda host: F.concat_ws(" ", host, "grant")))
        .groupBy("job", "run", "attempt")
        .agg(
            F.max("started").alias("at"),
            F.sum(F.size("who")).alias("launches"),
            F.array_join(F.sort_array(F.flatten(F.collect_list("who"))), ", ").alias("by"),
        )
        .where(F.col("launches") > 1)
        .select(*_finding(LAUNCHED_TWICE, VIOLATION, F.concat(F.lit("launched by "), F.col("by"))))
    )


def overlaps(all_attempts: DataFrame, clock_skew_s: float = CLOCK_SKEW_S) -> DataFrame:
    """An attempt started before an earlier launch of its run had ended: S2 is broken."""
    earlier = Window.partitionBy("run").orderBy(*LAUNCH_ORDER).rowsBetween(Window.unboundedPreceding, -1)
    overlap_s = F.least("ended", "earlier.ended") - F.col("started")
    detail = F.format_string(
        "attempt %d on %s was alive for %.3f s beside attempt %d on %s",
        "attempt",
        "hostname",
        "overlap_s",
        F.col("earlier.attempt"),
        F.col("earlier.hostname"),
    )
    return (
        all_attempts.select("job", "run", "attempt", "token", "nonce", "hostname", "started", "ended")
        # The latest end among earlier starts: if any overlaps, this one does.
        .withColumn("earlier", F.max(F.struct("ended", "attempt", "hostname")).over(earlier))
        .where(F.col("started") < F.col("earlier.ended"))
        .withColumn("overlap_s", overlap_s)
        .withColumn("at", F.col("started"))
        .select(*_finding(OVERLAP, F.when(F.col("overlap_s") > clock_skew_s, VIOLATION).otherwise(NOTICE), detail))
    )


def ends_unknown(all_attempts: DataFrame) -> DataFrame:
    """Another attempt was launched, and no journal says when this one ended: an overlap can be neither shown nor
    excluded.
    """
    later = Window.partitionBy("run").orderBy(*LAUNCH_ORDER)
    return (
        all_attempts.select("job", "run", "attempt", "token", "nonce", "hostname", "started", "ended")
        .withColumn("next", F.lead("hostname").over(later))
        .where(F.col("ended").isNull() & F.col("next").isNotNull())
        .withColumn("at", F.col("started"))
        .select(
            *_finding(
                END_UNKNOWN,
                NOTICE,
                F.concat(
                    F.lit("no journal tells how it ended on "),
                    "hostname",
                    F.lit(", and "),
                    "next",
                    F.lit(" launched after it"),
                ),
            )
        )
    )


def succeeded_twice(all_attempts: DataFrame) -> DataFrame:
    """Two launches of a run succeeded: a success that could not be reported is retried, and people must know."""
    return (
        all_attempts.select("job", "run", "attempt", "outcome", "ended", "hostname")
        .where(F.col("outcome") == "success")
        .groupBy("job", "run")
        .agg(
            F.max("attempt").alias("attempt"),
            F.max("ended").alias("at"),
            F.count(F.lit(1)).alias("successes"),
            F.array_join(F.sort_array(F.collect_set("hostname")), ", ").alias("on"),
        )
        .where(F.col("successes") > 1)
        .select(*_finding(SUCCEEDED_TWICE, NOTICE, F.format_string("%d launches succeeded, on %s", "successes", "on")))
    )


def tokens(all_grants: DataFrame) -> DataFrame:
    """A job's fencing tokens must strictly increase (S3), as far as journals show their order.

    Certain violations: one token for two grants; a later attempt of the same run with a lower token. Between runs, time
    gives the order, and only grants further apart than GRANT_ORDER_S are compared. If the clock of one of the two
    differs more from the ledger's, as its token has it, it is a notice.
    """
    grants = all_grants.withColumn("at", F.col("granted"))
    return _repeated(grants).unionByName(_backwards(grants))


def _repeated(grants: DataFrame) -> DataFrame:
    """One token for two grants."""
    # As a rule there are none. (A declared table must not look at any schema: ``drop`` would.)
    numbered = grants.groupBy("job", "token").agg(F.count(F.lit(1)).alias("grants"))
    again = numbered.where(F.col("grants") > 1).select("job", "token")
    return (
        grants.join(again, ["job", "token"], "left_semi")
        .groupBy("job", "token")
        .agg(
            F.count(F.lit(1)).alias("grants"),
            F.max("at").alias("at"),
            F.max(F.struct("at", "run", "attempt")).alias("of"),
            F.array_join(F.sort_array(F.collect_list(F.format_string("%s/%d", "run", "attempt"))), ", ").alias("who"),
        )
        .where(F.col("grants") > 1)
        .select(
            "job",
            "at",
            "of.run",
            "of.attempt",
            F.format_string("token %d was granted to %s", "token", "who").alias("why"),
        )
        .select(*_finding(TOKEN_REPEATED, VIOLATION, F.col("why")))
    )


def _backwards(grants: DataFrame) -> DataFrame:
    """A lower token after a higher one, for the same run, or for the same job and long enough ago."""
    in_run = Window.partitionBy("job", "run").orderBy("attempt").rangeBetween(Window.unboundedPreceding, -1)
    micros = (F.col("at") * 1_000_000).cast("bigint")
    in_job = Window.partitionBy("job").orderBy(micros).rangeBetween(Window.unboundedPreceding, -GRANT_ORDER_US)
    highest = F.struct("token", "run", "attempt")
    in_time = F.abs(micros - F.col("token")) <= GRANT_ORDER_US
    sure = F.when(F.col("in_run.token") > F.col("token"), F.col("in_run")).when(
        F.col("in_time") & (F.col("timed.token") > F.col("token")), F.col("timed")
    )
    detail = F.format_string(
        "token %d after %d of %s/%d%s",
        "token",
        F.col("above.token"),
        F.col("above.run"),
        F.col("above.attempt"),
        F.when(F.col("sure").isNull(), BY_CLOCKS).otherwise(""),
    )
    return (
        grants.withColumn("in_time", in_time)
        .withColumn("in_run", F.max(highest).over(in_run))
        .withColumn("in_job", F.max(highest).over(in_job))
        .withColumn("timed", F.max(F.when(F.col("in_time"), highest)).over(in_job))
        .withColumn("sure", sure)
        .withColumn("above", F.coalesce("sure", "in_job"))
        .where(F.col("above.token") > F.col("token"))
        .select(*_finding(TOKEN_BACKWARDS, F.when(F.col("sure").isNull(), NOTICE).otherwise(VIOLATION), detail))
    )


def _hosts() -> Column:
    """The nodes that started it. Rows of before have only the first."""
    return F.coalesce("hosts", F.array("hostname"))


def _grant() -> Column:
    return F.format_string("(token %d, nonce %s)", "token", "nonce")


def _finding(kind: str, severity: str | Column, detail: Column) -> list[Column]:
    """The columns of FINDING; job, run, attempt and at are taken from the row."""
    said = F.lit(severity) if isinstance(severity, str) else severity
    given = {"kind": F.lit(kind), "severity": said, "detail": detail}
    return [given[name].alias(name) if name in given else F.col(name) for name in FINDING]
