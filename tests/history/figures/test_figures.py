"""The figures of ten days of a cluster, against the same counted in plain Python; expectations on days held back."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from coordd.core.wire.journal_line import encode_line
from coordd.errors import ConfigError
from coordd.history import transforms
from coordd.history.figures import counting, learning
from coordd.history.figures.collecting import collect, limits_of
from coordd.history.figures.learning import JOB_MIN, Learned, Limits, learn
from coordd.history.schema import ATTEMPTS, BREAKERS, NODES, RUNS, TABLES
from history.conftest import Frame, at_rest
from history.weeks import DAY_S, HOUR, MONDAY, RHYTHM, Weeks

DAYS = 10


@pytest.fixture(scope="module")
def weeks() -> Weeks:
    return Weeks(days=DAYS, seed=3)


@pytest.fixture(scope="module")
def tables(lines: Frame, weeks: Weeks) -> tuple[DataFrame, DataFrame]:
    """runs with their launches, and attempts."""
    events = at_rest(transforms.events(transforms.checked(lines(map(encode_line, weeks.records())))))
    attempts = at_rest(transforms.attempts(transforms.granted(events)))
    return at_rest(counting.whole_runs(transforms.runs(events), attempts)), attempts


@pytest.fixture(scope="module")
def learned(tables: tuple[DataFrame, DataFrame]) -> Learned:
    first = int(MONDAY // DAY_S)
    return learn(tables[0], list(range(first, first + DAYS)), RHYTHM)


def of_type(weeks: Weeks, kind: str) -> list[dict[str, Any]]:
    return [record for record in weeks.records() if record["type"] == kind]


def test_runs_by_state_over_time_and_by_job(weeks: Weeks, tables: tuple[DataFrame, DataFrame]) -> None:
    whole, _ = tables
    succeeded = of_type(weeks, "task-succeeded")
    rejected = of_type(weeks, "task-rejected")
    told = counting.over_time(whole, int(DAY_S), MONDAY + DAYS * DAY_S)
    by_state: Counter[str] = Counter()
    for row in told:
        by_state[row["state"]] += row["runs"]
    assert by_state["success"] == len(succeeded)
    assert by_state["rejected"] == len(rejected)
    assert by_state["started"] == 1

    jobs = {row["job"]: row for row in counting.jobs(whole)}
    took = defaultdict(list)
    for record in succeeded:
        took[record["name"]].append(record["runtime"])
    for name, lengths in took.items():
        assert jobs[name]["succeeded"] == len(lengths)
        assert jobs[name]["took"][2] == pytest.approx(statistics.median_low(lengths), rel=0.02)
    assert jobs["nightly-sales"]["delay"][0] > 3.0 > jobs["export"]["delay"][0], "two jobs at 02:00 wait for each other"


def test_takeovers_and_who_ran_what(weeks: Weeks, tables: tuple[DataFrame, DataFrame]) -> None:
    _, attempts = tables
    lost = {record["run"]: record for record in of_type(weeks, "task-retried")}
    over = counting.takeovers(attempts)
    assert counting.taken_over(attempts).count() == len(lost)
    assert {row["run"] for row in over} == set(lost)
    for row in over:
        assert row["from"] != row["hostname"]
        assert row["from"] == lost[row["run"]]["node"].partition(".")[0]
        assert row["gap_s"] == pytest.approx(0.2, abs=0.01)
    placed = counting.placed(attempts, ["compact"])
    begun = Counter(one["hostname"] for one in of_type(weeks, "task-started") if one["name"] == "compact")
    assert {row["hostname"]: row["launches"] for row in placed} == dict(begun)


def test_missed_and_rejected_runs_are_named_by_kind(weeks: Weeks, tables: tuple[DataFrame, DataFrame]) -> None:
    found = counting.trouble(tables[0])
    kinds = {row["kind"]: row["of_kind"] for row in found}
    reasons = Counter(one["reason"].partition(" ")[0] for one in of_type(weeks, "task-rejected"))
    assert kinds == {
        kind: reasons[word]
        for kind, word in (("missed", "no"), ("breaker", "the"), ("overlap", "overlap:"))
        if reasons[word]
    }
    assert {row["delay_s"] for row in found if row["kind"] != "late"} == {None}, "it was never launched"
    assert max(Counter(row["kind"] for row in found).values()) <= counting.TROUBLE_SHOWN


def test_the_hours_of_the_week(weeks: Weeks, tables: tuple[DataFrame, DataFrame]) -> None:
    hours = {(row["weekday"], row["hour"]): row for row in counting.hours(tables[0])}
    assert sum(row["failed"] for row in hours.values()) == len(of_type(weeks, "task-failed"))
    assert hours[0, 2]["starts"] >= 5, "Monday at two: three jobs, on two Mondays"
    assert hours[0, 2]["delay_s"] > 3.0


def test_trends_are_the_latest_runs_in_order(tables: tuple[DataFrame, DataFrame]) -> None:
    trends = counting.trends(tables[0], ["hourly-clicks", "absent"])
    assert trends["absent"] == []
    assert len(trends["hourly-clicks"]) == counting.TREND_LENGTH
    instants = [row["at"] for row in trends["hourly-clicks"]]
    assert instants == sorted(instants)
    assert instants[-1] >= MONDAY + DAYS * DAY_S - 2 * HOUR


def test_expectations_are_measured_on_days_that_they_have_not_seen(weeks: Weeks, learned: Learned) -> None:
    """The same in plain Python, for a job of few runs, whose hours of the week have too few for themselves."""
    assert learned.held_back == 2
    split = MONDAY + (DAYS - learned.held_back) * DAY_S
    begun = {(one["run"], one["token"]): one["timestamp"] for one in of_type(weeks, "task-started")}
    took = [
        (begun[one["run"], one["token"]], one["runtime"])
        for one in of_type(weeks, "task-succeeded")
        if one["name"] == "compact"
    ]
    before = sorted(length for at, length in took if at < split)
    held = [length for at, length in took if at >= split]
    expected = statistics.median_low(before)
    error = learned.errors["compact"]
    assert error["judged"] == len(held)
    assert error["median_error"] == pytest.approx(
        statistics.median_low([abs(length - expected) / expected for length in held]), abs=0.02
    )
    whole = learned.errors[None]
    assert whole["judged"] <= whole["runs"]
    assert whole["median_error"] < 0.2
    assert 0.5 < whole["inside"] < 1.0
    assert learned.quantiles["compact"]["n"] == len(took)
    assert all(row["n"] >= JOB_MIN for row in learned.quantiles.values())


def test_a_run_that_goes_on_has_an_expected_duration(learned: Learned) -> None:
    (alive,) = learned.running
    assert alive["job"] == "compact"
    assert 300 < alive["p10"] < alive["p50"] < alive["p90"] < 700


def test_jobs_that_start_together_and_wait_are_named_once(learned: Learned) -> None:
    pairs = {(row["job"], row["other"]) for row in learned.collisions}
    assert ("nightly-sales", "load-orders") in pairs, "the shorter one can wait"
    assert all((other, job) not in pairs for job, other in pairs)
    assert ("compact", "hourly-clicks") not in pairs, "they start together and wait for nothing"


def test_too_few_days_tell_nothing(tables: tuple[DataFrame, DataFrame]) -> None:
    few = learn(tables[0].where(f"at < {MONDAY + 2 * DAY_S}"), [1, 2], RHYTHM)
    assert (few.held_back, few.errors) == (0, {})
    assert "nightly-sales" not in few.quantiles


def test_limits_come_from_job_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('timeout = "90m"\nexpect_within = "26h"\n[command]\nargv = ["/bin/true"]\n')
    (tmp_path / "b.toml").write_text("")
    assert limits_of(str(tmp_path)) == {"a": Limits(5400.0, 93_600.0), "b": Limits()}
    assert limits_of(None) == {}
    for text, said in (('timeout = "soon"', "expected a duration"), ("timeout = [", "a.toml")):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            limits_of(str(tmp_path))
    with pytest.raises(ConfigError, match="there are no job files"):
        limits_of(str(tmp_path / "absent"))


def launched(run: str, number: int, host: str, began: float, outcome: str | None) -> dict[str, Any]:
    ended = began + 5.0 if outcome else None
    told = {"job": "j", "run": run, "attempt": number, "hostname": host, "started": began, "ended": ended}
    return {**dict.fromkeys(ATTEMPTS), **told, "outcome": outcome, "reason": f"it was {outcome}"}


def of_run(run: str, **seen: Any) -> dict[str, Any]:
    return {**dict.fromkeys(RUNS), "job": "j", "run": run, "state": "success", "fire_at": MONDAY, **seen}


def test_a_retry_a_rerun_and_a_backfill_are_neither_takeovers_nor_late(spark: SparkSession) -> None:
    """Each was counted as taken over where its attempts were on two nodes, and as late by days."""
    ago = 3 * DAY_S
    launches = [
        launched("retried", 0, "a", MONDAY, "failure"), launched("retried", 1, "b", MONDAY + 60, "success"),
        launched("rerun", 0, "a", MONDAY, "success"), launched("rerun", 1, "b", MONDAY + ago, "success"),
        launched("lost", 0, "a", MONDAY, "retry"), launched("lost", 1, "b", MONDAY + 60, "success"),
        launched("same", 0, "a", MONDAY, "retry"), launched("same", 1, "a", MONDAY + 60, "success"),
        launched("silent", 0, "a", MONDAY, None), launched("silent", 1, "b", MONDAY + 60, "success"),
        launched("backfilled", 1, "b", MONDAY + ago, "success"),
        launched("given-back", 1, "b", MONDAY + 90, "success"),
    ]  # fmt: skip
    runs = [of_run(name) for name in ("retried", "rerun", "lost", "same", "silent", "backfilled")]
    runs.append(of_run("given-back", retried=MONDAY + 10))
    attempts = spark.createDataFrame(launches, ", ".join(f"{name} {kind}" for name, kind in ATTEMPTS.items()))
    known = spark.createDataFrame(runs, ", ".join(f"{name} {kind}" for name, kind in RUNS.items()))

    over = {row["run"]: (row["from"], row["hostname"]) for row in counting.takeovers(attempts)}
    assert over == {"lost": ("a", "b"), "same": ("a", "a"), "silent": ("a", "b")}
    assert {row["run"] for row in counting.taken_over(attempts).collect()} == set(over)

    whole = counting.whole_runs(known, attempts)
    delays = {row["run"]: row["delay_s"] for row in whole.collect()}
    assert delays == {**dict.fromkeys(("retried", "rerun", "lost", "same", "silent"), 0.0), "given-back": 90.0} | {
        "backfilled": None
    }
    assert [row["run"] for row in counting.trouble(whole) if row["kind"] == "late"] == ["given-back"]


def test_limits_of_jobs_that_the_page_does_not_show_count(
    spark: SparkSession, tables: tuple[DataFrame, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the jobs with the most runs were warned of, and only the runs that have run the longest."""
    monkeypatch.setattr(counting, "JOBS_SHOWN", 1)
    monkeypatch.setattr(learning, "RUNNING_SHOWN", 0)
    found = {
        name: spark.range(0).selectExpr(*(f"CAST(NULL AS {kind}) AS {column}" for column, kind in columns.items()))
        for name, columns in TABLES.items()
    }
    monkeypatch.setattr(counting, "whole_runs", lambda *_: tables[0])
    limits = {"compact": Limits(timeout_s=60.0), "nightly-sales": Limits(timeout_s=60.0), "absent": Limits(60.0)}
    report = collect({**found, "attempts": tables[1]}.__getitem__, limits)
    assert [row["job"] for row in report.jobs] == ["hourly-clicks"]
    assert {row["job"] for row in report.warnings} == {"compact", "nightly-sales"}
    (running,) = (row for row in report.warnings if row["job"] == "compact")
    assert running["why"].startswith("will probably reach its timeout of 60 s")
    assert (report.learned.running, set(report.learned.quantiles)) == (
        [],
        {"hourly-clicks", "compact", "nightly-sales"},
    )
    assert set(report.learned.errors) <= {None, "hourly-clicks", "compact", "nightly-sales"}


