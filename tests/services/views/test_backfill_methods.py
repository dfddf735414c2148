"""A real daemon: a backfill is looked at, begun, followed, left alone, cancelled; and wrong ones are refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.test_daemon import Node, running
from support.fake_daemon import CTL, DAEMON, DEADLINE_S, ROOT, environment, open_directory, write_job

from coordd.core.jobs.job import iso
from coordd.services.views.backfill_methods import ASKED_TWICE, RUNS_MAX

DAILY = 'schedule = "0 2 * * *"\nmisfire = "once"\n'
SAYS = '[command]\nargv = ["/bin/sh", "-c", "echo $0 $COORDD_FIRE_TIME >> %s/ran", "{fire_time}"]\n'
BAD = '[command]\nargv = ["/bin/sh", "-c", "case $0 in *-03T*) exit 3;; esac", "{fire_time}"]\n'
THREE_DAYS = ("--from", "2026-03-02", "--to", "2026-03-05")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "daily", DAILY + SAYS % directory)
        write_job(directory, "fails", DAILY + BAD)
        write_job(directory, "held", DAILY + '[command]\nargv = ["/bin/true"]\n')
        write_job(
            directory,
            "waits",
            DAILY + f'[command]\nargv = ["/bin/sh", "-c", "until test -e {directory}/go; do sleep 0.1; done"]\n',
        )
        write_job(directory, "often", 'schedule = "* * * * *"\n[command]\nargv = ["/bin/true"]\n')
        write_job(directory, "never", '[command]\nargv = ["/bin/true"]\n')
        with running(directory, DAEMON) as node:
            node.wait_until(lambda: not node.json("status")["stale_jobs"])
            yield node


def ran(node: Node) -> list[str]:
    path = Path(node.directory, "ran")
    return path.read_text().splitlines() if path.exists() else []


def plan(node: Node, job: str) -> dict[str, Any]:
    (found,) = node.json("job", "backfill", job, "--status")
    assert isinstance(found, dict)
    return found


def test_a_range_is_looked_at_run_and_run_again(node: Node) -> None:
    looked = node.json("job", "backfill", "daily", *THREE_DAYS, "--dry-run")
    assert (looked["runs"], looked["states"], looked["takes_s"]) == (3, {"none": 3}, None)
    assert (looked["first"], looked["last"]) == ("2026-03-02T02:00:00Z", "2026-03-04T02:00:00Z")
    shown = node.ctl("job", "backfill", "daily", *THREE_DAYS, "--dry-run")
    assert re.search(r"no run +3 +run", shown.stdout)
    assert "daily: 3 runs, 2026-03-02T02:00:00Z to 2026-03-04T02:00:00Z, oldest first, one at a time" in shown.stderr
    assert ran(node) == []
    assert node.json("job", "backfill", "daily", "--status") == []

    done = node.ctl("job", "backfill", "daily", *THREE_DAYS)

    days = [f"2026-03-0{day}T02:00:00Z" for day in (2, 3, 4)]
    assert ran(node) == [f"{day} {day}" for day in days]
    assert "done: 3 of 3 ended, 0 failed, 0 open" in done.stderr
    told = plan(node, "daily")
    assert (told["plan"], told["state"], told["succeeded"], told["passed"]) == (done.stdout.strip(), "done", 3, 0)

    again = node.json("job", "backfill", "daily", *THREE_DAYS, "--no-wait")
    assert (again["runs"], again["states"]) == (0, {"success": 3})
    node.wait_until(lambda: plan(node, "daily")["state"] == "done")
    assert plan(node, "daily")["passed"] == 3
    last = node.json("job", "backfill", "daily", *THREE_DAYS, "--redo", "all", "--order", "newest")
    assert (last["state"], last["succeeded"]) == ("done", 3)
    assert ran(node)[3:] == [f"{day} {day}" for day in reversed(days)]


def test_who_opened_a_run_is_told_everywhere(node: Node) -> None:
    done = node.ctl("job", "backfill", "daily", "--from", "2026-04-01", "--to", "2026-04-02")
    ident, run = done.stdout.strip(), "daily@2026-04-01T02:00:00Z"
    by = node.json("run", "show", run)["by"]
    assert by.startswith(f"backfill {ident} by ")
    assert f"A backfill ({ident}) by " in node.ctl("why", run).stdout
    (fire,) = node.json("job", "fires", "daily", "--from", "2026-04-01T00:00Z", "--to", "2026-04-01T23:00Z")
    assert (fire["decision"], fire["reason"]) == ("launched", f"its run is success, opened by {by}")
    subjects = [record["subject"] for record in node.json("audit")["records"] if record["method"] == "job.backfill"]
    assert any(
        subject.startswith(f"daily {ident}: 2026-04-01T00:00:00Z to 2026-04-02T00:00:00Z, 1 runs")
        for subject in subjects
    )
    assert ident in node.ctl("job", "backfill", "daily", "--status").stdout


def test_failures_are_told_stop_it_and_are_run_again(node: Node) -> None:
    failed = node.ctl("job", "backfill", "fails", *THREE_DAYS, "--stop-after-failures", "1", code=1)
    assert "the backfill of fails is stopped: 1 succeeded, 1 failed" in failed.stderr
    assert "--redo failed runs them again" in failed.stderr
    looked = node.json("job", "backfill", "fails", *THREE_DAYS, "--redo", "failed", "--dry-run")
    assert (looked["runs"], looked["states"]) == (2, {"failure": 1, "none": 1, "success": 1})
    assert looked["run_takes_s"] is not None
    whole = node.json("job", "backfill", "fails", *THREE_DAYS, "--redo", "failed", code=1)
    assert (whole["state"], whole["succeeded"], whole["failed"]) == ("done", 1, 1)


def test_ctrl_c_leaves_it_alone_and_a_person_cancels_it(node: Node) -> None:
    argv = [*CTL, "job", "backfill", "waits", *THREE_DAYS, "--socket", node.socket]
    with subprocess.Popen(argv, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE) as person:
        node.wait_until(
            lambda: (
                [p["open"] for p in node.json("job", "backfill", "waits", "--status")]
                == [["waits@2026-03-02T02:00:00Z"]]
            )
        )
        assert person.stderr is not None
        while b"1 open" not in person.stderr.readline():  # it follows its plan now
            assert person.poll() is None
        person.send_signal(signal.SIGINT)
        said = person.communicate(timeout=DEADLINE_S)[1].decode()
    assert person.returncode == 130, said
    assert "the backfill goes on: coordctl job backfill waits --status; --cancel ends it" in said
    assert plan(node, "waits")["state"] == "running"
    twice = node.ctl("job", "backfill", "waits", *THREE_DAYS, code=1)
    assert "a backfill of waits is running already" in twice.stderr
    node.wait_until(lambda: node.json("run", "show", "waits")["state"] == "started")

    assert "is cancelled" in node.ctl("job", "backfill", "waits", "--cancel").stdout
    assert "no backfill of waits is running" in node.ctl("job", "backfill", "waits", "--cancel", code=1).stderr
    Path(node.directory, "go").touch()
    node.wait_until(lambda: node.json("run", "show", "waits")["state"] == "success")
    assert [run["id"] for run in node.json("run", "list", "--job", "waits")] == ["waits@2026-03-02T02:00:00Z"]


def test_the_status_says_that_the_job_is_suspended(node: Node) -> None:
    """A plan that does not move said nothing."""
    node.ctl("job", "suspend", "held", "--note", "the table moves")
    node.ctl("job", "backfill", "held", *THREE_DAYS, "--no-wait")
    waits = plan(node, "held")["waits"]
    assert waits.startswith("held is suspended by ")
    assert "(the table moves)" in waits
    shown = node.ctl("job", "backfill", "held", "--status")
    assert f"{plan(node, 'held')['plan']} waits: held is suspended by " in shown.stderr
    node.ctl("job", "resume", "held")
    node.wait_until(lambda: plan(node, "held")["state"] == "done")
    assert plan(node, "held")["waits"] is None


def test_the_status_says_that_the_job_makes_groups_now(node: Node) -> None:
    node.ctl("job", "suspend", "held")
    node.ctl("job", "backfill", "held", "--from", "2026-04-02", "--to", "2026-04-05", "--no-wait")
    expands = 'expand = { part = ["a", "b"] }\noverlap = "allow"\n'
    write_job(node.directory, "held", DAILY + expands + '[command]\nargv = ["/bin/true", "{part}"]\n')
    node.ctl("reload")
    ident = plan(node, "held")["plan"]
    shown = node.ctl("job", "backfill", "held", "--status")
    assert f"{ident} waits: held has expand now, and a backfill opens no groups" in shown.stderr
    assert "coordctl job backfill held --cancel ends the plan" in shown.stderr
    node.ctl("job", "backfill", "held", "--cancel")


def test_fire_times_that_were_groups_are_counted_and_passed_over(node: Node) -> None:
    argv = f'[command]\nargv = ["/bin/sh", "-c", "until test -e {node.directory}/parts; do sleep 0.1; done"]\n'
    common = 'schedule = "every 3s"\noverlap = "allow"\n'
    write_job(node.directory, "parts", common + 'expand = { part = ["a", "b"] }\n' + argv)
    began = time.time()
    node.ctl("reload")
    node.wait_until(lambda: len(node.json("run", "list", "--job", "parts", "--state", "started")) >= 2)
    (group, *_) = sorted({row["id"].partition("~")[0] for row in node.json("run", "list", "--job", "parts")})
    write_job(node.directory, "parts", common + argv)
    said = node.ctl("reload", "--output", "json")
    assert group in json.loads(said.stdout)["regrouped"]
    node.ctl("job", "suspend", "parts")
    Path(node.directory, "parts").touch()

    span = ("--from", iso(int(began) - 1), "--to", iso(int(time.time()) + 2))
    looked = node.json("job", "backfill", "parts", *span, "--dry-run", "--redo", "all")

    assert looked["states"]["group"] >= 1
    assert looked["runs"] == looked["fire_times"] - looked["states"]["group"]
    shown = node.ctl("job", "backfill", "parts", *span, "--dry-run")
    assert re.search(r"a group +\d+ +left as it is", shown.stdout)
    os.unlink(f"{node.directory}/jobs.d/parts.toml")
    node.ctl("reload")


WRONG = [
    ("unknown", THREE_DAYS, 1, "no job 'unknown' on this node", "did you mean"),
    ("never", THREE_DAYS, 1, "never has no schedule, so it has no fire times", "coordctl run trigger never"),
    ("daily", ("--from", "2026-03-05", "--to", "2026-03-02"), 2, "expected an earlier from", "--to is not"),
    ("daily", ("--from", "2026-02-30", "--to", "2026-03-02"), 2, "the calendar has", ""),
    ("daily", ("--from", "2126-03-01", "--to", "2126-03-02"), 2, "expected an instant that is over", "job next"),
    ("daily", ("--from", "2026-03-02T03:00", "--to", "2026-03-02T04:00"), 1, "daily has no fire time from", "job show"),
    ("daily", ("--from", "2026-03-02"), 2, "expected --from T and --to T", ""),
    ("often", ("--from", "2026-03-01", "--to", "2026-03-03"), 1, "is 2880 runs", "then say --yes"),
    ("often", ("--from", "2026-01-01", "--to", "2026-03-03", "--yes"), 1, f"more than {RUNS_MAX} ", "shorter"),
    ("daily", (*THREE_DAYS, "--at-most", "101"), 2, "1<=x<=100", ""),
    ("daily", (*THREE_DAYS, "--redo", "some"), 2, "'none', 'failed', 'all'", ""),
]  # fmt: skip


@pytest.mark.parametrize(("job", "args", "code", "says", "hint"), WRONG)
def test_what_is_refused_and_what_to_do(
    node: Node, job: str, args: tuple[str, ...], code: int, says: str, hint: str
) -> None:
    refused = node.ctl("job", "backfill", job, *args, code=code)

    assert says in refused.stderr
    assert hint in refused.stderr or hint == "did you mean"
    assert all(one["plan"] for one in node.json("job", "backfill", "daily", "--status"))


def test_a_large_one_is_begun_when_a_person_says_so(node: Node) -> None:
    args = ("--from", "2026-03-01", "--to", "2026-03-03", "--yes", "--no-wait")
    told = node.json("job", "backfill", "often", *args)
    assert told["runs"] == 2880 > ASKED_TWICE
    node.ctl("job", "backfill", "often", "--cancel")
