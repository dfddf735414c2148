"""Drivers on Standalone: how they are recognised, whose word counts as an end, and what proves nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.clusters.standalone import FakeStandalone
from support.clusters.wire import MISCHIEF, Asked

from coordd.adapters.cluster import standalone
from coordd.adapters.cluster.opening import open_manager
from coordd.adapters.cluster.standalone import Standalone
from coordd.core.jobs.applications import ALIVE, ENDED, FAILED, KILLED, SUCCEEDED, cluster_mark, property_mark, run_mark
from coordd.errors import UnavailableError

RUN = "nightly@2026-12-01T02:00:00Z"
MARK = run_mark("prod", RUN)
GONE = "driver-20261124110503-0099"


@pytest.fixture
def fake() -> Iterator[FakeStandalone]:
    with FakeStandalone() as fake:
        yield fake


def marks(attempt: int = 0, token: int = 7, run: str = RUN, cluster: str = "prod") -> str:
    return property_mark(cluster, run, attempt, token)


def client(*fakes: FakeStandalone, answer_s: float = 5.0) -> Standalone:
    ports = {fake.port for fake in fakes}
    conf = {"spark.master.ui.port": str(min(ports)), "spark.master.rest.port": str(fakes[0].port)}
    way = open_manager(f"spark://{','.join(['127.0.0.1:7077'] * len(fakes))}", conf, {}, answer_s=answer_s)
    assert isinstance(way, Standalone)
    return way


def logs_read(fake: FakeStandalone) -> int:
    return len([one for one in fake.asked if one.path.startswith("/log/")])


def test_a_driver_is_found_by_the_mark_in_its_command(fake: FakeStandalone) -> None:
    ident = fake.submit(marks(2, 42))
    fake.submit(marks(run="hourly#1"))
    fake.submit("")

    (found,) = client(fake).find(MARK)

    assert (found.id, found.state, found.run_mark, found.attempt, found.token) == (ident, ALIVE, MARK, 2, 42)
    assert found.started_at > 1_700_000_000
    assert found.ui == f"{fake.url}/logPage/?driverId={ident}&logType=stderr"


def test_the_marks_of_a_driver_are_read_once(fake: FakeStandalone) -> None:
    fake.submit(marks())
    way = client(fake)
    way.find(MARK)
    asked = logs_read(fake)

    way.find(MARK)

    assert logs_read(fake) == asked == 1


def test_a_driver_without_a_worker_is_found_by_its_id(fake: FakeStandalone) -> None:
    ident = fake.submit(marks(), "SUBMITTED")

    assert client(fake).find(MARK) == []
    assert [(one.id, one.state, one.run_mark) for one in client(fake).find(MARK, {ident})] == [(ident, ALIVE, MARK)]


def test_a_living_driver_that_nobody_can_recognise_is_hidden(fake: FakeStandalone) -> None:
    fake.submit(marks(run="hourly#1"))
    assert client(fake).hidden() == {}
    ident = fake.submit("", "SUBMITTED")

    assert f"whose driver {ident} is cannot be told yet" in client(fake).hidden()[ident]
    assert client(fake).hidden({ident}) == {}
    fake.ends(ident, "KILLED", "")
    assert client(fake).hidden() == {}, "it has ended"


@pytest.mark.parametrize(("state", "expected"), [("FINISHED", 1), ("ERROR", 1), ("FAILED", 0), ("KILLED", 0)])
def test_an_ended_driver_that_nobody_can_recognise_is_hidden_unless_it_surely_failed(
    fake: FakeStandalone, state: str, expected: int
) -> None:
    ident = fake.submit("", "SUBMITTED")
    fake.ends(ident, state, "")

    assert client(fake).hidden() == {}
    assert [*client(fake).hidden(ended=True)] == [ident] * expected


def test_a_log_of_an_ended_driver_without_a_mark_is_read_once(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    del fake.logs[ident]
    fake.ends(ident, "FINISHED")
    way = client(fake)
    for _ in range(3):
        way.find(MARK)

    assert logs_read(fake) == 1
    assert [*way.hidden(ended=True)] == [ident]


def test_a_worker_that_does_not_answer_is_asked_once_in_a_look_up(fake: FakeStandalone) -> None:
    for _ in range(30):
        fake.submit(marks(run="hourly#1"))
    hung, begun = threading.Event(), []

    def hang(asked: Asked) -> None:
        if asked.path.startswith("/log/"):
            begun.append(asked.path)
            hung.wait(20)

    fake.on_ask = hang
    way = client(fake, answer_s=0.5)

    assert way.find(MARK) == []
    assert len(way.hidden()) == 30
    assert way.of_cluster(cluster_mark("prod")) == []
    assert len(begun) == 3, "each of the three asked again"

    hung.set()
    fake.on_ask = lambda asked: None

    assert client(fake).hidden() == {}


def test_a_look_up_has_a_deadline(fake: FakeStandalone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "LOOKUP_ANSWERS", 0.1)
    for _ in range(20):
        fake.submit(marks(run="hourly#1"))
    ident = fake.submit(marks())
    fake.on_ask = lambda asked: time.sleep(0.1) if asked.path.startswith("/log/") else None
    way = client(fake)

    with pytest.raises(UnavailableError, match="the look-up of its drivers took too long"):
        way.find(MARK)
    for look in (way.hidden, lambda: way.of_cluster(cluster_mark("prod"))):
        with pytest.raises(UnavailableError, match="took too long"):
            look()

    monkeypatch.setattr(standalone, "LOOKUP_ANSWERS", 3.0)
    assert [one.id for one in way.find(MARK)] == [ident]


def test_a_log_that_does_not_begin_yet_says_nothing(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    log = fake.logs.pop(ident)
    way = client(fake)
    assert way.find(MARK) == []
    assert [*way.hidden()] == [ident]

    fake.logs[ident] = log

    assert [one.id for one in way.find(MARK)] == [ident]


def test_a_mark_counts_in_the_command_alone(fake: FakeStandalone) -> None:
    ident = fake.submit("")
    fake.logs[ident] += f'said by the program: "-Dspark.coordd.mark={marks()}"\n'

    assert client(fake).find(MARK) == []


@pytest.mark.parametrize(
    ("master", "worker", "expected"),
    [
        ("FINISHED", "FINISHED", SUCCEEDED),
        ("FINISHED", "", ENDED),
        ("FINISHED", "FAILED", FAILED),
        ("FINISHED", "RUNNING", ALIVE),
        ("FAILED", "FAILED", FAILED),
        ("FAILED", "", FAILED),
        ("KILLED", "KILLED", KILLED),
        ("KILLED", "", KILLED),
        ("ERROR", "ERROR", FAILED),
        ("ERROR", "", ENDED),
        ("ERROR", "FINISHED", SUCCEEDED),
        ("RELAUNCHING", "FAILED", ALIVE),
        ("UNKNOWN", "", ALIVE),
        ("A_NEW_STATE", "FINISHED", ALIVE),
    ],
)
def test_the_end_is_what_the_worker_says(fake: FakeStandalone, master: str, worker: str, expected: str) -> None:
    ident = fake.submit(marks())
    fake.ends(ident, master, worker)

    (found,) = client(fake).find(MARK)

    assert found.state == expected


def test_a_finished_driver_of_a_lost_worker_is_no_success(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    fake.ends(ident, "FINISHED")
    way = client(fake)
    assert way.find(MARK)[0].state == SUCCEEDED

    fake.worker_state = "DEAD"

    (found,) = way.find(MARK)
    assert (found.state, found.detail) == (ENDED, "the master says FINISHED, and no worker tells how it ended")


def test_a_living_worker_that_does_not_answer_is_no_answer(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    fake.ends(ident, "FINISHED")
    fake.worker_fails = True

    with pytest.raises(UnavailableError, match="expected 200, found 500"):
        client(fake).find(MARK, {ident})


def test_why_a_driver_failed(fake: FakeStandalone) -> None:
    one, two, three = fake.submit(marks()), fake.submit(marks()), fake.submit(marks())
    fake.ends(one, "ERROR", notes="java.nio.file.NoSuchFileException: /nonexistent.jar &lt;1&gt; token=hunter2")
    fake.ends(two, "FAILED")
    fake.ends(three, "FAILED", "")
    fake.logs[two] += "\tat org.example.Waits\nCaused by: java.lang.IllegalStateException: password=hunter2\n\tat x\n"

    first, second, third = client(fake).find(MARK)

    assert first.detail == "java.nio.file.NoSuchFileException: /nonexistent.jar <1> token=***"
    assert second.detail == "Caused by: java.lang.IllegalStateException: password=***"
    assert third.detail == "the master says FAILED, and no worker tells how it ended"


def test_a_driver_that_ended_before_the_master_was_restarted_has_its_end_from_the_worker(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    fake.ends(ident, "ERROR", "FINISHED")
    fake.drivers[ident]["worker"] = "None"  # as a master says after its restart

    assert [(one.id, one.state) for one in client(fake).find(MARK, {ident})] == [(ident, SUCCEEDED)]


def test_a_driver_that_a_restarted_master_has_forgotten_is_asked_of_the_workers(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    fake.ends(ident, "FINISHED")
    del fake.drivers[ident]

    assert client(fake).find(MARK) == []
    assert [(one.id, one.state) for one in client(fake).find(MARK, {ident, GONE})] == [(ident, SUCCEEDED)]


def test_all_drivers_of_a_coordd_cluster_are_found(fake: FakeStandalone) -> None:
    mine = [fake.submit(marks()), fake.submit(marks(run="hourly#1"))]
    fake.submit(marks(cluster="test"))
    fake.submit("a.b")

    assert [one.id for one in client(fake).of_cluster(cluster_mark("prod"))] == mine


@pytest.mark.parametrize("mischief", MISCHIEF)
def test_a_master_that_misbehaves_is_no_answer(fake: FakeStandalone, mischief: str) -> None:
    fake.submit(marks())
    fake.mischief = mischief

    with pytest.raises(UnavailableError) as caught:
        client(fake, answer_s=1.0).find(MARK)

    assert f"127.0.0.1:{fake.port}" in str(caught.value)


@pytest.mark.parametrize("status", ["STANDBY", "RECOVERING", "COMPLETING_RECOVERY"])
def test_a_master_that_recovers_is_not_believed(fake: FakeStandalone, status: str) -> None:
    fake.status = status

    with pytest.raises(UnavailableError, match=f'expected a master with status ALIVE, found "{status}"'):
        client(fake).find(MARK)


def test_the_active_one_of_several_masters_is_asked(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    way = Standalone(
        "spark://127.0.0.2:7077,127.0.0.1:7077",  # nobody listens at the first one
        {"spark.master.ui.port": str(fake.port), "spark.master.rest.port": str(fake.port)},
        answer_s=5.0,
    )

    assert [one.id for one in way.find(MARK)] == [ident]
    way.end(ident)
    assert way.find(MARK)[0].state == KILLED


def test_a_driver_is_ended_through_the_rest_server(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())

    client(fake).end(ident)
    client(fake).end(GONE)

    assert client(fake).find(MARK)[0].state == KILLED
    fake.refuses = "Current state is not alive: STANDBY. Can only kill drivers in ALIVE state."
    with pytest.raises(UnavailableError, match="expected success for its end"):
        client(fake).end(ident)


def test_without_a_rest_server_nothing_is_ended_and_why_is_said(fake: FakeStandalone) -> None:
    ident = fake.submit(marks())
    conf = {"spark.master.ui.port": str(fake.port), "spark.master.rest.port": "1"}

    with pytest.raises(UnavailableError, match=r"spark\.master\.rest\.enabled"):
        Standalone("spark://127.0.0.1:7077", conf).end(ident)


def test_a_master_never_proves_that_it_forgot_nothing(fake: FakeStandalone) -> None:
    assert "forgets ended drivers when it restarts" in client(fake).keeps_since(0.0)


def test_a_master_without_a_host_is_refused() -> None:
    with pytest.raises(UnavailableError, match="expected spark://HOST:PORT"):
        Standalone("spark://m", {})