def test_tried_again_counts_launches_after_the_first_one(spark: SparkSession) -> None:
    """Runs that were never launched were taken off: with as many of them as retries there were none."""
    launches = [
        launched("twice", 0, "a", MONDAY, "failure"), launched("twice", 1, "b", MONDAY + 60, "success"),
        launched("once", 0, "a", MONDAY, "success"),
    ]  # fmt: skip
    runs = [of_run("twice"), of_run("once"), of_run("waits", state="pending"), of_run("revoked", state="revoked")]
    attempts = spark.createDataFrame(launches, ", ".join(f"{name} {kind}" for name, kind in ATTEMPTS.items()))
    known = spark.createDataFrame(runs, ", ".join(f"{name} {kind}" for name, kind in RUNS.items()))
    (row,) = counting.jobs(counting.whole_runs(known, attempts))
    assert (row["runs"], row["again"]) == (4, 1)


def test_a_breaker_is_open_until_it_closes_or_its_node_starts_again(spark: SparkSession) -> None:
    told = [
        # A job's: it opens, is tried, opens again, is tried, and closes.
        ("job:sales", "", "open", 0.0, None), ("job:sales", "", "half_open", 60.0, None),
        ("job:sales", "", "open", 65.0, None), ("job:sales", "", "half_open", 185.0, 190.0),
        ("job:load", "", "isolated", 300.0, None),  # by a person, and it is
        ("ledger", "a", "open", 100.0, 130.0), ("ledger", "a", "open", 200.0, None),  # the node died then
        ("ledger", "b", "open", 390.0, None), ("bus", "a", None, 10.0, 20.0),  # its opening is missing
    ]  # fmt: skip
    changes = spark.createDataFrame(
        [
            (
                breaker,
                node,
                breaker.partition(":")[2] or None,
                MONDAY + at,
                state,
                None,
                "x",
                closed and MONDAY + closed,
                [],
            )
            for breaker, node, state, at, closed in told
        ],
        ", ".join(f"{name} {kind}" for name, kind in BREAKERS.items()),
    )
    lives = [{**dict.fromkeys(NODES), "hostname": "a", "online_at": MONDAY + at} for at in (0.0, 240.0, 300.0)]
    nodes = spark.createDataFrame(lives, ", ".join(f"{name} {kind}" for name, kind in NODES.items()))
    found = counting.breakers(changes, nodes, MONDAY + 400.0)
    assert [(row["breaker"], row["hostname"], row["opened"], row["not_closed_s"], row["open"]) for row in found] == [
        ("ledger", "b", 1, 10.0, True),
        ("job:load", "", 0, 100.0, True),
        ("ledger", "a", 2, 70.0, False),
        ("job:sales", "", 2, 190.0, False),
    ]


def test_runs_that_a_breaker_kept_from_running_are_counted(spark: SparkSession) -> None:
    runs = [
        of_run("a", state="rejected", reason="breaker"), of_run("b", state="failure", reason="breaker"),
        of_run("c", state="failure", reason="exit code 1: the circuit breaker of a service"), of_run("d"),
    ]  # fmt: skip
    known = spark.createDataFrame(runs, ", ".join(f"{name} {kind}" for name, kind in RUNS.items()))
    nothing = spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in ATTEMPTS.items()))
    kept = counting.kept_by_breakers(counting.whole_runs(known, nothing))
    assert {row["run"] for row in kept.collect()} == {"a", "b"}
