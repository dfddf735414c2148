"""The findings of the audit, on small histories.

Every history is a job of its own, and Spark audits all of them at once: that is fast, and shows that no job
disturbs another.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest

from coordd.core.wire.journal_line import encode_line
from coordd.history import transforms
from coordd.history.audit import audit
from history.conftest import Frame, at_rest
from history.journals import busy_day


class Told:
    """A history written down event by event; ``run`` is what follows the job's name in the run's id."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, word: str, at: float, node: str, attempt: int, token: int, **more: Any) -> Told:
        self.events.append(
            {
                "type": f"task-{word}",
                "timestamp": at,
                "hostname": node,
                "attempt": attempt,
                "token": token,
                "nonce": f"n{token}",
                "run": "@1",
                **more,
            }
        )
        return self

    def attempt(self, begin: float, end: float | None, node: str, attempt: int, token: int, **more: Any) -> Told:
        self.add("received", begin - 0.1, node, attempt, token, **more)
        self.add("started", begin, node, attempt, token, **more)
        if end is not None:
            self.add("succeeded", end, node, attempt, token, exit_code=0, runtime=end - begin, **more)
        return self

    def records(self, job: str) -> list[dict[str, Any]]:
        return [
            {**event, "run": f"{job}{event['run']}", "uuid": f"{job}{event['run']}", "pid": 1, "clock": number + 1}
            for number, event in enumerate(self.events)
        ]


def killed(begin: float, **more: Any) -> Told:
    """Attempt 0 on a, from 100 to 150, given up by b at 130; attempt 1 on b begins."""
    return Told().attempt(100, 150, "a", 0, 10).add("retried", 130, "b", 0, 10).attempt(begin, 200, "b", 1, 11, **more)


TWICE = ("notice", "succeeded_twice", "@1", 1)

# A history, and all that is to be found in it: (severity, kind, run, attempt).
HISTORIES: dict[str, tuple[Told, list[tuple[str, str, str, int]]]] = {
    "nothing to find": (Told().attempt(100, 150, "a", 0, 10), []),
    "a start told twice": (Told().attempt(100, 150, "a", 0, 10).add("started", 100, "a", 0, 10), []),
    "launched twice, two tokens": (
        Told().attempt(100, 110, "a", 0, 10).attempt(120, 130, "b", 0, 11),
        [("notice", "succeeded_twice", "@1", 0), ("violation", "launched_twice", "@1", 0)],
    ),
    "launched twice, two nonces": (
        Told().attempt(100, 110, "a", 0, 10).add("started", 120, "b", 0, 10, nonce="other"),
        [("violation", "launched_twice", "@1", 0), ("violation", "token_repeated", "@1", 0)],
    ),
    "launched twice, one grant": (
        Told().attempt(100, 110, "a", 0, 10).add("started", 100.5, "b", 0, 10),
        [("violation", "launched_twice", "@1", 0)],
    ),
    "alive together": (killed(140), [TWICE, ("violation", "overlap", "@1", 1)]),
    "alive together by no more than clocks differ": (killed(149.8), [("notice", "overlap", "@1", 1), TWICE]),
    "one after the other": (killed(150), [TWICE]),
    "a short attempt between hides nothing": (
        Told().attempt(100, 300, "a", 0, 10).attempt(240, 245, "b", 1, 11).attempt(250, 260, "c", 2, 12),
        [("notice", "succeeded_twice", "@1", 2), ("violation", "overlap", "@1", 1), ("violation", "overlap", "@1", 2)],
    ),
    "runs of a job may overlap": (
        Told().attempt(100, 200, "a", 0, 10).attempt(110, 190, "b", 0, 11, run="#by-hand"),
        [],
    ),
    "an owner that died silently": (
        Told().attempt(100, None, "a", 0, 10).attempt(170, 200, "b", 1, 11),
        [("notice", "end_unknown", "@1", 0)],
    ),
    "the last attempt may still run": (Told().attempt(100, None, "a", 0, 10), []),
    "a lower token for a later attempt": (
        Told().attempt(100, None, "a", 0, 10).add("retried", 101, "a", 0, 10).attempt(102, 103, "b", 1, 9),
        [("violation", "token_backwards", "@1", 1)],
    ),
    "a lower token for a later run": (
        Told().attempt(100, 150, "a", 0, 104_500_000).attempt(106, 110, "b", 0, 103_000_000, run="@2"),
        [("violation", "token_backwards", "@2", 0)],
    ),
    "a lower token for a later run, which another clock does not hide": (
        Told()
        .attempt(20, 150, "c", 0, 200_000_000, run="@3")
        .attempt(100, 150, "a", 0, 104_500_000)
        .attempt(106, 110, "b", 0, 103_000_000, run="@2"),
        [("notice", "token_backwards", "@1", 0), ("violation", "token_backwards", "@2", 0)],
    ),
    "a node with a clock that is a minute ahead": (
        Told().attempt(160, 165, "a", 0, 100_000_000).attempt(110, 130, "b", 0, 110_000_000, run="@2"),
        [("notice", "token_backwards", "@1", 0)],
    ),
    "a node with a clock that is a minute behind": (
        Told().attempt(100, 150, "a", 0, 100_000_000).attempt(50, 60, "b", 0, 110_000_000, run="@2"),
        [("notice", "token_backwards", "@1", 0)],
    ),
    "grants close together have no certain order": (
        Told().attempt(100, 150, "a", 0, 11).attempt(101, 210, "b", 0, 10, run="@2"),
        [],
    ),
    "one token for two grants": (
        Told().attempt(100, 150, "a", 0, 10).attempt(151, 160, "b", 0, 10, run="@2", nonce="x"),
        [("violation", "token_repeated", "@2", 0)],
    ),
}


