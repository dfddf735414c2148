"""The log of runs: one line for each event, on the node that holds the attempt or has decided its end."""

from __future__ import annotations

import pytest
from support.small_cluster import Cluster, asked_for, job

from coordd.core.jobs.job import Job, Retry
from coordd.core.wire import events
from coordd.core.wire.events import Task
from coordd.services.runlog import Line, level_of, line_of

OWN = "a.1"


def told(event: Task, *jobs: Job) -> Line | None:
    return line_of(event, OWN, {one.name: one for one in jobs})


def happened(kind: type[Task], **fields: object) -> Task:
    return kind(uuid="u", name="j", run="j#1", **{"node": OWN, **fields})  # type: ignore[arg-type]  # by the case


@pytest.mark.parametrize(
    ("event", "level", "name"),
    [
        (happened(events.TaskStarted), "info", "run.started"),
        (happened(events.TaskSucceeded), "info", "run.succeeded"),
        (happened(events.TaskFailed), "error", "run.failed"),
        (happened(events.TaskReceived, attempt=1), "warning", "run.retried"),
        (happened(events.TaskRevoked), "info", "run.revoked"),
        (happened(events.TaskRejected, result="missed"), "warning", "run.missed"),
        (happened(events.TaskRejected, result="rejected"), "warning", "run.rejected"),
        (happened(events.TaskRetried, result="lost"), "warning", "run.lost"),
        (happened(events.TaskRetried, result="retry"), "warning", "run.given_back"),
        (happened(events.TaskRetried, node="b.7"), "warning", "run.taken_over"),
        (happened(events.TaskRetried, node="b.7", result="lost"), "error", "run.lost"),
    ],
)
def test_each_happening_has_its_name_and_its_level(event: Task, level: str, name: str) -> None:
    line = told(event, job("j"))
    assert line is not None
    assert (line.level, line.event) == (level, name)
    assert line.fields["run"] == "j#1"


def test_a_line_has_the_fields_that_a_person_filters_by() -> None:
    line = told(happened(events.TaskFailed, attempt=2, exit_code=3, reason="exit code 3", runtime=1.23456))
    assert line is not None
    assert line.fields == {
        "run": "j#1",
        "job": "j",
        "attempt": 2,
        "node": "a",
        "exit_code": 3,
        "reason": "exit code 3",
        "runtime_s": 1.235,
    }


@pytest.mark.parametrize(("attempt", "code", "level"), [(0, 1, "warning"), (0, 9, "error"), (2, 1, "error")])
def test_a_failure_that_is_tried_again_is_a_warning(attempt: int, code: int, level: str) -> None:
    retried = job("j", retry=Retry(attempts=3, never_on_codes=(9,)))
    line = told(happened(events.TaskFailed, attempt=attempt, exit_code=code), retried)
    assert line is not None
    assert line.level == level


def test_a_lost_attempt_that_is_held_for_a_person_is_an_error() -> None:
    line = told(happened(events.TaskRetried, result="lost"), job("j", on_lost="hold"))
    assert line is not None
    assert (line.level, line.event) == ("error", "run.unknown")


def test_what_is_no_event_of_a_run_has_no_line() -> None:
    assert line_of(events.WorkerHeartbeat(), OWN, {}) is None
    assert told(happened(events.TaskReceived)) is None


@pytest.mark.parametrize("notice", ["node.lost", "ledger.lost", "bus.lost", "jobs.differ", "clock.jump_refused"])
def test_what_a_person_should_see_is_a_warning(notice: str) -> None:
    assert level_of(notice) == "warning"
    assert level_of("node.joined") == "info"


# ---- on the nodes


def lines_of(cluster: Cluster, node: str) -> list[tuple[str, str]]:
    """(run, the lines of a node's log about it)"""
    lines = [line_of(event, cluster[node].full_hostname, cluster.jobs) for event in cluster.shells[node].journaled]
    return [(line.fields["run"], line.event) for line in lines if line is not None]


def test_a_run_is_told_by_the_node_that_holds_it_and_a_takeover_by_the_one_that_decides_it() -> None:
    cluster = Cluster("a", "b", jobs=(job(),))
    cluster.trigger("a", asked_for())
    (holder,) = {shell.name for shell in cluster.shells.values() if shell.launches}
    other = "b" if holder == "a" else "a"
    assert lines_of(cluster, holder) == [("sales#1", "run.started")]
    assert lines_of(cluster, other) == []
    cluster.kill(holder)
    cluster.wait(120.0)
    assert lines_of(cluster, other) == [
        ("sales#1", "run.taken_over"),
        ("sales#1", "run.retried"),
        ("sales#1", "run.started"),
    ]


def test_a_run_that_overlap_rejects_is_told_once() -> None:
    cluster = Cluster("a", "b", jobs=(job(overlap="forbid"),))
    for number in (1, 2):
        cluster.trigger("a", asked_for(f"sales#{number}"))
    rejected = [line for name in "ab" for line in lines_of(cluster, name) if line[1] == "run.rejected"]
    assert rejected == [("sales#2", "run.rejected")]


def test_a_run_whose_end_nobody_knows_is_told_by_the_node_that_found_it() -> None:
    cluster = Cluster("a", "b", jobs=(job(on_lost="hold"),))
    cluster.trigger("a", asked_for())
    (holder,) = {shell.name for shell in cluster.shells.values() if shell.launches}
    cluster.kill(holder)
    cluster.wait(120.0)
    assert cluster.state("sales#1") == "unknown"
    noticed = [notice for shell in cluster.shells.values() for notice in shell.notices if notice.event == "run.unknown"]
    assert [notice.fields["run"] for notice in noticed] == ["sales#1"]
