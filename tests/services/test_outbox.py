"""The outbox: sends at once while the bus is connected, keeps messages in order otherwise, sends none in excess."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from coordd.adapters.disk import backlog as files
from coordd.adapters.disk.backlog import SqliteBacklog
from coordd.errors import RemoteProtocolError, UnavailableError
from coordd.ports import Message
from coordd.services import outbox as module
from coordd.services.outbox import Outbox

DEADLINE_S = 20.0


class FakeBus:
    """Records published messages; confirms at once, never, or with False."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answer: bool | None = True  # None: the test confirms by hand
        self.confirms: list[Callable[[bool], None]] = []
        self.refuses: set[bytes] = set()

    def publish(self, data: bytes, confirmed: Callable[[bool], None]) -> None:
        self.sent.append(data)
        if self.answer is None:
            self.confirms.append(confirmed)
        else:
            confirmed(self.answer and data not in self.refuses)


class BadDisk:
    """A disk that fails as long as the test wants."""

    def __init__(self, inside: SqliteBacklog) -> None:
        self.inside = inside
        self.fails: set[str] = set()
        self.hangs: threading.Event | None = None

    count = property(lambda self: self.inside.count)
    bytes = property(lambda self: self.inside.bytes)
    oldest_at = property(lambda self: self.inside.oldest_at)

    def _try(self, what: str) -> None:
        if self.hangs is not None:
            self.hangs.wait(DEADLINE_S)
        if what in self.fails or "all" in self.fails:
            raise UnavailableError("the disk failed")

    def append(self, messages: Sequence[Message], now: float) -> int:
        self._try("append")
        return self.inside.append(messages, now)

    def first(self, limit: int) -> list[Message]:
        self._try("first")
        return self.inside.first(limit)

    def remove(self, numbers: Sequence[int]) -> None:
        self._try("remove")
        self.inside.remove(numbers)

    def close(self) -> None:
        self.inside.close()


async def until(true: Callable[[], object]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not true():
            await trio.sleep(0.002)


def run(main: Callable[[Outbox], Awaitable[None]], outbox_of: Callable[[], Outbox]) -> Outbox:
    """Run an outbox beside a function of the test."""
    made: list[Outbox] = []

    async def everything() -> None:
        box = outbox_of()
        made.append(box)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run)
            await main(box)
            nursery.cancel_scope.cancel()

    trio.run(everything)
    return made[0]


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus()


