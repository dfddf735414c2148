"""The composition root without its event loop: what a start reads from the disk, and what it says about the ledger."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from support.fake_daemon import configuration, open_directory

from coordd.adapters.disk.journal import Journal
from coordd.config.settings import load
from coordd.core.ledger.requests import Prune
from coordd.core.ready import LedgerRequest
from coordd.core.wire.events import TaskStarted
from coordd.daemon import Daemon
from coordd.errors import UnavailableError
from coordd.services.control import doctor

REDIS = 'ledger = "redis://127.0.0.1:1/0"'
SQLITE = ""


@pytest.fixture
def directory() -> Iterator[str]:
    with open_directory() as path:
        event = TaskStarted(uuid="u", name="j", run="j#1", attempt=0, token=7, nonce="n", node="edge-1.1")
        journal = Journal(f"{path}/state/journal")
        journal.append([msgspec.to_builtins(event)], sync=True)
        journal.close()
        yield path


@contextlib.contextmanager
def built(directory: str, ledger: str) -> Iterator[Daemon]:
    path = Path(configuration(directory))
    if ledger:
        path.write_text(path.read_text().replace(f'ledger = "sqlite:///{directory}/state/ledger.db"', ledger))
    daemon = Daemon(load(str(path), {}), str(path))
    try:
        yield daemon
    finally:
        daemon._close()


def test_a_server_may_forget_what_the_journal_holds(directory: str) -> None:
    with built(directory, REDIS) as daemon:
        daemon.recall()
        assert list(daemon.node.witness.seen) == [("j#1", 0, 7)]


def test_a_file_never_asks_for_it(directory: str) -> None:
    with built(directory, SQLITE) as daemon:
        daemon.recall()
        assert not daemon.node.witness.seen


def test_a_journal_that_cannot_be_read_does_not_end_the_start(directory: str) -> None:
    with built(directory, REDIS) as daemon, capture_logs() as logged:
        Path(f"{directory}/state/journal/99999999.jsonl").mkdir()
        daemon.recall()
        assert list(daemon.node.witness.seen) == [("j#1", 0, 7)], "what could be read"
    assert [line["event"] for line in logged] == ["journal.not_recalled"]


def give(daemon: Daemon, **ledger: Any) -> None:
    """Give the daemon a ledger that has only these methods."""
    made: Any = SimpleNamespace(close=lambda: None, **ledger)
    daemon.connections.open_ledger = lambda known=None: made  # type: ignore[method-assign]  # replaced for this test


def ledger_checks(daemon: Daemon, **ledger: Any) -> list[tuple[str, str, str]]:
    """The checks of `doctor` for such a ledger."""
    give(daemon, **ledger)
    return [(c["check"], c["state"], c["text"]) for c in daemon._doctor() if c["check"].startswith("ledger")]


def test_a_ledger_is_looked_through_where_it_can_be(directory: str) -> None:
    with built(directory, SQLITE) as daemon:
        assert ledger_checks(daemon, status=dict, integrity=list) == [("ledger", "ok", "intact")]
        wrong = lambda: ["page 7 is never used", "row 3 missing"]  # noqa: E731  # a function in one line
        assert ledger_checks(daemon, status=dict, integrity=wrong) == [
            ("ledger", "fail", "page 7 is never used; row 3 missing")
        ]


def test_a_server_is_asked_once_what_is_weaker(directory: str) -> None:
    asked = []

    def status() -> dict[str, Any]:
        asked.append(1)
        return {"weaker": ["no replica is connected"]}

    with built(directory, REDIS) as daemon:
        assert ledger_checks(daemon, status=status) == [
            ("ledger", "ok", "intact"),
            ("ledger server", "warn", "no replica is connected"),
        ]
    assert asked == [1]


@pytest.mark.parametrize("stops", [True, False])
def test_a_stop_of_the_machine_ends_the_runs_before_the_daemon(stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of the daemon alone leaves them."""
    happened: list[object] = []

    async def shut_down(reason: str, waits: Any) -> None:
        await trio.sleep(60.0)  # longer than everything else at a stop
        waits("it ends", 30.0)
        happened.append(reason)

    async def in_thread(call: Any, **_: object) -> object:
        return call()

    monkeypatch.setattr("coordd.daemon.machine_is_stopping", lambda: stops)
    monkeypatch.setattr(trio.to_thread, "run_sync", in_thread)  # the clock would not wait for a thread
    daemon: Any = SimpleNamespace(
        notifier=SimpleNamespace(notify=lambda *lines: happened.append(lines)),
        driver=SimpleNamespace(feed=happened.append),
        node=SimpleNamespace(stop="stop"),
        runners=SimpleNamespace(runners={"/run/x": None}, shut_down=shut_down),
    )
    daemon._waits = partial(Daemon._waits, daemon)
    trio.run(Daemon._farewell, daemon, clock=trio.testing.MockClock(autojump_threshold=0))
    ended = [("STATUS=it ends", "EXTEND_TIMEOUT_USEC=90000000", "WATCHDOG=1"), "the machine stops"]
    assert happened == [("STOPPING=1", "STATUS=stopping"), "stop", *(ended if stops else [])]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_while_the_daemon_stops_does_not_end_it(
    directory: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop of the machine may take minutes."""
    happened = stopped(directory, number, monkeypatch)
    assert happened == ["waited"]


def test_a_second_signal_to_stop_ends_it_at_once(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopped(directory, signal.SIGTERM, monkeypatch) == ["exit 1", "waited"]


def test_a_machine_without_a_free_thread_does_not_end_the_daemon(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of runs count with the daemon: one that leaks threads takes them all."""
    happened: list[str] = []
    in_thread = trio.to_thread.run_sync

    async def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def until(state: str, daemon: Daemon) -> None:
        with trio.fail_after(20.0):
            while daemon.ledger.state != state or not daemon.connections.known.pin:
                daemon.ledger.reset()
                daemon.node.look_again(daemon.driver.now())
                daemon.driver.pump()
                await trio.sleep(0.05)
        happened.append(state)

    async def lack(daemon: Daemon) -> None:
        await until("connected", daemon)
        monkeypatch.setattr(trio.to_thread, "run_sync", refused)
        await until("unavailable", daemon)
        assert daemon.ledger.error.startswith("this machine has no room for another thread: TasksMax")
        await trio.sleep(0.5)
        monkeypatch.setattr(trio.to_thread, "run_sync", in_thread)
        await until("connected", daemon)
        os.kill(os.getpid(), signal.SIGTERM)

    async def run(daemon: Daemon) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lack, daemon)
            assert await daemon.run() == 0

    monkeypatch.setattr("coordd.services.health.LOOK_S", 0.1)
    path = configuration(directory)
    with capture_logs() as said:
        trio.run(run, Daemon(load(path, {}), path))
    assert happened == ["connected", "unavailable", "connected"]
    assert "machine.no_thread" in [one["event"] for one in said]