# Two launches at one instant, under one token, by two names of the job: written in both orders.
INSTANTS = [
    record
    for run, names in (("instant@1", ("x", "y")), ("instant@2", ("y", "x")))
    for name in names
    for record in Told().add("started", 100, f"edge-{name}", 0, 0, run="", nonce="", name=name).records(run)
]


class Found(NamedTuple):
    of_job: dict[str, list[tuple[str, str, str, int]]]
    details: dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def found(lines: Frame) -> Found:
    records = [record for name, (told, _) in HISTORIES.items() for record in told.records(name)]
    result = Found(defaultdict(list), {})
    records += INSTANTS
    events = at_rest(transforms.events(transforms.checked(lines([encode_line(record) for record in records]))))
    granted = at_rest(transforms.granted(events))
    for row in audit(transforms.grants(granted), transforms.attempts(granted)).collect():
        result.of_job[row.job].append((row.severity, row.kind, row.run.removeprefix(row.job), row.attempt))
        result.details[row.job, row.kind] = row.detail
    return result


@pytest.mark.parametrize("name", HISTORIES)
def test_history(found: Found, name: str) -> None:
    assert sorted(found.of_job[name]) == HISTORIES[name][1]


def test_launches_at_one_instant_have_one_order(found: Found) -> None:
    assert sorted(found.of_job["x"]) == [("notice", "end_unknown", run, 0) for run in ("instant@1", "instant@2")]
    assert found.of_job["y"] == []


def test_details_say_who_and_how_long(found: Found) -> None:
    assert found.details["alive together", "overlap"] == ("attempt 1 on b was alive for 10.000 s beside attempt 0 on a")
    assert found.details["launched twice, two tokens", "launched_twice"] == (
        "launched by a (token 10, nonce n10), b (token 11, nonce n11)"
    )
    assert found.details["launched twice, one grant", "launched_twice"] == (
        "launched by a (token 10, nonce n10), b (token 10, nonce n10)"
    )
    job = "one token for two grants"
    assert found.details[job, "token_repeated"] == f"token 10 was granted to {job}@1/0, {job}@2/0"
    job = "a lower token for a later run"
    assert found.details[job, "token_backwards"] == f"token 103000000 after 104500000 of {job}@1/0"
    job = "a node with a clock that is a minute ahead"
    assert found.details[job, "token_backwards"] == (
        f"token 100000000 after 110000000 of {job}@2/0, by clocks of which one is more than 5 s off the ledger's"
    )


def test_a_busy_day_holds_every_promise(lines: Frame) -> None:
    records = busy_day(seed=9, runs=25).records()
    events = at_rest(transforms.events(transforms.checked(lines([encode_line(record) for record in records]))))
    granted = at_rest(transforms.granted(events))
    rows = audit(transforms.grants(granted), transforms.attempts(granted)).collect()
    assert {(row.severity, row.kind) for row in rows} == {("notice", "end_unknown")}
