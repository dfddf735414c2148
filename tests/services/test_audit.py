"""The audit: recorded calls, counted calls, and the chain over segments, restarts and crashes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.disk import audit_files
from coordd.adapters.disk.audit_files import AuditChain, check, load_head
from coordd.adapters.disk.journal import CURRENT, Journal
from coordd.core.wire.chain import Checked
from coordd.errors import UnavailableError
from coordd.services.audit import OTHERS, WINDOW_MAX_S, WINDOW_S, WINDOWS_MAX, Audit, audit_view


class Desk:
    """An audit with a clock of the test, and its records."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.written: list[dict[str, Any]] = []
        self.audit = Audit(self.written.append, clock=lambda: self.now)

    def refused(self, count: int = 1, *, uid: int = 1000, method: str = "run.cancel") -> None:
        for number in range(count):
            self.audit.refused({"method": method, "subject": f"j#{number}", "uid": uid, "reason": "no"})

    def wait(self, seconds: float) -> None:
        """Time passes; the audit is called as the server calls it."""
        end = self.now + seconds
        while self.now < end:
            self.now += min(5.0, end - self.now)
            self.audit.look()


def test_each_change_is_a_record() -> None:
    desk = Desk()
    for number in range(3):
        desk.audit.done({"method": "run.cancel", "subject": f"j#{number}", "uid": 0})
    assert [(r["subject"], r["outcome"]) for r in desk.written] == [(f"j#{n}", "done") for n in range(3)]


def test_of_refused_calls_the_first_is_recorded_at_once_and_the_others_are_counted() -> None:
    desk = Desk()
    desk.refused(100)
    assert [r["subject"] for r in desk.written] == ["j#0"]
    desk.refused(1, method="node.drain")
    desk.refused(1, uid=1001)
    assert len(desk.written) == 3
    desk.wait(WINDOW_S)
    assert [(r["subject"], r["count"], r["outcome"]) for r in desk.written[3:]] == [("j#99", 99, "refused")]


def test_a_flood_of_days_is_a_record_an_hour() -> None:
    desk = Desk()
    for _ in range(2 * 86400 // 60):
        desk.refused(50)
        desk.wait(60.0)
    assert len(desk.written) < 2 * 24 + 12
    desk.audit.close()
    assert sum(r.get("count", 1) for r in desk.written) == 50 * 2 * 86400 // 60


def test_many_users_share_windows() -> None:
    desk = Desk()
    for uid in range(10 * WINDOWS_MAX):
        desk.refused(uid=uid)
    assert len(desk.written) == WINDOWS_MAX + 1
    assert (OTHERS, "run.cancel", "refused") in desk.audit._windows
    desk.wait(2 * WINDOW_MAX_S)
    assert desk.audit._windows == {}


def test_texts_are_bounded() -> None:
    desk = Desk()
    desk.audit.refused({"method": "m", "uid": 1, "subject": "x" * 100_000, "reason": "y" * 100_000})
    assert len(str(desk.written[0])) < 1000


# ---- on the disk


class Node:
    """A journal with its chain, which is restarted many times."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.directory, self.head, self.options = str(path / "journal"), str(path / "audit.json"), options
        self.number = 0
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.directory, **self.options)
        self.chain = AuditChain(self.journal, self.head)

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            self.journal.append([{"type": "task-sent", "run": f"j#{self.number}"}], sync=False)
            self.chain.append({"type": "control", "timestamp": float(self.number), "method": "run.cancel", "uid": 0})

    def crash(self) -> None:
        os.close(self.journal._fd)
        os.close(self.journal._lock)

    def check(self, oldest: float = 0.0) -> Checked:
        return check(self.directory, self.head, since=0.0, limit=10_000, oldest=oldest)


def test_the_chain_goes_on_over_segments_and_restarts(tmp_path: Path) -> None:
    node = Node(tmp_path, segment_bytes_max=1000)
    for _ in range(4):
        node.write(10)
        node.journal.close()
        node.start()
    found = node.check()
    assert (found.breaks, found.total, found.first) == ([], 40, 1)
    assert len(node.journal.closed()) > 4


def test_retention_is_no_break(tmp_path: Path) -> None:
    node = Node(tmp_path, segment_bytes_max=1000)
    node.write(40)
    for path in node.journal.closed()[:3]:
        os.utime(path, (0, 0))
    assert len(node.journal.prune(60.0, 10**9)) == 3
    found = node.check()
    assert found.breaks == []
    assert found.first > 1


def test_a_torn_last_line_is_no_break(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(5)
    with open(f"{node.directory}/{CURRENT}", "ab") as file:
        file.write(b'{"type":"control","n":6,"prev":"abc')
    assert node.check().breaks == []  # while it stands there
    node.crash()
    node.start()
    node.write(2)
    found = node.check()
    assert (found.breaks, found.total) == ([], 7)


def test_a_crash_before_the_head_was_saved_is_no_break(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(5)
    saved = Path(node.head).read_bytes()
    node.write(1)
    node.crash()
    Path(node.head).write_bytes(saved)
    assert node.check().breaks == []
    node.start()
    node.write(1)
    found = node.check()
    assert (found.breaks, found.total) == ([], 7)
    head = load_head(node.head)
    assert head is not None
    assert head.number == 7


def test_a_journal_of_an_older_version_is_the_beginning(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.journal.append(
        [{"type": "control", "timestamp": 0.5, "method": "run.cancel", "uid": 0, "by": "ann"}], sync=True
    )
    node.write(3)
    found = node.check()
    assert (found.breaks, found.total, found.first) == ([], 4, 1)
    assert [record["n"] for record in audit_view(found)["records"]] == [None, 1, 2, 3]


@pytest.mark.parametrize("what", ["edited", "removed", "cut"])
def test_a_journal_that_somebody_changed_is_named_by_file_and_line(tmp_path: Path, what: str) -> None:
    node = Node(tmp_path, segment_bytes_max=1000)
    node.write(20)
    node.journal.close()
    path = Path(node.journal.closed()[-1] if what == "cut" else node.journal.closed()[2])
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"control"' in line)
    if what == "edited":
        lines[at] = lines[at].replace(b"run.cancel", b"run.revoke")
    elif what == "removed":
        del lines[at]
    else:
        del lines[-1]
    path.write_bytes(b"".join(lines))
    breaks = node.check().breaks
    assert breaks
    assert breaks[0].file == path.name
    named = lines[breaks[0].line - 1]
    assert b'"control"' in named
    assert (breaks[0].line == at + 1) == (what == "edited")


def test_what_the_disk_did_not_take_is_written_when_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.write(2)

    def full(*_: Any, **__: Any) -> None:
        raise UnavailableError("no space")

    monkeypatch.setattr(audit_files, "WAITING_MAX", 3)
    with monkeypatch.context() as patch:
        patch.setattr(node.journal, "append", full)
        for number in range(5):
            with pytest.raises(UnavailableError):
                node.chain.append({"type": "control", "timestamp": 3.0, "subject": str(number)})
    node.chain.catch_up()
    found = node.check()
    assert found.breaks == []
    assert [record["subject"] for record in found.records[2:]] == ["2", "3", "4"]
    assert [record.get("unwritten", 0) for record in found.records] == [0, 0, 2, 0, 0]