def stopped(directory: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to a daemon that gets this signal while it stops; "default": it would have been killed."""
    happened: list[str] = []

    async def farewell() -> None:
        os.kill(os.getpid(), number)
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked(0.05)
        happened.append("waited")

    async def stop_soon(daemon: Daemon) -> None:
        while not daemon.connections.known.pin:  # no thread uses the ledger then, whose files are removed
            await trio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    async def run(daemon: Daemon) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_soon, daemon)
            assert await daemon.run() == 0

    monkeypatch.setattr("coordd.daemon.os._exit", lambda code: happened.append(f"exit {code}"))
    path = configuration(directory)
    daemon = Daemon(load(path, {}), path)
    monkeypatch.setattr(daemon, "_farewell", farewell)
    before = signal.signal(number, lambda *_: happened.append("default"))
    try:
        trio.run(run, daemon)
    finally:
        signal.signal(number, before)
    return happened


def test_a_disk_that_fails_at_a_stop_leaves_no_control_socket(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(daemon: Daemon) -> None:
        async with daemon.control.bind():
            daemon._close()

    with built(directory, SQLITE) as daemon:
        socket = Path(daemon.config.control.socket)
        with monkeypatch.context() as patch, capture_logs() as said:
            patch.setattr(daemon._journal, "close", raises(UnavailableError("cannot close the journal: I/O error")))
            trio.run(stop, daemon)
        assert socket.name not in os.listdir(socket.parent)
        assert [(one["event"], one["reason"]) for one in said if one["log_level"] == "error"] == [
            ("journal.not_closed", "cannot close the journal: I/O error")
        ]


def raises(exc: Exception) -> Any:
    def call(*_: object) -> None:
        raise exc

    return call


@contextlib.contextmanager
def unnamed(directory: str, monkeypatch: pytest.MonkeyPatch, fqdn: str, said: str = "") -> Iterator[Daemon]:
    """A daemon on a machine that calls itself so; ``said``: the name that its configuration sets."""
    monkeypatch.setattr("socket.getfqdn", lambda: fqdn)
    path = Path(configuration(directory))
    path.write_text(path.read_text().replace('name = "edge-1"', f'name = "{said}"' if said else ""))
    daemon = Daemon(load(str(path), {}), str(path))
    try:
        yield daemon
        daemon._save_mark(0)  # as at each start
    finally:
        daemon._close()


def said_of_the_name(daemon: Daemon) -> list[tuple[str, str]]:
    give(daemon, status=dict)
    return [(one["state"], one["text"]) for one in daemon._doctor() if one["check"] == "name"]


FULL = "edge-2.example.com"


def test_a_node_keeps_its_name_while_dns_is_away(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drains and runs for one node are of that name; the short one would be another node."""
    with unnamed(directory, monkeypatch, FULL) as daemon, capture_logs() as logged:
        assert said_of_the_name(daemon) == []
    for _ in range(2):
        with capture_logs() as logged, unnamed(directory, monkeypatch, "edge-2") as daemon:
            assert daemon.node.hostname == daemon.builder.config.node.name == daemon.config.node.name == FULL
            [(state, text)] = said_of_the_name(daemon)
            assert state == "warn"
            assert text.startswith(f"this machine is called edge-2 now, and the node keeps the name {FULL}")
        assert [line["warning"] for line in logged if line["event"] == "node.name_changed"] == [text]
    with unnamed(directory, monkeypatch, FULL.upper()) as daemon:
        assert daemon.node.hostname == FULL
    with unnamed(directory, monkeypatch, FULL) as daemon:
        assert said_of_the_name(daemon) == []


def test_a_reload_while_dns_is_away_asks_for_no_restart(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with unnamed(directory, monkeypatch, FULL) as daemon:
        monkeypatch.setattr("socket.getfqdn", lambda: "edge-2")
        assert daemon.reload()["needs_restart"] == []
        assert daemon.config.node.name == FULL
        assert len(said_of_the_name(daemon)) == 1


def test_a_machine_of_another_name_is_another_node(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with unnamed(directory, monkeypatch, FULL):
        pass
    with capture_logs() as logged, unnamed(directory, monkeypatch, "edge-3.example.com") as daemon:
        assert daemon.node.hostname == "edge-3.example.com"
        [(_, text)] = said_of_the_name(daemon)
        assert text.startswith(f"this machine is called edge-3.example.com now, and the node was {FULL}")
    assert text in [line.get("warning") for line in logged]
    with unnamed(directory, monkeypatch, "edge-3.example.com") as daemon:
        assert said_of_the_name(daemon) == []


def test_a_name_that_is_set_counts_always_and_is_not_kept(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with unnamed(directory, monkeypatch, FULL):
        pass
    with unnamed(directory, monkeypatch, "edge-2", said="edge-2") as daemon:
        assert daemon.node.hostname == "edge-2"
        assert said_of_the_name(daemon) == []
    with unnamed(directory, monkeypatch, FULL) as daemon:
        assert daemon.node.hostname == FULL
        assert said_of_the_name(daemon) == []


def test_a_replica_which_refuses_every_write_is_a_failure(directory: str) -> None:
    weaker = ["only snapshots are written to disk", "this server is a replica: the ledger needs the master"]
    with built(directory, REDIS) as daemon:
        found = ledger_checks(daemon, status=lambda: {"weaker": weaker, "role": "replica"})
    assert [state for _, state, _ in found] == ["ok", "warn", "fail"]


def test_a_ledger_that_does_not_do_what_this_node_asks_is_a_failure(directory: str) -> None:
    with built(directory, REDIS) as daemon:
        trio.run(daemon.ledger._ask, [LedgerRequest(1, Prune(keep_s=1.0, limit=1))])
        found = trio.run(doctor.cluster_checks, daemon.driver, daemon.ledger, "redis://127.0.0.1:1/0")
    [said] = [c for c in found if c["check"] == "ledger state"]
    assert said["state"] == "fail"
    assert "Connection refused" in said["text"]
