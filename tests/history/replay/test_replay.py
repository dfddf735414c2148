"""Incidents written by hand, and what the rules say of them. tests/system/test_replay.py has a real one."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordd.cli.coordd import program
from coordd.core.election import rendezvous
from coordd.core.jobs.job import iso
from coordd.core.wire.journal_line import encode_line
from coordd.errors import UnavailableError
from coordd.history.replay.replay import Replayed, replay
from history.journals import DAY, busy_day

RUN = "job#1"
POLICY = "relaunch forbid 2 5 30.0 fixed 3600.0"


class Tale:
    """Records of a run, a second apart, one Lamport clock for all."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, kind: str, at: float, host: str, attempt: int = 0, granted: float = 0.0, **more: Any) -> Tale:
        """``at``: seconds since DAY; ``granted``: when the attempt was granted, which is its token."""
        node = more.pop("node", host)
        record = {
            "type": kind,
            "hostname": host,
            "pid": 1,
            "clock": len(self.records) + 1,
            "timestamp": DAY + at,
            "uuid": "u",
            "run": RUN,
            "name": "job",
            "attempt": attempt,
            "fire_at": DAY,
            "digest": "d1",
            "policy": POLICY,
            "lease": 10.0,
        }
        if granted:
            record.update(token=int((DAY + granted) * 1e6), nonce=f"n{granted}", node=f"{node}.1")
        self.records.append({**record, **more})
        return self

    def attempt(self, at: float, host: str, attempt: int = 0, **more: Any) -> Tale:
        """Granted at that second, started half a second later."""
        self.add("task-received", at, host, attempt, at, **more)
        return self.add("task-started", at + 0.5, host, attempt, at, **more)

    def act(self, at: float, method: str, subject: str, **more: Any) -> Tale:
        """What a person asked for, in the audit of node a."""
        return self.add("control", at, "a", run="", method=method, subject=subject, by="ann", **more)

    def succeed(self, at: float, host: str, attempt: int, **more: Any) -> Tale:
        """One attempt, from grant to success."""
        self.attempt(at, host, attempt, **more)
        return self.add("task-succeeded", at + 2, host, attempt, at, exit_code=0, result="success", **more)

    def play(self, path: Path) -> Replayed:
        """Each node's records in a journal of its own."""
        write(path, self.records)
        return replay([str(path)], RUN)


def write(path: Path, records: list[dict[str, Any]]) -> None:
    for host in {str(record["hostname"]) for record in records}:
        (path / host).mkdir(parents=True, exist_ok=True)
        lines = [encode_line(record) for record in records if record["hostname"] == host]
        (path / host / "current.jsonl").write_bytes(b"".join(lines))


def kinds(replayed: Replayed) -> list[str]:
    return [step.difference for step in replayed.steps if step.difference]


def test_a_failure_is_tried_again_after_its_pause_and_not_before(tmp_path: Path) -> None:
    for wait, expected in ((31.0, []), (5.0, ["grant"])):
        tale = Tale().attempt(1, "a").add("task-failed", 3, "a", 0, 1, exit_code=1, result="failure", reason="exit 1")
        replayed = tale.attempt(3 + wait, "b", 1).play(tmp_path / str(wait))
        assert kinds(replayed) == expected
    assert replayed.steps[3].rules == "early: in 20.0 s"


def test_a_third_attempt_that_the_policy_does_not_allow_differs(tmp_path: Path) -> None:
    tale = Tale()
    for attempt, at in enumerate((1.0, 40.0, 80.0)):
        tale.attempt(at, "a", attempt)
        tale.add("task-failed", at + 2, "a", attempt, at, exit_code=1, result="failure", reason="exit 1")

    replayed = tale.play(tmp_path)
    assert kinds(replayed) == ["grant"]
    assert replayed.steps[6].rules.startswith("finished: failure")


def test_a_report_that_comes_after_the_takeover_is_refused_and_no_difference(tmp_path: Path) -> None:
    tale = Tale().attempt(1, "a")
    tale.add("task-succeeded", 30, "a", 0, 1, exit_code=0, runtime=3.0, result="success")  # a was cut off: a low clock
    tale.add("task-retried", 20, "b", 0, 1, node="a", reason="its lease lapsed; last held by a.1")
    tale.attempt(21, "b", 1).add("task-succeeded", 25, "b", 1, 21, exit_code=0, result="success")

    replayed = tale.play(tmp_path)
    assert replayed.differences == []
    assert [step.record.at - DAY for step in replayed.steps] == [1, 1.5, 20, 21, 21.5, 25, 30]
    assert replayed.steps[-1].rules.startswith("refused, stale: the ledger has given this attempt up")


