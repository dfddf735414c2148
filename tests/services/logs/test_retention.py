"""Retention: by age, and by size, the oldest first and nothing of the last day."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from support.memory import MemoryLedger
from support.small_cluster import asked_for

from coordd.adapters.disk.journal import Journal
from coordd.config.sections import HistoryConfig
from coordd.core.ledger.requests import Register, Revoke
from coordd.core.ledger.rows import LedgerTime
from coordd.services.logs import retention as module
from coordd.services.logs.retention import Retention

NOW = 1_700_000_000.0
DAY_S = 86400.0
DEFAULT = HistoryConfig()


class Room:
    """A journal, logs and a ledger. Its files are sparse: sizes cost nothing."""

    def __init__(self, path: Path) -> None:
        self.logs = path / "logs"
        (self.logs / "sales").mkdir(parents=True)
        self.journal = Journal(str(path / "journal"))
        self.times = [NOW]
        self.ledger = MemoryLedger(clock=lambda: LedgerTime(self.times[0], 500.0))
        self.history = DEFAULT
        opened: Any = SimpleNamespace(prune=self.ledger.prune, ended_ago=self.ledger.ended_ago, close=lambda: None)
        self.retention = Retention(
            lambda: self.history, self.journal, str(self.logs), lambda: opened, lambda: self.times[0]
        )

    def put(self, place: str, size: int, age_s: float) -> Path:
        path = self.logs.parent / place
        with path.open("wb") as file:
            file.truncate(size)
        os.utime(path, (NOW - age_s, NOW - age_s))
        return path

    def ended(self, count: int, first: int = 0) -> None:
        """Runs that end, one a minute."""
        for number in range(first, first + count):
            self.times[0] += 60.0
            self.ledger.ask(Register(of=asked_for(f"sales#{number}")))
            self.ledger.ask(Revoke(run=f"sales#{number}", by="root"))

    def left(self) -> list[str]:
        return sorted(self.ledger._store.runs, key=lambda run: int(run.partition("#")[2]))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_more_rows_than_one_bite_are_forgotten_in_one_cleaning(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRUNE_AT_ONCE", 10)
    room.ledger.ask(Register(of=asked_for("sales#99")))
    for number in range(34):
        room.ledger.ask(Register(of=asked_for(f"sales#{number}")))
        room.ledger.ask(Revoke(run=f"sales#{number}", by="root"))

    room.times[0] += DEFAULT.keep_s
    room.retention.clean()
    assert len(room.left()) == 35, "by the ledger's time they are to be kept"

    room.times[0] += 1.0
    room.retention.clean()
    assert room.left() == ["sales#99"], "it has not ended"


def test_of_too_many_runs_the_newest_stay(room: Room) -> None:
    room.history = structs.replace(DEFAULT, keep_runs=5)
    room.ended(8)
    room.times[0] += 2 * DAY_S
    room.retention.clean()
    assert room.left() == [f"sales#{number}" for number in range(2, 8)]  # what ended at that very instant stays too


@pytest.mark.parametrize("keep_runs", [0, 5, 100])
def test_runs_of_the_last_day_stay_however_many_they_are(room: Room, keep_runs: int) -> None:
    room.history = structs.replace(DEFAULT, keep_runs=keep_runs)
    room.ended(8)
    room.retention.clean()
    assert len(room.left()) == 8


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ("0", ["0", "1", "2", "3", "4", "5"]),
        ("7M", ["0", "1", "2", "3", "4", "5"]),
        ("6M", ["0", "1", "2", "3", "4", "5"]),
        ("5M", ["0", "1", "2", "3", "4"]),
        ("3M", ["0", "1", "2"]),
        ("1M", ["0"]),
    ],
)
def test_of_too_many_logs_the_newest_stay(room: Room, sizes: str, left: list[str]) -> None:
    room.history = structs.replace(DEFAULT, logs_size=sizes)
    for days in range(6):
        room.put(f"logs/sales/{days}", 2**20, (days + 0.5) * DAY_S)
    room.retention.clean()
    assert sorted(path.name for path in (room.logs / "sales").iterdir()) == left


def test_many_small_logs_count_as_what_the_disk_has_of_them(room: Room) -> None:
    """A log of one byte takes a block: a bound of bytes alone would fill the disk with them."""
    room.history = structs.replace(DEFAULT, logs_size="100K")
    for number in range(100):
        path = room.put(f"logs/sales/{number}", 0, 0)
        path.write_bytes(b"x")
        os.utime(path, (NOW - (number + 48) * 3600.0,) * 2)
    room.retention.clean()
    left = sorted([int(path.name) for path in (room.logs / "sales").iterdir()])
    assert left == list(range(len(left))), "the newest stay"
    blocks = sum(path.stat().st_blocks * 512 for path in (room.logs / "sales").iterdir())
    assert 0 < blocks <= 100 * 1024


def test_logs_and_segments_of_the_last_day_stay_however_large_they_are(room: Room) -> None:
    room.history = structs.replace(DEFAULT, logs_size="1K", journal_size="1K")
    log = room.put("logs/sales/1", 2**30, DAY_S - 60.0)
    segments = [room.put(f"journal/0000000{number}.jsonl", 2**30, DAY_S - 60.0 + number) for number in (1, 2)]
    room.retention.clean()
    assert log.exists()
    assert segments[0].exists()


def test_what_is_too_old_is_removed_whatever_its_size(room: Room) -> None:
    log = room.put("logs/sales/1", 1, DEFAULT.logs_keep_s + 60.0)
    segments = [room.put(f"journal/0000000{number}.jsonl", 1, DEFAULT.journal_keep_s + 60.0) for number in (1, 2)]
    room.retention.clean()
    assert not log.exists()
    assert [path.exists() for path in segments] == [False, True], "the newest segment stays: numbers go on from it"


def test_of_too_much_journal_the_newest_stays(room: Room) -> None:
    room.history = structs.replace(DEFAULT, journal_size="3M")
    segments = [room.put(f"journal/0000000{n}.jsonl", 2**20, (9 - n) * DAY_S) for n in range(1, 6)]
    room.retention.clean()
    assert [path.exists() for path in segments] == [False, False, True, True, True]


def test_where_the_size_removes_records_older_ones_than_a_day_may_be_away(room: Room) -> None:
    assert room.retention.oldest() == NOW - DEFAULT.journal_keep_s
    room.put("journal/00000001.jsonl", 2**20, 5 * DAY_S)
    room.history = structs.replace(DEFAULT, journal_size="3M")
    assert room.retention.oldest() == NOW - DEFAULT.journal_keep_s, "not nearly full"
    room.history = structs.replace(DEFAULT, journal_size="2M")
    assert room.retention.oldest() == NOW - DAY_S


def test_a_log_that_somebody_else_removes_meanwhile_does_not_matter(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.put("logs/sales/1", 1, DEFAULT.logs_keep_s + 60.0)
    gone = room.put("logs/sales/2", 1, DEFAULT.logs_keep_s + 60.0)
    real: Callable[..., os.stat_result] = os.stat

    def stat(path: str, **more: Any) -> os.stat_result:
        if str(path) == str(gone):
            raise FileNotFoundError(path)
        return real(path, **more)

    monkeypatch.setattr(os, "stat", stat)
    room.retention.clean()
    assert [path.name for path in (room.logs / "sales").iterdir()] == ["2"]
