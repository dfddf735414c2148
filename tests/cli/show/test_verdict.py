"""`coordctl check-node`: exit codes and output as monitoring systems read them, within its own timeout."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from support.fake_daemon import STATUS, FakeDaemon, refusal

HOLD = {"until": None, "note": "new disks", "by": "anna", "uid": 7, "at": "2026-11-21T02:00:00Z", "all": True}

# label=value[;warn[;crit[;min]]]
PERFDATA = re.compile(r"[a-z_]+=-?[0-9.]+s?(;[0-9.]*){0,4}")

FINE: dict[str, Any] = {
    **STATUS,
    "members": {"alive": 3, "suspect": 0, "lost": 0},
    "isolated": False,
    "runs": {"active": 1, "unknown": [], "stuck": [], "late": [], "dead": ["old#1"]},
    "late_jobs": [],
    "jobs": {"enabled": 2, "held": [], "disabled": []},
    "disk": {"free_mb": 5000, "least_mb": 200, "free_files": 9000, "least_files": 1000},
    "suspended": {"all": None, "jobs": []},
    "drained": None,
    "alarms": [],
    "ready": {"node": True, "cluster": True, "reason": None},
}


def changed(**fields: Any) -> dict[str, Any]:
    """The answer of a node in trouble; a table is merged."""
    return {
        **FINE,
        **{key: {**FINE[key], **what} if isinstance(what, dict) and isinstance(FINE[key], dict) else what
           for key, what in fields.items()},
    }  # fmt: skip


def checked(
    ctl: Callable[..., Result], daemon: FakeDaemon, status: Any, *args: str, weaker: tuple[str, ...] = ()
) -> Result:
    daemon.answers |= {"status": status, "ledger.status": {"weaker": list(weaker)}}
    return ctl("check-node", *args)


def test_a_node_that_is_fine(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    done = checked(ctl, daemon, FINE)
    text, data = done.stdout.rstrip("\n").split(" | ")

    assert (done.exit_code, text) == (0, "COORDD OK - ready, 3 nodes alive, 1 run active")
    assert all(PERFDATA.fullmatch(item) for item in data.split())
    assert {"alive=3;;;0", "late_jobs=0;0;;0", "dead_letters=1;;;0", "uptime=61s;;;0"} <= set(data.split())


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"drained": HOLD, "state": "draining"}, 1, "drained by anna: new disks"),
        ({"late_jobs": ["etl", "sales"]}, 1, "late: etl, sales"),
        ({"clock_skew_s": -300.0}, 1, "it opens no scheduled run: its clock is 300 s behind the ledger's"),
        ({"clock_skew_s": 9.9}, 0, "ready, 3 nodes alive, 1 run active"),
        ({"late_jobs": [f"j{n}" for n in range(9)]}, 1, "late: j0, j1, j2, j3, j4, …"),
        (
            {"boot": [{"name": "cache", "state": "failed"}, {"name": "mount", "state": "done"}]},
            1,
            "boot steps failed: cache",
        ),
        ({"runs": {"unknown": ["etl#1"]}}, 1, "unknown: etl#1"),
        ({"runs": {"stuck": ["etl#1"]}}, 1, "stuck: etl#1"),
        ({"members": {"lost": 1, "alive": 2}}, 1, "lost: 1 of the nodes"),
        ({"suspended": {"all": HOLD}}, 1, "all jobs are suspended by anna: new disks"),
        ({"bus": {"state": "disconnected"}}, 1, "the bus is disconnected"),
        ({"ready": {"node": False, "reason": "no|room"}}, 1, "takes no new runs: no/room"),
        ({"impaired": "no room"}, 2, "it starts nothing: no room"),
        (
            {"impaired": "no room", "drained": HOLD, "state": "draining"},
            2,
            "it starts nothing: no room; drained by anna: new disks",
        ),
        ({"ledger": {"not_used": "another one"}}, 2, "it starts nothing: another one"),
        ({"disk": {"free_mb": 0}}, 2, "the disk of its state directory has 0 MiB free"),
        ({"disk": {"free_files": 1000}}, 2, "the disk of its state directory has room for 1000 more files only"),
        ({"disk": {"free_files": None, "least_mb": 6000}}, 2, "the disk of its state directory has 5000 MiB free"),
        ({"jobs": {"enabled": 0}}, 1, "no job is loaded"),
        ({"jobs": {"disabled": ["etl"]}}, 1, "disabled jobs: etl"),
        ({"state": "mingling"}, 2, "the node is mingling"),
        ({"state": "stopping"}, 2, "the node is stopping"),
        ({"ledger": {"state": "unavailable", "error": "refused"}}, 2, "the ledger is unavailable: refused"),
        ({"ledger": {"state": "foreign"}}, 2, "the ledger is foreign"),
        ({"members": {"alive": 1, "lost": 2}}, 2, "it hears none of the other nodes; lost: 2 of the nodes"),
        ({"isolated": True}, 2, "it hears none of the other nodes"),
        ({"alarms": ["a run started twice"]}, 2, "ALARM: a run started twice"),
        ({"state": "mingling", "late_jobs": ["etl"]}, 2, "the node is mingling; late: etl"),
    ],
)
def test_a_node_in_trouble(
    ctl: Callable[..., Result], daemon: FakeDaemon, fields: dict[str, Any], code: int, text: str
) -> None:
    done = checked(ctl, daemon, changed(**fields))

    assert (done.exit_code, done.stdout.split(" | ")[0]) == (
        code,
        f"COORDD {('OK', 'WARNING', 'CRITICAL')[code]} - {text}",
    )


def test_a_node_whose_jobs_are_all_held_or_whose_disk_is_not_known_is_fine(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    status = changed(jobs={"enabled": 0, "held": ["etl"]}, disk={"free_mb": None, "free_files": None})

    assert checked(ctl, daemon, status).exit_code == 0
    assert checked(ctl, daemon, {key: value for key, value in FINE.items() if key != "disk"}).exit_code == 0
    older = {**FINE, "disk": {"free_mb": 5000, "least_mb": 200}}
    assert checked(ctl, daemon, older).exit_code == 0


def test_a_weaker_ledger_is_a_warning(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    done = checked(ctl, daemon, FINE, weaker=("appendonly is off",))

    assert (done.exit_code, done.stdout.split(" | ")[0]) == (1, "COORDD WARNING - weaker ledger: appendonly is off")


def test_a_ledger_that_does_not_say_how_it_is_does_not_hide_the_rest(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    daemon.answers |= {"status": changed(late_jobs=["etl"]), "ledger.status": refusal("unavailable")}
    done = ctl("check-node")

    assert (done.exit_code, done.stdout.split(" | ")[0]) == (1, "COORDD WARNING - late: etl")


def test_no_daemon_is_critical(ctl: Callable[..., Result], directory: str) -> None:
    done = ctl("check-node", "--socket", f"{directory}/nothing")

    assert done.exit_code == 2
    assert done.stdout.startswith("COORDD CRITICAL - no daemon answers at")
    assert done.stdout.count("\n") == 1


def test_a_daemon_that_hangs_is_critical_within_the_timeout(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    """Each of two answers may take nearly the whole time: the limit is for both."""
    wait = threading.Event()
    daemon.answers["status"] = lambda _: (wait.wait(0.3), FINE)[1]
    daemon.answers["ledger.status"] = lambda _: (wait.wait(60), {"weaker": []})[1]
    done = ctl("check-node", "--timeout", "0.5")
    wait.set()

    assert (done.exit_code, done.stdout) == (2, "COORDD CRITICAL - no answer within 0.5 s\n")


@pytest.mark.parametrize("status", [refusal("not_permitted"), {"state": "ready"}, {**FINE, "members": None}, []])
def test_who_cannot_tell_says_unknown(ctl: Callable[..., Result], daemon: FakeDaemon, status: Any) -> None:
    done = checked(ctl, daemon, status)

    assert done.exit_code == 3
    assert done.stdout.startswith("COORDD UNKNOWN - cannot tell: ")


def test_for_programs(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    done = checked(ctl, daemon, changed(late_jobs=["etl"]), "--output", "json")
    said = json.loads(done.stdout)

    assert (done.exit_code, said["code"], said["state"], said["text"]) == (1, 1, "warning", "late: etl")
    assert said["perfdata"]["late_jobs"] == "1;0;;0"


def test_a_node_with_a_bad_check(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    counts = {"healthy": 3, "degraded": 1, "unhealthy": 2, "insecure": 1, "unavailable": 0, "unknown": 1}
    done = checked(ctl, daemon, changed(checks=counts))
    assert done.exit_code == 1
    assert done.stdout.startswith("COORDD WARNING - bad checks: 2 unhealthy, 1 insecure | ")
    assert "bad_checks=3;0;;0" in done.stdout
    assert checked(ctl, daemon, changed(checks={**counts, "unhealthy": 0, "insecure": 0})).exit_code == 0
