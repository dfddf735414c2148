"""A report as the pipeline collects it: two nodes, three jobs, a takeover, a missed run, an outlier."""

from __future__ import annotations

from typing import Any

from coordd.history.figures.learning import Learned
from coordd.history.report import Report

MORNING = 1_790_000_000.0  # 2026-09-21T14:13:20Z, a Monday


def attempt(
    run: str, number: int, node: str, started: float, ended: float | None, outcome: str | None, **more: Any
) -> dict[str, Any]:
    return {
        "run": run,
        "attempt": number,
        "hostname": node,
        "started": started,
        "ended": ended,
        "outcome": outcome,
        "reason": None,
        "exit_code": None,
        **more,
    }


def run(name: str, state: str, **more: Any) -> dict[str, Any]:
    return {"run": name, "uuid": "u", "state": state, "timestamp": MORNING + 200.0, "hostname": "a", **more}


def trend(job: str, count: int) -> list[dict[str, Any]]:
    """Durations around a minute; the tenth took five minutes, the fifth failed, the seventh was taken over."""
    return [
        {
            "job": job,
            "run": f"{job}@{number}",
            "state": "failure" if number == 5 else "success",
            "at": MORNING + 3600 * number,
            "took_s": None if number == 5 else 300.0 if number == 10 else 60.0 + number % 4,
            "delay_s": 0.4,
            "node": "a" if number % 2 else "b",
            "launches": 2 if number == 7 else 1,
            "begun": MORNING + 3600 * number,
            "over": MORNING + 3600 * number + 60,
        }
        for number in range(count)
    ]


def job(name: str, runs: int, **more: Any) -> dict[str, Any]:
    return {
        "job": name,
        "runs": runs,
        "succeeded": runs - 1,
        "failed": 1,
        "rejected": 0,
        "open": 0,
        "again": 1,
        "timed": runs - 1,
        "took": [58.0, 60.0, 61.0, 62.0, 66.0],
        "delay": [0.4, 2.0],
        "first_at": MORNING,
        "last_at": MORNING + 3600 * runs,
        "last_state": "success",
        "succeeded_at": MORNING + 3600 * runs,
        **more,
    }


OVER_TIME: list[dict[str, Any]] = [
    {"at": MORNING - MORNING % 3600 + 3600 * hour, "state": state, "runs": runs}
    for hour in range(12)
    for state, runs in (("success", 5 + hour % 3), ("failure", hour % 4 == 1))
    if runs
]

HOURS: list[dict[str, Any]] = [
    {"weekday": day, "hour": hour, "starts": (day + hour) % 5, "failed": int(hour == 3 and day == 0), "delay_s": 0.5}
    for day in range(2)
    for hour in range(24)
]

TROUBLE: list[dict[str, Any]] = [
    {
        "kind": "missed",
        "job": "load",
        "run": "load@3",
        "at": MORNING,
        "delay_s": None,
        "reason": "no node could launch it within 60 s of its time",
        "of_kind": 1,
    }
]


def handed_over(name: str) -> list[dict[str, Any]]:
    """The takeover of its first run."""
    return [
        {
            "job": name,
            "run": f"{name}@1",
            "attempt": 1,
            "hostname": "b",
            "started": MORNING + 90,
            "from": "a",
            "why": "its lease lapsed; last held by a.1",
            "gave_up_at": MORNING + 90,
            "begun_before": MORNING,
            "gap_s": 0.1,
        }
    ]


def learned(name: str) -> Learned:
    """Of eight days, two of them held back; one job has not enough data."""
    quantiles = {name: {"job": name, "n": 23, "p10": 58.0, "p50": 61.0, "p90": 66.0, "mean": 62.0}}
    error = {"runs": 8, "judged": 7, "median_error": 0.05, "mean_error": 0.08, "inside": 0.857}
    return Learned(
        quantiles=quantiles,
        errors={None: error, name: error},
        running=[
            {"job": "load", "run": "load#2", "node": "b", "last_begun": MORNING, "p10": None, "p50": None, "p90": None},
            {
                "job": name,
                "run": f"{name}@99",
                "node": "a",
                "last_begun": MORNING + 100,
                "p10": 58.0,
                "p50": 61.0,
                "p90": 66.0,
                "by_hour": True,
            },
        ],
        collisions=[{"job": name, "other": "load", "together": 18, "runs": 20, "delay_s": 14.0, "took_s": 610.0}],
        held_back=2,
        days=8,
    )


def breakers(name: str) -> list[dict[str, Any]]:
    return [
        {
            "breaker": f"job:{name}",
            "hostname": "",
            "job": name,
            "opened": 3,
            "not_closed_s": 2700.0,
            "last_at": MORNING + 100,
            "open": True,
            "state": "half_open",
            "reason": f"The breaker of {name} is half-open: {name}@9 tries whether it works again.",
        },
        {
            "breaker": "ledger",
            "hostname": "a",
            "job": None,
            "opened": 1,
            "not_closed_s": 42.0,
            "last_at": MORNING + 50,
            "open": False,
            "state": "open",
            "reason": "no answer within 5 s",
        },
    ]


def sample(name: str = "nightly-sales") -> Report:
    """``name``: of the first job; a test may put markup there."""
    taken = [
        attempt(f"{name}@1", 0, "a", MORNING, MORNING + 90, "retry", reason="its lease lapsed; last held by a.1"),
        attempt(f"{name}@1", 1, "b", MORNING + 90, MORNING + 160, "success", exit_code=0),
    ]
    return Report(
        events=400,
        nodes=["a", "b"],
        states={"success": 60, "failure": 3, "rejected": 1, "started": 1},
        launches={"a": 34, "b": 30},
        takeovers=1,
        severities={"notice": 1},
        findings=[
            {
                "severity": "notice",
                "kind": "end_unknown",
                "run": f"{name}@9",
                "attempt": 0,
                "at": MORNING,
                "detail": "x",
            }
        ],
        runs=[
            run(f"{name}@1", "success", started=MORNING, runtime=70.0, exit_code=0),
            run("load#2", "started", started=MORNING),
        ],
        attempts=[*taken, attempt("load#2", 0, "b", MORNING + 30, None, None)],
        step_s=3600,
        over_time=OVER_TIME,
        jobs=[job(name, 24), job("load", 20, last_state="started"), job("once", 1, timed=0, took=None, succeeded=0)],
        all_jobs=3,
        trends={name: trend(name, 24), "load": trend("load", 20), "once": []},
        placed=[
            {"job": name, "hostname": "a", "launches": 13},
            {"job": name, "hostname": "b", "launches": 12},
            {"job": "load", "hostname": "b", "launches": 20},
        ],
        handed_over=handed_over(name),
        trouble=TROUBLE,
        breakers=breakers(name),
        kept={name: 7},
        hours=HOURS,
        learned=learned(name),
        warnings=[{"job": name, "run": f"{name}@99", "at": MORNING + 160, "why": "may reach its timeout of 60 s"}],
        first_at=MORNING,
        last_at=MORNING + 200,
    )
