"""The UI of a Spark driver, asked over a real socket. What Spark itself answers is tested in
tests/system/runner/test_progress.py."""

from __future__ import annotations

import json
import os
import pwd
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.drivers import listeners, ui
from coordd.adapters.drivers.ui import SparkUi
from coordd.adapters.spark import SECRETS_FILE
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Driven, Seen

APP = "local-1795226523254"
JOB = {
    "jobId": 0, "stageIds": [0, 1, 2], "numTasks": 40, "numActiveTasks": 2, "numCompletedTasks": 12,
    "numSkippedTasks": 10, "numFailedTasks": 3, "numCompletedStages": 1, "numSkippedStages": 1, "numFailedStages": 0,
}  # fmt: skip


class FakeUi:
    """A listener that answers HTTP/1.0 as Spark does, with answers that a test may spoil."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("0.0.0.0", 0))  # noqa: S104 - as Spark does
        self.port = self.listener.getsockname()[1]
        self.asked: list[str] = []
        environment = {"sparkProperties": [["spark.coordd.run", "etl#1"], ["spark.coordd.attempt", "2"],
                                           ["spark.driver.host", "edge-1.example"], ["odd"]]}  # fmt: skip
        self.bodies: dict[str, Any] = {
            "/api/v1/applications": [{"id": APP, "name": "etl"}],
            f"/api/v1/applications/{APP}/environment": environment,
            f"/api/v1/applications/{APP}/jobs": [JOB, {**JOB, "numFailedTasks": 0}],
        }
        self.raw: bytes | None = None  # instead of an answer
        self.drip_s = 0.0  # between two bytes of it
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock:
            path = sock.recv(65536).split(b" ")[1].decode()
            self.asked.append(path)
            try:
                for piece in self._pieces(path):
                    sock.sendall(piece)
                    time.sleep(self.drip_s)
            except OSError:
                return  # the reader had enough

    def _pieces(self, path: str) -> Iterator[bytes]:
        raw = self.raw
        if raw is None:
            raw = b"HTTP/1.1 200 OK\r\nServer: fake\r\n\r\n" + json.dumps(self.bodies[path]).encode()
        yield from ([raw] if not self.drip_s else [raw[at : at + 1] for at in range(len(raw))])


@pytest.fixture
def spark() -> Iterator[FakeUi]:
    fake = FakeUi()
    yield fake
    fake.listener.close()


def driven(directory: Path, **conf: str) -> Driven:
    return Driven(
        "etl#1", 2, os.getpid(), str(directory), {key.replace("_", "."): v for key, v in conf.items()}, "edge-1"
    )


def test_it_finds_the_ui_of_the_attempt_and_adds_up_its_jobs(spark: FakeUi, tmp_path: Path) -> None:
    looked = SparkUi(driven(tmp_path))

    assert looked.look(APP, 10.0) == Seen(4, 2, 60, 24, 3, f"http://edge-1.example:{spark.port}")
    assert looked.look(APP, 10.0).tasks == 60
    assert spark.asked.count("/api/v1/applications") == 1, "its place is known from then on"


@pytest.mark.usefixtures("spark")
def test_listeners_that_cannot_be_a_ui_are_not_asked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        port = other.getsockname()[1]
        with pytest.raises(UnavailableError):  # so every candidate is asked
            SparkUi(driven(tmp_path)).look("another", 2.0)

        with pytest.raises(BlockingIOError):
            other.accept()
        assert listeners.Listener("127.0.0.1", port, everywhere=False) in listeners.of_program(os.getpid())
        with pytest.raises(UnavailableError):  # it is asked if the job's conf names its port
            SparkUi(driven(tmp_path, spark_ui_port=str(port)))._find("another", time.monotonic() + 1.0)
        other.accept()[0].close()


@pytest.mark.parametrize(("key", "value"), [("spark.coordd.run", "etl#2"), ("spark.coordd.attempt", "1")])
def test_the_ui_of_another_run_or_attempt_does_not_count(spark: FakeUi, tmp_path: Path, key: str, value: str) -> None:
    properties = spark.bodies[f"/api/v1/applications/{APP}/environment"]["sparkProperties"]
    properties[:] = [[key, value] if pair[0] == key else pair for pair in properties]

    with pytest.raises(UnavailableError, match="is another driver's"):
        SparkUi(driven(tmp_path)).look(APP, 10.0)


@pytest.mark.usefixtures("spark")
def test_the_ui_of_another_application_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="not there yet"):
        SparkUi(driven(tmp_path)).look("local-1", 10.0)
    assert SparkUi(driven(tmp_path)).look("", 10.0), "until the id is known, the run's own conf is enough"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nSpark is starting up. Please wait", "it may still start"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://rm:8088/proxy\r\n\r\n", "answers 302 .a proxy or TLS"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "answers 401 .it wants a log-in"),
        (b"HTTP/1.1 500 Oops\r\n\r\n<html>", "answers 500"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "something else than its REST interface"),
        (b"HTTP/1.1 200 OK\r\n\r\n[1, null]", "not there yet"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "it may still start"),
    ],
)
def test_an_answer_that_makes_no_sense_is_named(spark: FakeUi, tmp_path: Path, raw: bytes, why: str) -> None:
    spark.raw = raw

    with pytest.raises(UnavailableError, match=why):
        SparkUi(driven(tmp_path)).look(APP, 10.0)


@pytest.mark.parametrize(
    "jobs",
    [
        {},
        [1],
        [{**JOB, "numTasks": -1}],
        [{**JOB, "numTasks": "7"}],
        [{**JOB, "numFailedTasks": True}],
        [{"stageIds": None}],
    ],
)
def test_counts_that_are_none_are_refused(spark: FakeUi, tmp_path: Path, jobs: Any) -> None:
    spark.bodies[f"/api/v1/applications/{APP}/jobs"] = jobs

    with pytest.raises(UnavailableError, match="answers"):
        SparkUi(driven(tmp_path)).look(APP, 10.0)


def test_an_answer_has_a_size_and_a_time_as_a_whole(
    spark: FakeUi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui, "ANSWER_BYTES_MAX", 1000)
    spark.raw = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000
    with pytest.raises(UnavailableError, match="more than 1000 bytes"):
        SparkUi(driven(tmp_path)).look(APP, 10.0)
    spark.drip_s = 0.05  # each byte in time, all of them never
    with pytest.raises(UnavailableError, match="timed out"):
        SparkUi(driven(tmp_path)).look(APP, 0.3)


@pytest.mark.parametrize("line", ["spark.ui.enabled=false", "spark.ui.enabled   FALSE", " spark.ui.enabled: false"])
def test_a_ui_that_is_switched_off_is_said_plainly(spark: FakeUi, tmp_path: Path, line: str) -> None:
    (tmp_path / SECRETS_FILE).write_text(f"spark.ui.enabled=true\n{line}\nspark.ui.enabledX=true\n")

    with pytest.raises(RefusedError, match=r"spark\.ui\.enabled"):
        SparkUi(driven(tmp_path)).look(APP, 10.0)
    assert spark.asked == []


@pytest.mark.usefixtures("spark")
def test_a_job_in_a_unit_has_only_its_own_conf(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"spark\.ui\.enabled"):
        SparkUi(driven(tmp_path / "none", spark_ui_enabled="False")).look(APP, 10.0)


def test_a_program_that_is_gone_listens_nowhere() -> None:
    assert listeners.of_program(2**22 + 1) == []


def test_of_a_user_whose_processes_are_hidden_every_listener_counts(spark: FakeUi, tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    hidden = driven(tmp_path)._replace(program=2**22 + 1)

    assert ("127.0.0.1", spark.port, True) in listeners.of_program(hidden.program, user)
    assert listeners.of_program(hidden.program, "nobody-has-this-name") == []
    with pytest.raises(UnavailableError, match="not there yet"):
        SparkUi(hidden).look(APP, 10.0)


def test_addresses_are_read_in_both_families() -> None:
    assert listeners._listener("0100007F:0FC8") == ("127.0.0.1", 4040, False)
    assert listeners._listener("00000000:0FC8") == ("127.0.0.1", 4040, True)
    assert listeners._listener(f"{'0' * 32}:0FC8") == ("127.0.0.1", 4040, True)
    assert listeners._listener("0000000000000000FFFF0000020200C0:0FC8") == ("192.0.2.2", 4040, False)
    assert listeners._listener("00000000000000000000000001000000:0FC8") == ("::1", 4040, False)