def test_two_attempts_alive_together_are_named_with_their_lines(tmp_path: Path) -> None:
    tale = Tale().attempt(1, "a")
    tale.add("task-retried", 20, "b", 0, 1, node="a", reason="its lease lapsed; last held by a.1").attempt(21, "b", 1)
    tale.add("task-succeeded", 30, "a", 0, 1, exit_code=0, runtime=28.0, result="success")

    (overlap,) = [one for one in tale.play(tmp_path).differences if one.startswith("overlap: ")]
    assert "current.jsonl:" in overlap


def test_tokens_that_do_not_rise_differ(tmp_path: Path) -> None:
    tale = Tale().attempt(50, "a").add("task-retried", 52, "a", 0, 50, result="retry", reason="never started")
    assert kinds(tale.attempt(20, "b", 1).play(tmp_path)) == ["token"]


def test_a_grant_despite_another_run_differs_and_one_whose_end_is_not_here_does_not(tmp_path: Path) -> None:
    other = Tale().attempt(1, "a").records
    for record in other:
        record.update(run="job#0", uuid="v")
    for name, more in (
        ("ends", [{**other[1], "type": "task-succeeded", "timestamp": DAY + 90, "exit_code": 0}]),
        ("", []),
    ):
        tale = Tale().attempt(60, "b")
        for number, record in enumerate([*other, *tale.records, *more]):
            record["clock"] = number
        tale.records = [*other, *tale.records, *more]
        if more:
            tale.add("task-succeeded", 95, "b", 0, 60, exit_code=0, result="success")
        replayed = tale.play(tmp_path / f"with {name}")
        if more:
            assert kinds(replayed) == ["grant"]
            assert "rejected, overlap: job#0 is started on a" in replayed.steps[0].rules
        else:
            assert kinds(replayed) == []
            assert replayed.steps[0].assumed == "no journal tells how job#0 ended"


@pytest.mark.parametrize("definition", ["d1", "d2"])
def test_a_run_that_a_person_runs_once_more_is_no_difference(definition: str, tmp_path: Path) -> None:
    tale = Tale().succeed(1, "a", 0).act(5, "run.rerun", f"{RUN}/0: wrong day, then other#1", outcome="done")
    replayed = tale.succeed(6, "b", 1, digest=definition).play(tmp_path)

    assert replayed.differences == []
    assert replayed.steps[3].rules == "ok; taken: attempt 1 may start"
    assert kinds(Tale().succeed(1, "a", 0).succeed(6, "b", 1).play(tmp_path / "nobody asked")) == ["grant"]


def test_a_run_that_is_run_once_more_has_all_its_tries_again(tmp_path: Path) -> None:
    tale = Tale()
    for attempt, at in enumerate((1.0, 40.0, 80.0, 120.0)):
        if attempt == 2:
            tale.act(79, "run.rerun", f"{RUN}/1")
        tale.attempt(at, "a", attempt)
        tale.add("task-failed", at + 2, "a", attempt, at, exit_code=1, result="failure", reason="exit 1")

    assert tale.play(tmp_path).differences == []


@pytest.mark.parametrize("note", ["", ": until 2030-01-01T00:00:00Z"])
def test_a_suspension_ends_by_itself(note: str, tmp_path: Path) -> None:
    for granted, expected in ((20.0, []), (8.0, ["grant", "gate"])):
        tale = Tale().act(1, "job.suspend", f"job until {iso(DAY + 10.25)}{note}").add("task-sent", 2, "a")
        assert kinds(tale.succeed(granted, "a", 0).play(tmp_path / str(granted))) == expected


def test_a_suspension_without_an_end_lasts(tmp_path: Path) -> None:
    tale = Tale().act(1, "job.suspend", "job: until 2026-09-21T14:14:00Z").add("task-sent", 2, "a")
    assert kinds(tale.succeed(500, "a", 0).play(tmp_path)) == ["grant", "gate"]


def test_a_suspension_of_all_jobs_is_not_one_of_a_job_that_is_called_all(tmp_path: Path) -> None:
    tale = Tale().act(1, "job.suspend", "all jobs").add("task-sent", 2, "a").succeed(20, "a", 0)
    for record in tale.records[1:]:
        record.update(run="all#1", name="all")
    write(tmp_path, tale.records)
    assert replay([str(tmp_path)], "all#1").differences == []


