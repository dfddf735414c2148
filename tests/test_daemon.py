"""The composition root, without its event loop: what a start takes from the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fake_daemon import configuration, open_directory
from structlog.testing import capture_logs

from coordd.adapters.journal import Journal
from coordd.config import load
from coordd.core.events import TaskStarted
from coordd.daemon import Daemon

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
