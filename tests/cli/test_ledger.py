"""coordctl ledger, and status and node list of a production cluster, against a fake daemon with a table of answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.fake_daemon import STATUS, FakeDaemon, Stream, refusal

from coordd.adapters.ledger.dump import exported
from coordd.cli import ledger as module
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import Policy

LEDGER = {
    "url": "redis://r:6379/0", "state": "connected", "error": None, "cluster": "default", "epoch": "ab12",
    "recovering_s": 0.0, "schema": 1, "ping_ms": 0.4, "version": "7.0.15", "role": "master", "replicas": 0,
    "maxmemory_policy": "allkeys-lru", "used_memory_bytes": 2 * 2**20, "maxmemory_bytes": 0,
    "persistence": {"aof": True, "rdb": ""}, "since": 1.0, "jobs": 2, "runs": {"success": 3},
    "weaker": ["maxmemory-policy is allkeys-lru: set noeviction", "no replica is connected"],
}  # fmt: skip


def run_row(run: str, **columns: Any) -> dict[str, Any]:
    row = Row.__new__(Row)
    empty: dict[type, Any] = {str: "", int: 0, float: 0.0}
    for column, kind in Row.__annotations__.items():
        setattr(row, column, empty.get(kind))
    for column, value in {"run": run, "job": run.partition("#")[0], "state": "success", **columns}.items():
        setattr(row, column, value)
    row.policy = Policy().pack()
    return exported(row)


ROWS = [run_row(f"j#{number}") for number in range(5)]


def written(directory: str, rows: list[dict[str, Any]]) -> str:
    path = f"{directory}/rows.jsonl"
    Path(path).write_text("".join([json.dumps(row) + "\n" for row in rows]))
    return path


# ---- status


def test_the_status_of_a_ledger_says_what_is_weaker_than_advised(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    daemon.answers["ledger.status"] = LEDGER
    done = ctl("ledger", "status")
    assert done.exit_code == 0
    for words in (
        "redis://r:6379/0",
        "connected",
        "ab12",
        "master",
        "allkeys-lru",
        "append-only file",
        "2.0 MiB",
        "weaker than advised: maxmemory-policy is allkeys-lru: set noeviction",
        "weaker than advised: no replica is connected",
    ):
        assert words in done.stdout
    assert "recovering" not in done.stdout
    assert "snapshots" not in done.stdout
    daemon.answers["ledger.status"] = {**LEDGER, "state": "recovering", "recovering_s": 42.0, "weaker": []}
    done = ctl("ledger", "status")
    assert (done.exit_code, "for 42 s: no new launches" in done.stdout) == (0, True)
    assert "weaker" not in done.stdout
    assert "rules" not in done.stdout  # of a daemon that does not say


def test_status_and_the_status_of_a_ledger_say_who_holds_the_new_rules_back(
    ctl: Callable[..., Result], daemon: FakeDaemon
) -> None:
    rules = {"in_force": 1, "held_back_by": ["edge-2.7", "edge-3.8"]}
    daemon.answers["ledger.status"] = {**LEDGER, "rules": rules}
    daemon.answers["status"] = {**STATUS, "rules": rules, "stale_jobs": ["nightly"]}
    said = "1; members of an older version: edge-2.7, edge-3.8"
    assert said in ctl("ledger", "status").stdout
    assert said in ctl("status").stdout
    assert "stale here: nightly (coordctl job list)" in ctl("status").stdout


def test_the_status_of_a_file_has_no_server(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["ledger.status"] = {
        "url": "sqlite:////l.db",
        "state": "unavailable",
        "error": "the disk is full",
        "size_bytes": 2048,
        "schema": 1,
        "jobs": 1,
        "runs": {},
        "weaker": [],
        "recovering_s": 0.0,
    }
    done = ctl("ledger", "status")
    assert (done.exit_code, "the disk is full" in done.stdout, "2.0 KiB" in done.stdout) == (69, True, True)
    assert "persistence" not in done.stdout


def test_a_node_shows_its_connections_and_what_waits(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    assert "backlog" not in ctl("status").stdout
    daemon.answers["status"] = {
        **STATUS,
        "isolated": True,
        "bus": {"url": "amqp://mq/", "state": "disconnected", "error": "Connection refused"},
        "ledger": {"url": "redis://r", "state": "recovering", "error": None, "recovering_s": 65.0},
        "backlog": {"waiting": 3, "oldest_s": 61.0, "kept": "memory", "error": "disk full", "given_up": 7},
        "breakers_open": ["bus"],
    }
    said = ctl("status").stdout
    for words in (
        "disconnected · amqp://mq/ · Connection refused",
        "no new launch for 1 min 5 s",
        "open: bus",
        "3 messages waiting in memory, the oldest for 1 min 1 s",
        "7 given up",
        "disk full",
        "isolated",
    ):
        assert words in said


def test_a_node_that_hears_nobody_says_so_in_the_list(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    me = {"hostname": "edge-1", "state": "alive", "says": "ready", "self": True}
    daemon.answers["node.list"] = [{**me, "isolated": False}]
    assert "isolated" not in ctl("node", "list").stdout
    daemon.answers["node.list"] = [{**me, "isolated": True}]
    assert "ready, isolated: hears nobody" in ctl("node", "list").stdout


# ---- export


def test_an_export_is_lines_of_json(ctl: Callable[..., Result], daemon: FakeDaemon, directory: str) -> None:
    daemon.answers["ledger.export"] = Stream({"rows": ROWS[:2]}, {"rows": ROWS[2:]}, {"total": 5}, {"end": True})
    done = ctl("ledger", "export")
    assert [json.loads(line) for line in done.stdout.splitlines()] == ROWS
    assert done.stderr == "5 rows\n"
    path = f"{directory}/out.jsonl"
    Path(path).write_text("an older one")
    assert ctl("ledger", "export", path).stdout == ""
    assert [json.loads(line) for line in Path(path).read_text().splitlines()] == ROWS
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "messages",
    [
        ({"rows": ROWS[:2]}, {"error": "the ledger went away"}, {"end": True}),
        ({"rows": ROWS[:2]}, {"end": True}),
        ({"rows": ROWS[:2]}, {"total": 5}, {"end": True}),
    ],
)
def test_an_export_that_was_cut_short_leaves_nothing(
    ctl: Callable[..., Result], daemon: FakeDaemon, directory: str, messages: tuple[dict[str, Any], ...]
) -> None:
    daemon.answers["ledger.export"] = Stream(*messages)
    done = ctl("ledger", "export")
    assert (done.exit_code, done.stdout) == (69, "")
    assert "not finished" in done.stderr
    assert ("the ledger went away" in done.stderr) == any("error" in message for message in messages)
    path = f"{directory}/out.jsonl"
    Path(path).write_text("an older one")
    assert ctl("ledger", "export", path).exit_code == 69
    assert Path(path).read_text() == "an older one"
    assert sorted(os.listdir(directory)) == ["out.jsonl", "s"]


def test_an_export_that_cannot_be_written_says_so(
    ctl: Callable[..., Result], daemon: FakeDaemon, directory: str
) -> None:
    done = ctl("ledger", "export", f"{directory}/nowhere/out.jsonl")
    assert (done.exit_code, "cannot be written" in done.stderr) == (1, True)
    assert daemon.asked == []


# ---- import


def test_an_import_goes_in_pieces_that_belong_together(
    ctl: Callable[..., Result], daemon: FakeDaemon, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(params: dict[str, Any]) -> Any:
        return {"import": "i1", "rows": 0} if params.get("more") else {"rows": 5, "replaced": True}

    daemon.answers["ledger.import"] = answer
    monkeypatch.setattr(module, "PIECE_BYTES", 2 * len(json.dumps(ROWS[0])) + 10)
    done = ctl("ledger", "import", written(directory, ROWS), "--replace", "--yes")
    assert (done.exit_code, done.stdout) == (0, "5 rows are in the ledger\n")
    asked = [params for method, params in daemon.asked if method == "ledger.import"]
    assert [row for params in asked for row in params["rows"]] == ROWS
    assert len(asked) == 3
    assert [params.get("import") for params in asked] == [None, "i1", "i1"]
    assert [bool(params.get("more")) for params in asked] == [True, True, False]
    assert asked[-1]["replace"] is True


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "row 6: not JSON"),
        ("", "row 6: not JSON"),
        ('{"kind": "cat"}', "row 6: expected kind job, run, attempt or hold"),
        (json.dumps({**ROWS[0], "run": "x", "token": "many"}), "row 6: token: expected int"),
        (json.dumps(ROWS[0]), "row 6: run 'j#0' a second time"),
    ],
)
def test_one_bad_row_and_the_daemon_is_not_even_asked(
    ctl: Callable[..., Result], daemon: FakeDaemon, directory: str, line: str, words: str
) -> None:
    path = written(directory, ROWS)
    with open(path, "a") as file:
        file.write(line + "\n")
    done = ctl("ledger", "import", path, "--yes")
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in done.stderr
    assert daemon.asked == []


def test_what_cannot_be_taken_back_asks_first(ctl: Callable[..., Result], daemon: FakeDaemon, directory: str) -> None:
    path = written(directory, ROWS)
    for args in (("import", path), ("import", path, "--replace"), ("accept-epoch",)):
        done = ctl("ledger", *args)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "launched" in done.stderr, "it says what that risks"
        assert "--yes" in done.stderr
    assert daemon.asked == []


def test_on_a_terminal_it_is_a_question(
    ctl: Callable[..., Result], daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["ledger.accept_epoch"] = {"ended": True, "left_s": 30.0}
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    done = ctl("ledger", "accept-epoch", input="n\n")
    assert (done.exit_code, daemon.asked) == (1, [])
    assert ctl("ledger", "accept-epoch", input="y\n").stdout == "the quarantine is over, 30 s before its time\n"


def test_an_import_from_stdin_cannot_ask(
    ctl: Callable[..., Result], daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["ledger.import"] = {"rows": 5, "replaced": False}
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    data = "".join([json.dumps(row) + "\n" for row in ROWS])
    assert ctl("ledger", "import", "-", input=data).exit_code == 2
    assert ctl("ledger", "import", "-", "--yes", input=data).stdout == "5 rows are in the ledger\n"
    assert daemon.asked[-1][1]["rows"] == ROWS


def test_a_refused_import_says_what_to_do(ctl: Callable[..., Result], daemon: FakeDaemon, directory: str) -> None:
    daemon.answers["ledger.import"] = refusal("not_empty", "the ledger holds 6 runs", "import with --replace")
    done = ctl("ledger", "import", written(directory, ROWS), "--yes")
    assert (done.exit_code, "--replace" in done.stderr) == (1, True)


def test_the_end_of_a_quarantine(ctl: Callable[..., Result], daemon: FakeDaemon) -> None:
    daemon.answers["ledger.accept_epoch"] = {"ended": False, "left_s": 0.0}
    assert ctl("ledger", "accept-epoch", "--yes").stdout == "the ledger is not recovering: nothing was changed\n"
    daemon.answers["ledger.accept_epoch"] = refusal("not_permitted")
    assert ctl("ledger", "accept-epoch", "--yes").exit_code == 77