@pytest.mark.parametrize("method", ["run.revoke", "run.cancel"])
def test_a_run_that_a_person_ends_while_it_waits_is_revoked(method: str, tmp_path: Path) -> None:
    """Nobody holds the run: the node that the person asked writes its end (an older version, none)."""
    tale = Tale().add("task-sent", 1, "a").act(5, method, f"{RUN}: not wanted", outcome="done")
    replayed = tale.play(tmp_path / "pending")
    assert (replayed.recorded, replayed.differences) == ("revoked", [])

    replayed = tale.add("task-revoked", 5, "a", reason="revoked by ann").play(tmp_path / "told")
    assert (replayed.recorded, replayed.differences) == ("revoked", [])

    tale = Tale().attempt(1, "a").add("task-retried", 3, "a", 0, 1, result="retry", reason="exit 1")
    assert tale.act(5, method, RUN).play(tmp_path / "retry").recorded == "revoked"

    tale = Tale().add("task-sent", 1, "a").act(5, method, RUN, outcome="refused")
    assert tale.play(tmp_path / "refused").recorded == "pending"


@pytest.mark.parametrize(
    ("kind", "way", "state"), [("task-succeeded", "success", "success"), ("task-failed", "failed", "failure")]
)
def test_a_run_that_a_person_resolves_ends_as_the_person_says(kind: str, way: str, state: str, tmp_path: Path) -> None:
    tale = Tale().attempt(1, "a").act(90, "run.resolve", RUN, outcome="done")
    replayed = tale.add(kind, 90, "b", 0, 1, node="a", reason=f"resolved as {way} by ann").play(tmp_path)
    assert (replayed.recorded, replayed.differences) == (state, [])


def test_a_cancellation_of_an_attempt_that_runs_ends_nothing_yet(tmp_path: Path) -> None:
    assert Tale().attempt(1, "a").act(5, "run.cancel", RUN).play(tmp_path).recorded == "started"


DAILY = f"job@{iso(DAY)}"


def backfilled(redo: str, begin: float = -60.0, end: float = 60.0) -> str:
    return f"job p1: {iso(DAY + begin)} to {iso(DAY + end)}, 1 runs, oldest first, at most 1, redo {redo}"


def daily(tale: Tale, path: Path) -> Replayed:
    """As a run of the schedule."""
    for record in tale.records:
        if record["run"]:
            record["run"] = DAILY
    write(path, tale.records)
    return replay([str(path)], DAILY)


def test_a_run_that_a_backfill_opens_begins_with_attempt_1(tmp_path: Path) -> None:
    tale = Tale().add("election-decided", 0, "a", stamps={"b.1": [0, 1], "c.1": [0, 2]}, succession=["b.1", "c.1"])
    tale.add("worker-online", 1, "c", run="")  # it writes nothing about the run
    replayed = daily(tale.act(90, "job.backfill", backfilled("none")).succeed(100, "b", 1), tmp_path)

    assert (replayed.differences, replayed.findings) == ([], [])
    (granted,) = [step for step in replayed.steps if step.record.kind == "task-received"]
    assert granted.said.endswith("opened by backfill p1 by ann")
    assert granted.assumed == ""


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (backfilled("all"), []),
        (backfilled("failed"), ["grant"]),
        (backfilled("none"), ["grant"]),
        (backfilled("all", end=0.0), ["grant"]),
        ("job p1: cancelled", ["grant"]),
        (backfilled("all").replace("job", "job2"), ["grant"]),
    ],
)
def test_a_backfill_runs_once_more_what_it_names(subject: str, expected: list[str], tmp_path: Path) -> None:
    tale = Tale().succeed(1, "a", 0).act(90, "job.backfill", subject).succeed(100, "b", 1)
    assert kinds(daily(tale, tmp_path)) == expected


def test_a_backfill_runs_what_was_rejected(tmp_path: Path) -> None:
    tale = Tale().succeed(1, "a", 0)
    for record in tale.records:
        record.update(run="job#0", uuid="v")
    ended = tale.records.pop()
    tale.add("task-rejected", 2, "b", node="", reason="overlap: job#0 is started on a")
    tale.records.append({**ended, "clock": 4})
    tale.act(90, "job.backfill", backfilled("none")).succeed(100, "b", 1)
    for record in tale.records:
        record["run"] = DAILY if record["run"] == RUN else record["run"]
    write(tmp_path, tale.records)

    replayed = replay([str(tmp_path)], DAILY)
    assert replayed.steps[0].rules.startswith("finished: rejected, overlap: job#0")
    assert (replayed.differences, replayed.findings) == ([], [])