@pytest.fixture
def disk(tmp_path: Path) -> BadDisk:
    return BadDisk(SqliteBacklog(str(tmp_path / "backlog.db")))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox with short pauses."""
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 0.02)
    monkeypatch.setattr(module, "DISK_RETRY_S", 0.02)
    monkeypatch.setattr(module, "OTHERS_RETURN_S", 0.01, raising=False)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_while_the_bus_is_there_it_is_sent_at_once_and_the_disk_is_left_alone(bus: FakeBus, disk: BadDisk) -> None:
    async def main(box: Outbox) -> None:
        box.put(b"1", 60.0)
        assert bus.sent == [b"1"]

    box = run(main, lambda: Outbox(bus.publish, disk, connected=True))

    assert box.counts["confirmed"] == 1
    assert not Path(disk.inside.path).exists()


def test_what_waits_is_on_the_disk_and_leaves_in_order_before_what_is_new(bus: FakeBus, disk: BadDisk) -> None:
    async def main(box: Outbox) -> None:
        for data in numbered(0, 150):
            box.put(data, 60.0)
        await until(lambda: not box._waiting)
        assert (bus.sent, disk.count) == ([], 150)
        assert (box.statistics()["waiting"], box.statistics()["kept"]) == (150, "disk")
        box.changed(True)
        box.put(b"new", 60.0)
        await until(lambda: box.waiting == 0 and disk.count == 0 and len(bus.sent) == 151)

    box = run(main, lambda: Outbox(bus.publish, disk))

    assert bus.sent == [*numbered(0, 150), b"new"]
    assert disk.count == 0
    assert box.counts["replayed"] == 151


def test_once_all_is_sent_it_flows_again_without_the_disk(bus: FakeBus, disk: BadDisk) -> None:
    async def main(box: Outbox) -> None:
        box.put(b"1", 60.0)
        await until(lambda: disk.count == 1)
        box.changed(True)
        await until(lambda: box.waiting == 0 and not box._busy)
        disk.fails.add("all")
        box.put(b"2", 60.0)
        assert bus.sent == [b"1", b"2"]

    box = run(main, lambda: Outbox(bus.publish, disk))

    assert (box.counts["confirmed"], box.error) == (1, "")


def test_what_was_not_confirmed_is_sent_again_in_its_place(bus: FakeBus, disk: BadDisk) -> None:
    bus.answer = None

    async def main(box: Outbox) -> None:
        for data in numbered(0, 4):
            box.put(data, 60.0)
        for number, confirmed in reversed(list(enumerate(bus.confirms))):
            confirmed(number == 1)
        box.put(b"4", 60.0)
        box.changed(False)
        await until(lambda: disk.count == 4)
        bus.answer = True
        bus.sent.clear()
        box.changed(True)
        await until(lambda: box.waiting == 0)

    run(main, lambda: Outbox(bus.publish, disk, connected=True))

    assert bus.sent == [b"0", b"2", b"3", b"4"]


def test_a_message_stays_on_the_disk_until_it_is_confirmed(bus: FakeBus, disk: BadDisk) -> None:
    async def main(box: Outbox) -> None:
        for data in numbered(0, 5):
            box.put(data, 60.0)
        await until(lambda: disk.count == 5)
        bus.refuses = {b"2"}
        box.changed(True)
        await until(lambda: bus.sent.count(b"2") > 2)
        assert [message.data for message in disk.inside.first(9)] == [b"2"]
        bus.refuses = set()
        await until(lambda: box.waiting == 0)

    run(main, lambda: Outbox(bus.publish, disk))

    assert [bus.sent.count(data) for data in numbered(0, 5)][:2] == [1, 1]


def test_a_confirmation_that_never_comes_is_not_waited_for(
    bus: FakeBus, disk: BadDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONFIRM_S", 0.01)
    bus.answer = None

    async def main(box: Outbox) -> None:
        box.put(b"1", 60.0)
        await until(lambda: len(bus.sent) >= 3)  # at once, and from the backlog
        bus.answer = True
        await until(lambda: box.waiting == 0)
        for confirmed in bus.confirms:
            confirmed(False)  # late: it counts for nothing
        assert box.waiting == 0

    run(main, lambda: Outbox(bus.publish, disk, connected=True))


def test_what_is_past_its_time_is_not_sent(bus: FakeBus, disk: BadDisk) -> None:
    wall = [1000.0]

    async def main(box: Outbox) -> None:
        box.put(b"command", 30.0)
        box.put(b"fact", 3600.0)
        await until(lambda: disk.count == 2)
        wall[0] += 31.0
        box.changed(True)
        await until(lambda: disk.count == 0)

    box = run(main, lambda: Outbox(bus.publish, disk, wall=lambda: wall[0]))

    assert bus.sent == [b"fact"]
    assert (box.counts["expired"], disk.count) == (1, 0)


def test_the_next_life_sends_what_this_one_left_under_its_own_name(bus: FakeBus, disk: BadDisk) -> None:
    async def first(box: Outbox) -> None:
        box.put(b"1", 60.0)
        await until(lambda: disk.count == 1)
        box.put(b"2", 60.0)  # not on the disk yet when it ends

    run(first, lambda: Outbox(bus.publish, disk)).close()

    async def second(box: Outbox) -> None:
        box.put(b"3", 60.0)
        await until(lambda: box.waiting == 0)

    again = SqliteBacklog(disk.inside.path)
    again.look()
    assert again.count == 2
    run(second, lambda: Outbox(bus.publish, again, connected=True, renew=lambda data: b"renewed " + data))

    assert bus.sent == [b"renewed 1", b"renewed 2", b"3"]


def test_what_can_not_be_read_any_more_does_not_stand_in_the_way(bus: FakeBus, disk: BadDisk) -> None:
    disk.inside.append([Message(1, 0.0, 1e12, b"old"), Message(2, 0.0, 1e12, b"good")], 0.0)

    def renew(data: bytes) -> bytes:
        if data == b"old":
            raise RemoteProtocolError("not a packet")
        return data

    async def main(box: Outbox) -> None:
        await until(lambda: box.waiting == 0)

    run(main, lambda: Outbox(bus.publish, disk, connected=True, renew=renew))

    assert bus.sent == [b"good"]


def test_a_disk_that_fails_costs_nothing_but_the_safety_of_the_disk(bus: FakeBus, disk: BadDisk) -> None:
    async def main(box: Outbox) -> None:
        box.put(b"1", 60.0)
        await until(lambda: disk.count == 1)
        disk.fails.add("append")
        box.put(b"2", 60.0)
        await until(lambda: box.error)
        assert (box.statistics()["kept"], box.statistics()["error"]) == ("memory", "the disk failed")
        disk.fails.clear()
        await until(lambda: disk.count == 2)
        await until(lambda: box.statistics()["kept"] == "disk")
        disk.fails.add("all")
        box.put(b"3", 60.0)
        await until(lambda: box.error)
        disk.fails.clear()
        box.changed(True)
        await until(lambda: box.waiting == 0)

    run(main, lambda: Outbox(bus.publish, disk))

    assert bus.sent == [b"1", b"2", b"3"]


def test_with_the_disk_gone_for_good_messages_leave_from_memory(bus: FakeBus, disk: BadDisk) -> None:
    disk.fails.add("all")

    async def main(box: Outbox) -> None:
        for data in numbered(0, 100):
            box.put(data, 60.0)
        await until(lambda: box.error)
        box.changed(True)
        await until(lambda: box.waiting == 0)

    run(main, lambda: Outbox(bus.publish, disk))

    assert bus.sent == numbered(0, 100)


def test_a_disk_that_hangs_is_a_disk_that_fails(bus: FakeBus, disk: BadDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_S", 0.01)
    disk.hangs = threading.Event()

    async def main(box: Outbox) -> None:
        box.put(b"1", 60.0)
        await until(lambda: box.error)
        box.changed(True)
        await until(lambda: bus.sent == [b"1"])
        assert disk.hangs is not None
        disk.hangs.set()

    run(main, lambda: Outbox(bus.publish, disk))


def test_what_has_arrived_is_not_sent_again_because_the_disk_keeps_it(bus: FakeBus, disk: BadDisk) -> None:
    async def main(box: Outbox) -> None:
        for data in numbered(0, 3):
            box.put(data, 60.0)
        await until(lambda: disk.count == 3)
        disk.fails.add("remove")
        box.changed(True)
        await until(lambda: box.counts["disk_failures"] >= 3)
        disk.fails.clear()
        await until(lambda: disk.count == 0)

    run(main, lambda: Outbox(bus.publish, disk))

    assert bus.sent == numbered(0, 3)


def test_memory_has_a_bound_and_what_is_given_up_is_counted(bus: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_COUNT_MAX", 10)

    async def main(box: Outbox) -> None:
        for data in numbered(0, 25):
            box.put(data, 60.0)
        assert box.statistics()["waiting"] == 10
        box.changed(True)
        await until(lambda: box.waiting == 0)

    box = run(main, lambda: Outbox(bus.publish, None))

    assert bus.sent == numbered(15, 25)
    assert box.counts["given_up"] == 15


def test_a_broker_that_does_not_keep_up_fills_the_backlog_and_not_the_memory(
    bus: FakeBus, disk: BadDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT_MAX", 5)
    bus.answer = None

    async def main(box: Outbox) -> None:
        for data in numbered(0, 20):
            box.put(data, 60.0)
        assert bus.sent == numbered(0, 5)
        await until(lambda: disk.count == 15)

    run(main, lambda: Outbox(bus.publish, disk, connected=True))


# ---- the file


def messages(first: int, last: int, *, size: int = 1, until_s: float = 100.0) -> list[Message]:
    return [Message(number, 0.0, until_s, b"x" * size) for number in range(first, last)]


def test_a_full_backlog_gives_up_what_is_past_its_time_and_then_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "COUNT_MAX", 10)
    file = SqliteBacklog(str(tmp_path / "b.db"))
    assert file.append([*messages(0, 8), *messages(8, 10, until_s=5.0)], 0.0) == 0

    assert file.append(messages(10, 15), 6.0) == 3

    assert [message.number for message in file.first(99)] == [*range(3, 8), *range(10, 15)]
    assert file.count == 10


def test_a_full_backlog_is_one_of_many_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BYTES_MAX", 1000)
    file = SqliteBacklog(str(tmp_path / "b.db"))

    assert file.append(messages(0, 15, size=100), 0.0) == 5

    assert (file.bytes, [message.number for message in file.first(1)]) == (1000, [5])


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    file = SqliteBacklog(str(tmp_path / "b.db"))
    file.append(messages(0, 1), 0.0)

    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_a_damaged_file_is_set_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    path.write_bytes(b"not a database file" * 100)
    file = SqliteBacklog(str(path))

    with pytest.raises(UnavailableError, match=r"set aside as .*b\.db\.bad"):
        file.append(messages(0, 1), 0.0)
    file.append(messages(0, 1), 0.0)

    assert file.count == 1
    assert (tmp_path / "b.db.bad").read_bytes().startswith(b"not a database file")


def test_a_directory_that_is_gone_is_said_and_a_new_one_used(tmp_path: Path) -> None:
    file = SqliteBacklog(str(tmp_path / "state" / "b.db"))

    with pytest.raises(UnavailableError, match=r"backlog .*b\.db: .*No such file or directory"):
        file.append(messages(0, 1), 0.0)
    (tmp_path / "state").mkdir()

    assert file.append(messages(0, 1), 0.0) == 0


def test_rows_whose_kinds_the_disk_has_changed_are_set_aside_with_their_file(tmp_path: Path) -> None:
    path = str(tmp_path / "b.db")
    file = SqliteBacklog(path)
    file.append(messages(0, 2), 0.0)
    file.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE messages SET data = 'text' WHERE number = 1")

    with pytest.raises(UnavailableError, match="set aside"):
        SqliteBacklog(path).first(2)

    assert (tmp_path / "b.db.bad").exists()
    assert SqliteBacklog(path).first(2) == []


def test_a_file_that_somebody_reads_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUSY_S", 0.01)
    path = str(tmp_path / "b.db")
    file = SqliteBacklog(path)
    file.append(messages(0, 1), 0.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()  # from here on the log keeps what is written
        file.append(messages(1, 9, size=3000), 0.0)
        file.close()

        assert [message.number for message in SqliteBacklog(path).first(9)] == list(range(9))


@pytest.mark.parametrize(
    ("healthy", "spoilt"),
    [
        (b"until REAL", b"untim REAL"),
        (b"until REAL", b"u\xeetil REAL"),
        (b"until REAL", b"until RDAL"),
        (b"\0\0\0\4" + bytes(8) + b"\0\0\0\1", b"\0\0\0\5" + bytes(8) + b"\0\0\0\1"),
        (b"\x10\0\2\2", b"\x10\0\xbf\2"),
    ],
    ids=["another-column", "no-text", "a-column-of-another-kind", "a-later-format", "written-by-a-later-version"],
)
def test_a_file_whose_table_or_format_the_disk_has_changed_is_set_aside(
    tmp_path: Path, healthy: bytes, spoilt: bytes
) -> None:
    path = tmp_path / "b.db"
    file = SqliteBacklog(str(path))
    file.append(messages(0, 2), 0.0)
    file.remove([0, 1])
    file.close()
    whole = path.read_bytes()
    assert whole.count(healthy) == 1
    path.write_bytes(whole.replace(healthy, spoilt))

    with pytest.raises(UnavailableError, match="set aside"):
        file.look()

    assert file.append(messages(2, 3), 0.0) == 0
    assert file.first(9) == messages(2, 3)


def test_after_a_loss_what_waits_is_sent_when_the_others_are_back_too(
    bus: FakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that nobody hears is confirmed all the same: the broker has no queue of those who are still away."""
    monkeypatch.setattr(module, "OTHERS_RETURN_S", 5.0)

    async def main() -> None:
        box = Outbox(bus.publish, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run)
            box.put(b"before", 60.0)
            box.changed(True)
            await trio.sleep(1)
            assert bus.sent == [b"before"], "at a start the others are there already"
            box.put(b"0", 60.0)
            box.changed(False)
            for data in numbered(1, 3):
                box.put(data, 60.0)
            await trio.sleep(60)
            box.changed(True)
            await trio.sleep(3)
            box.put(b"3", 60.0)
            await trio.sleep(1.9)
            assert bus.sent == [b"before", b"0"]
            await trio.sleep(1.2)
            assert bus.sent == [b"before", *numbered(0, 4)]
            box.changed(False)
            box.changed(True)
            box.put(b"4", 60.0)  # also where nothing waits yet
            await trio.sleep(4.9)
            assert bus.sent == [b"before", *numbered(0, 4)]
            await trio.sleep(1.2)
            assert bus.sent == [b"before", *numbered(0, 5)]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_bus_that_is_lost_again_begins_the_wait_again(bus: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a batch that was not confirmed."""
    monkeypatch.setattr(module, "OTHERS_RETURN_S", 5.0)
    bus.answer = None

    async def main() -> None:
        box = Outbox(bus.publish, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run)
            box.put(b"0", 60.0)
            box.changed(True)
            await trio.sleep(1)
            assert bus.sent == [b"0"]
            box.changed(False)
            bus.confirms.pop()(False)
            box.changed(True)
            await trio.sleep(4.9)
            assert bus.sent == [b"0"]
            await trio.sleep(0.2)
            assert bus.sent == [b"0", b"0"]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
