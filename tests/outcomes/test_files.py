"""The program of a sink's run on files: what is written, once for each end, whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from coordd.outcomes import files

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
END: dict[str, Any] = {
    "id": "etl@2026-11-24T02:00:00Z", "job": "etl", "state": "success", "attempt": 0, "node": "edge-1", "token": 7,
    "exit_code": 0, "reason": None, "fire_time": "2026-11-24T02:00:00Z", "started_at": "2026-11-24T02:00:01Z",
    "ended_at": "2026-11-24T02:00:03.500Z", "runtime_s": 2.5, "parents": [], "cluster": "c1",
}  # fmt: skip


def sent(to: str, document: Any = END, timeout_s: float = 20.0, **more: str) -> subprocess.CompletedProcess[str]:
    """The real program, as a run of a sink starts it."""
    sink = {"to": to, "timeout_s": timeout_s, "password_file": "", "token_file": "", "tls_ca": "", **more}
    env = {"PATH": "/usr/bin:/bin", "COORDD_HOOK_SECRET": json.dumps(sink), "COORDD_EVENT": json.dumps(document)}
    return subprocess.run(
        [sys.executable, "-m", "coordd.outcomes"],
        env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_a_line_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text('{"cut')  # by a full disk

    assert sent(f"file://{path}").returncode == 0
    assert sent(f"file://{path}", {**END, "attempt": 1}).returncode == 0
    assert [json.loads(line)["attempt"] for line in path.read_text().splitlines()[1:]] == [0, 1]


def test_a_directory_has_one_file_for_each_end(tmp_path: Path) -> None:
    for document in (END, END, {**END, "id": "etl@2026-11-25T02:00:00Z"}):
        files.to_file(f"{tmp_path}/", json.dumps(document))

    found = sorted(tmp_path.iterdir())
    assert len(found) == 2
    assert END in [json.loads(path.read_text()) for path in found]


def test_parquet_has_the_layout_of_the_history_s_tables(tmp_path: Path) -> None:
    for document in (END, END, {**END, "state": "failure", "attempt": 1, "exit_code": None, "args": {"day": "x"}}):
        files.to_parquet(str(tmp_path), json.dumps(document))

    assert [path.name for path in tmp_path.iterdir()] == ["date=2026-11-24"]
    rows = sorted(pq.read_table(tmp_path).to_pylist(), key=lambda row: row["attempt"])
    assert len(rows) == 2
    assert (rows[0]["id"], rows[0]["ended_at"] - rows[0]["started_at"], rows[0]["exit_code"]) == (END["id"], 2.5, 0)
    assert (rows[1]["exit_code"], json.loads(rows[1]["args"]), str(rows[1]["date"])) == (
        None,
        {"day": "x"},
        "2026-11-24",
    )


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.to_file(f"{tmp_path}/", json.dumps(END))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["file:///proc/nowhere/x", "file:///proc/", "parquet:///proc/nowhere"])
def test_what_cannot_be_written_is_a_failure_with_a_sentence(to: str) -> None:
    done = sent(to)

    assert done.returncode == 1
    assert f"{to} cannot be used: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sink_that_hangs_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never speaks
        port = silent.getsockname()[1]
        done = [
            sent(f"{to}", timeout_s=1.0)
            for to in (f"redis://127.0.0.1:{port}?stream=s", f"amqp://127.0.0.1:{port}/?queue=q")
        ]

    assert [one.returncode for one in done] == [124, 124], done
    assert "took nothing within 1 s" in done[0].stderr


def test_each_end_has_a_key_of_its_own() -> None:
    others = [{**END, "cluster": "c2"}, {**END, "attempt": 1}, {**END, "state": "failure"}, {**END, "id": "etl#x"}]
    keys = [files.key_of(json.dumps(each)) for each in (END, *others)]

    assert len(set(keys)) == len(keys)
    assert files.key_of(json.dumps({**END, "node": "edge-2"})) == keys[0]
    assert all(key.isascii() and " " not in key for key in keys)


def test_appenders_of_several_nodes_wait_for_each_other(tmp_path: Path) -> None:
    """As on NFS, where nothing else keeps one from writing over the other's line."""
    path = tmp_path / "outcomes.jsonl"
    with path.open("a") as other:
        fcntl.lockf(other, fcntl.LOCK_EX)
        assert sent(f"file://{path}", timeout_s=1.0).returncode == 124
    assert path.read_text() == ""
    assert sent(f"file://{path}").returncode == 0
    assert json.loads(path.read_text()) == END


def test_a_path_may_have_a_space(tmp_path: Path) -> None:
    assert sent(f"file://{tmp_path}/my%20out.jsonl").returncode == 0
    assert sent(f"parquet://{tmp_path}/my%20table").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my out.jsonl", "my table"]


def test_https_posts_have_the_key_of_their_end(tmp_path: Path) -> None:
    heard: list[tuple[str | None, str | None, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.headers["Idempotency-Key"], self.headers["Authorization"], body))
            self.send_response(503 if len(heard) == 1 else 204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
            pass

    (tmp_path / "token").write_text("secret\n")
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        to = f"http://127.0.0.1:{server.server_port}/o"
        assert [sent(to, token_file=str(tmp_path / "token")).returncode for _ in "12"] == [1, 0]
        server.shutdown()
    assert heard == [(files.key_of(json.dumps(END)), "Bearer secret", END)] * 2