def test_a_backfill_opens_a_run_once_and_only_when_it_has_ended(tmp_path: Path) -> None:
    tale = Tale().succeed(1, "a", 0).act(90, "job.backfill", backfilled("all")).succeed(100, "b", 1)
    assert kinds(daily(tale.succeed(110, "a", 2), tmp_path / "twice")) == ["grant"]
    tale = Tale().attempt(1, "a").act(2, "job.backfill", backfilled("all")).attempt(4, "b", 1)
    tale.add("task-succeeded", 9, "a", 0, 1, exit_code=0, result="success")
    assert "grant" in kinds(daily(tale, tmp_path / "alive"))


@pytest.mark.parametrize(
    ("follow", "expected"), [("job#1", []), ("other#1, job#1 (3 runs) and 2 more", []), ("job#10", ["grant"])]
)
def test_a_child_runs_once_more_after_its_parent(follow: str, expected: list[str], tmp_path: Path) -> None:
    for method in ("run.rerun", "deadletter.replay"):
        tale = Tale().succeed(1, "a", 0).act(5, method, f"parent#1/0, then {follow}").succeed(6, "b", 1)
        replayed = tale.play(tmp_path / method)
        assert kinds(replayed) == expected
        assert [step.record.kind for step in replayed.steps].count("control") == 0, "it is about the parent"


def elected(**more: Any) -> dict[str, Any]:
    (record,) = Tale().add("election-decided", 0, "a", id=f"{RUN}/0", topic="command", opened_by="a.1", **more).records
    return record


@pytest.mark.parametrize(
    ("more", "rules", "difference"),
    [
        ({"stamps": {"a.1": [0, 5], "b.1": [0, 4]}, "succession": ["b.1", "a.1"]}, "the same, by load", ""),
        ({"stamps": {"a.1": [1, 2], "b.1": [0, 4]}, "succession": ["a.1", "b.1"]}, "b, then a, by load", "order"),
        (
            {"stamps": {"a.1": [0, 2]}, "succession": list(rendezvous(f"{RUN}/0", ("a.1", "b.1")))},
            "the same, by hash",
            "",
        ),
        ({"stamps": {"a.1": [0, 2]}, "succession": list(rendezvous(f"{RUN}/0", ("a.1", "b.1"))[::-1])}, "", "order"),
        ({"succession": ["b.1", "a.1"]}, "not judged", ""),
        ({"stamps": 3, "succession": "x", "abstained": []}, "nobody stands", ""),
    ],
)
def test_the_order_of_an_election_is_computed_again(
    more: dict[str, Any], rules: str, difference: str, tmp_path: Path
) -> None:
    write(tmp_path, [elected(**more)])
    (step,) = replay([str(tmp_path)], RUN).steps
    assert step.rules.startswith(rules)
    assert step.difference == difference


def test_a_cancellation_and_a_person_are_steps(tmp_path: Path) -> None:
    tale = Tale().attempt(1, "a")
    tale.add(
        "control", 3, "b", method="run.cancel", subject=f"{RUN}: too slow", by="ann", uid=1, outcome="done", run=""
    )
    tale.add("control-cancel", 3, "b", reason="cancelled by ann")
    tale.add("task-revoked", 4, "a", 0, 1, exit_code=143, result="revoked", reason="cancelled by ann")

    replayed = tale.play(tmp_path)
    assert replayed.differences == []
    assert [step.verb for step in replayed.steps] == ["did", "did", "asked", "heard", "did"]
    assert replayed.steps[2].said == "ann asked for run.cancel"
    assert replayed.row is not None
    assert replayed.row.state == "revoked"


@pytest.mark.parametrize("seed", range(4))
def test_journals_of_an_older_version_are_replayed_too(seed: int, tmp_path: Path) -> None:
    """They have neither policy nor lease: the replay takes the defaults."""
    day = busy_day(seed)
    day.write(str(tmp_path))
    for run in {record["run"] for record in day.records() if "run" in record}:
        assert replay([str(tmp_path)], run).steps


