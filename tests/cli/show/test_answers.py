"""What commands say: one document of JSON, the reason for an empty answer, and what `reload` refuses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from click.testing import Result
from support.fake_daemon import CTL, EVENT, RUN, FakeDaemon, Stream, environment

from coordd.core.jobs.job import iso

BEGIN = 1_795_392_000.0  # 2026-11-23


def test_past_events_are_one_document(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    past = Stream({"event": EVENT}, {"lost": 3}, {"event": EVENT}, {"alive": True}, {"event": EVENT})
    daemon.answers["events.subscribe"] = past
    done = ctl("events", "-n", "2", "--output", "json")
    assert json.loads(done.stdout) == [EVENT, EVENT]
    assert "3 events were lost" in done.stderr
    assert [json.loads(line) for line in ctl("events", "-o", "jsonl").stdout.splitlines()] == [EVENT, EVENT]

    daemon.answers["events.subscribe"] = Stream({"alive": True})
    assert json.loads(ctl("events", "-o", "json").stdout) == []


def test_followed_events_are_a_line_each_as_they_come(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["events.subscribe"] = Stream({"event": EVENT}, {"alive": True}, {"event": EVENT}, {"end": 1})
    for output in ("json", "jsonl"):
        shown = ctl("events", "-f", "-o", output).stdout.splitlines()
        assert [json.loads(line) for line in shown] == [EVENT, EVENT]
    assert "With -f, json is one object a line, as jsonl" in " ".join(ctl("events", "--help").stdout.split())


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ("at 2020-01-01T00:00", "j does not fire again: its schedule has no further fire time.\n"),
        (None, "j has no schedule: it does not fire by time.\n"),
    ],
)
def test_a_job_without_a_next_fire_time_says_why(
    ctl: Callable[..., Result], daemon: FakeDaemon, schedule: str | None, sentence: str
) -> None:
    daemon.answers |= {"job.next": [], "job.show": {"name": "j", "enabled": True, "schedule": schedule}}
    assert ctl("job", "next", "j").stderr == sentence
    assert json.loads(ctl("job", "next", "j", "-o", "json").stdout) == []


def test_the_help_of_reload_says_what_is_refused(ctl: Callable[..., Result]) -> None:
    """As docs/runbook.md: a job that is disabled."""
    text = " ".join(ctl("reload", "--help").stdout.split())
    assert "Refused for a wrong configuration or a wrong file of a job that is loaded: then nothing changes" in text
    assert "A wrong new file only disables its own job" in text


def test_another_node_that_has_not_heard_of_its_drain_or_its_end_yet(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    daemon.answers["node.drain"] = {"node": "b", "state": "ready", "active": 0, "self": False}
    daemon.answers["node.resume"] = {"node": "b", "state": "draining", "active": 0, "self": False}
    done = ctl("node", "drain", "b")
    assert done.stdout == "b is granted nothing from now on; 0 of its runs continue\n"
    assert "b still says ready: it hears of its drain within seconds" in done.stderr
    done = ctl("node", "resume", "b")
    assert done.stdout == "b may take runs again\n"
    assert "b still says draining: it hears that its drain is over within seconds" in done.stderr
    daemon.answers["node.resume"] = {"node": "b", "state": "ready", "active": 0, "self": False}
    done = ctl("node", "resume", "b")
    assert (done.stdout, done.stderr) == ("b is ready\n", "")


def test_a_log_that_is_longer_than_what_is_printed_says_so(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.logs"] = {"id": "j#1", "attempt": 0, "path": "/p", "text": "two\n", "cut": True}
    done = ctl("run", "logs", "j#1")
    assert done.stdout == "two\n"
    assert "the log is longer: these are its last 4 bytes; all of it: coordctl run logs -f 'j#1'" in done.stderr
    assert "786432" in ctl("run", "logs", "--help").stdout


def test_orphans_takes_the_options_that_all_commands_take(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["orphans"] = {"problems": [], "applications": [], "runs": []}
    done = ctl("orphans", "--socket", daemon.path, "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)["runs"]) == (0, [])


@pytest.mark.parametrize("words", [["run", "list"], ["run", "list", "-o", "json"], ["--help"], ["status"]])
def test_an_output_that_cannot_be_written_is_a_sentence(daemon: FakeDaemon, words: list[str]) -> None:
    daemon.answers["run.list"] = [RUN]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*CTL, *words],
            check=False,
            env=environment(COORDD_SOCKET=daemon.path),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "coordctl: the output cannot be written: No space left on device\n")


def test_what_is_nowhere_is_a_failure_of_why(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    told = {"id": "j#1", "why": "The ledger has no run.", "timeline": [], "unheard": []}
    for found, code in ((True, 0), (False, 1), (None, 0)):
        daemon.answers["why"] = told if found is None else {**told, "found": found}
        done = ctl("why", "j#1")
        assert (done.exit_code, done.stdout) == (code, "The ledger has no run.\n")


def test_a_run_that_is_not_there_yet_is_forbidden_in_advance(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["run.revoke"] = {"id": "j#1", "state": "revoked", "recorded": False}
    assert ctl("run", "revoke", "j#1").stdout == (
        "j#1 is not recorded yet; it is forbidden in advance, and will not run\n"
    )
    daemon.answers["run.revoke"] = {"id": "j#1", "state": "revoked", "recorded": True}
    assert ctl("run", "revoke", "j#1").stdout == "j#1 will not run\n"


class Fires:
    """A daemon's answers about a fire time in each minute, at most ``most`` in one of them."""

    def __init__(self, count: int, most: int) -> None:
        self.times = [BEGIN + 60.0 * minute for minute in range(count)]
        self.most = most

    def __call__(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        most = self.most if "from" in params else min(50, self.most)
        inside = [at for at in self.times if params.get("from", 0.0) <= at <= params.get("to", 1e12)]
        told: list[dict[str, Any]] = [
            {"fire_time": iso(at), "due": iso(at), "decision": "launched", "reason": "", "run": f"j@{iso(at)}"}
            for at in inside[-most:]
        ]
        if len(inside) > most:
            told[0]["earlier"] = True
        return told


@pytest.mark.parametrize(
    ("words", "most", "asked", "minutes"),
    [
        (["--from", "2026-11-23"], 1000, 3, range(2500)),
        (["--from", "2026-11-23", "--to", "2026-11-23T02:00Z"], 100, 2, range(121)),
        ([], 1000, 1, range(2450, 2500)),
        ([], 20, 3, range(2450, 2500)),  # of a large group an answer has fewer
    ],
)
def test_fire_times_that_are_more_than_one_answer_holds_are_asked_for_again(
    ctl: Callable[..., Result], daemon: FakeDaemon, words: list[str], most: int, asked: int, minutes: Iterable[int]
) -> None:
    daemon.answers["job.fires"] = Fires(2500, most)
    told = json.loads(ctl("job", "fires", "j", *words, "-o", "json").stdout)
    assert [one["fire_time"] for one in told] == [iso(BEGIN + 60.0 * minute) for minute in minutes]
    assert [one for one in told if "earlier" in one] == []
    assert len(daemon.asked) == asked
    assert len(ctl("job", "fires", "j", *words).stdout.splitlines()) == 1 + len(told)


class Runs:
    """A daemon's answers about runs, the newest first."""

    def __init__(self, *states: str) -> None:
        self.rows = [{**RUN, "id": f"j#{number}", "state": state} for number, state in enumerate(states)]

    def __call__(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = params.get("state")
        return [row for row in self.rows if wanted in (None, row["state"])][: params["limit"]]


@pytest.mark.parametrize(
    ("states", "title", "shown"),
    [
        (["success"] * 300 + ["started"], "active runs", [300, 0, 1, 2, 3, 4]),  # it said: no active runs
        (["success"] * 3, "no active runs; the latest ended runs", [0, 1, 2]),
        (["pending"] * 99 + ["started"], "active runs", [99, *range(99)]),
        (["pending"] * 100 + ["retry"], "active runs (101 of at least 101)", [100, *range(100)]),
        (["bad", "unknown"], "active runs", [1, 0]),
    ],
)
def test_watch_shows_what_runs_however_long_it_has_run(
    ctl: Callable[..., Result], daemon: FakeDaemon, states: list[str], title: str, shown: list[int]
) -> None:
    daemon.answers |= {"node.list": [], "run.list": Runs(*states), "events.subscribe": Stream()}
    lines = [line.strip() for line in ctl("watch").stdout.splitlines()]
    assert title in lines
    assert [line.split()[0] for line in lines if line.startswith("j#")] == [f"j#{number}" for number in shown]


@pytest.mark.parametrize(
    ("words", "searched", "sentence"),
    [
        (
            ["--node", "b"],
            10_000,
            "searched the newest 10,000 runs, back to 2026-11-23T00:00:00Z: --job and --state search further back\n",
        ),
        (
            ["--since", "1d", "--job", "j"],
            100,
            (
                "searched the newest 100 runs of j, back to 2026-11-23T00:00:00Z: --state searches further back;"
                " operators search 10,000\n"
            ),
        ),
        (
            ["--node", "b", "--job", "j", "--state", "lost"],
            10_000,
            "searched the newest 10,000 runs of j in state lost, back to 2026-11-23T00:00:00Z\n",
        ),
    ],
)
def test_a_list_that_did_not_look_at_all_runs_says_how_far_back_it_searched(
    ctl: Callable[..., Result], daemon: FakeDaemon, words: list[str], searched: int, sentence: str
) -> None:
    """It said only that there are no such runs."""
    cut = {"searched": searched, "back_to": iso(BEGIN)}
    daemon.answers["run.list"] = [cut]
    assert ctl("run", "list", *words).stderr == f"There are no such runs.\n{sentence}"
    daemon.answers["run.list"] = [RUN, cut]
    done = ctl("run", "list", *words, "-o", "json")
    assert (json.loads(done.stdout), done.stderr) == ([RUN], sentence)
    daemon.answers["run.list"] = [RUN]
    assert ctl("run", "list", *words).stderr == ""