def test_compressed_segments_are_replayed_too(tmp_path: Path) -> None:
    Tale().attempt(1, "a").add("task-succeeded", 3, "a", 0, 1, exit_code=0, result="success").play(tmp_path)
    expected = [step.record.data for step in replay([str(tmp_path)], RUN).steps]
    for number, path in enumerate(sorted(tmp_path.rglob("*.jsonl")), 1):
        path.with_name(f"{number:08d}.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()

    assert [step.record.data for step in replay([str(tmp_path)], RUN).steps] == expected


STRANGE: list[Any] = [None, True, -1, 1.5, "x", [], {}, 10**30, ""]


def test_no_value_of_a_field_ends_it(tmp_path: Path) -> None:
    rng = random.Random(1)
    tale = Tale().attempt(1, "a").add("task-failed", 3, "a", 0, 1).attempt(40, "b", 1)
    tale.add("election-decided", 0, "a", stamps={"a.1": [0, 5]}, succession=["a.1"])
    tale.add("task-retried", 90, "a", 1, 40, node="b").add(
        "control", 91, "a", subject=RUN, method="run.resolve", by="x"
    )
    for number in range(300):
        records = [dict(record) for record in tale.records]
        for record in rng.sample(records, 2):
            record[rng.choice([name for name in record if name != "hostname"])] = rng.choice(STRANGE)
        write(tmp_path / str(number), records)
        with contextlib.suppress(UnavailableError):  # no line of it may tell of the run any more
            replay([str(tmp_path / str(number))], RUN)


# ---- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["history", "replay", *arguments])


def test_the_command_shows_a_table_and_what_no_journal_has(tmp_path: Path) -> None:
    Tale().attempt(1, "a").add("task-succeeded", 3, "a", 0, 1, exit_code=0, result="success").play(tmp_path)

    result = run(RUN, "--journals", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "the gate opens" in result.output
    assert "not in any journal: " in result.output
    assert "job#1 is success: 3 steps, the record is what the rules decide" in result.output

    steps = [json.loads(line) for line in run(RUN, "--journals", str(tmp_path), "-o", "jsonl").stdout.splitlines()]
    assert [step["type"] for step in steps] == ["task-received", "task-started", "task-succeeded"]
    assert {"at", "clock", "node", "verb", "said", "rules", "difference", "file", "line"} <= steps[0].keys()


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_whose_end_is_in_no_journal_is_not_said_to_be_alive(tmp_path: Path, ended: bool) -> None:
    """The disk of its node was full when it ended, or that node's journal is not among these."""
    tale = Tale().attempt(1, "a")
    if ended:
        tale.add("task-succeeded", 3, "a", 0, 1, exit_code=0, result="success")
    tale.play(tmp_path)
    said = run(RUN, "--journals", str(tmp_path)).output
    assert ("notice no end: no journal here tells how job#1 ended; `coordctl why`" in said) is not ended


def test_directories_are_named_as_for_verify_or_by_the_option(tmp_path: Path) -> None:
    Tale().attempt(1, "a").add("task-succeeded", 3, "a", 0, 1, exit_code=0, result="success").play(tmp_path)
    here = str(tmp_path)

    for arguments in ((RUN, here), (RUN, "--journals", here), (RUN, f"{here}/a", "--journals", here)):
        assert run(*arguments).exit_code == 0, arguments
    missing = run(RUN)
    assert missing.exit_code == 2
    assert "history replay [OPTIONS] RUN DIR...\n" in missing.output
    assert "Missing argument 'DIR...'" in missing.output
    assert "DIR is a node's journal" in run("--help").output


def test_a_word_of_a_person_about_an_alarm_is_no_run(tmp_path: Path) -> None:
    Tale().attempt(1, "a").play(tmp_path)
    (segment,) = [path for path in tmp_path.rglob("*.jsonl") if path.stat().st_size][:1]
    told = {
        "type": "control",
        "timestamp": 1.0,
        "clock": 1,
        "method": "alarm.clear",
        "subject": "nosuch: seen",
        "by": "x",
    }
    for subject in ("nosuch: seen", "nosuch#1: seen"):
        with segment.open("a") as file:
            file.write(json.dumps({**told, "subject": subject}) + "\n")

    for name in ("nosuch", "nosuch#1", "job"):
        result = run(name, "--journals", str(tmp_path))
        assert result.exit_code == 65
        assert f"no journal here tells of {name}" in result.output


def test_a_run_of_which_no_journal_tells_is_named(tmp_path: Path) -> None:
    Tale().attempt(1, "a").play(tmp_path)

    result = run("job#2", "--journals", str(tmp_path))
    assert result.exit_code == 65
    assert "no journal here tells of job#2" in result.output
    assert run(RUN, "--journals", str(tmp_path / "absent")).exit_code == 65
