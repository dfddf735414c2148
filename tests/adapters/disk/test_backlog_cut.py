"""The backlog after a power cut at any byte of its files: everything saved before that point is still there."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given
from support.search import examples

from coordd.adapters.disk.backlog import SqliteBacklog
from coordd.errors import UnavailableError
from coordd.ports import Message

# (messages, bytes of each) that one transaction saves. Some messages fill pages of their own.
SAVES = st.lists(st.tuples(st.integers(1, 4), st.sampled_from((1, 300, 5000))), min_size=1, max_size=8)
# These tests do not depend on the disk itself, and its fsync is slow.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
GARBAGE = st.binary(max_size=64) | st.sampled_from((b"\0" * 4096, b"\xff" * 5000))


def saved(folder: Path, saves: list[tuple[int, int]], removed: int) -> list[tuple[int, dict[int, Message]]]:
    """Save all, and copy the files as they are after it. Returns (length of the log, kept messages) at each step.

    ``removed``: the number of the first messages that have left in between.
    """
    file = SqliteBacklog(str(folder / "b.db"))
    log = folder / "b.db-wal"
    kept: dict[int, Message] = {}
    file.append([], 0.0)  # makes the file
    steps = [(log.stat().st_size, dict(kept))]
    number = 0
    for count, size in saves:
        batch = [Message(number + n, 1.0, 100.0, bytes([number + n]) * size) for n in range(count)]
        number += count
        file.append(batch, 0.0)
        kept |= {message.number: message for message in batch}
        steps.append((log.stat().st_size, dict(kept)))
        if removed and len(kept) > removed:
            gone = sorted(kept)[:removed]
            file.remove(gone)
            kept = {n: message for n, message in kept.items() if n not in gone}
            steps.append((log.stat().st_size, dict(kept)))
    cut = folder / "cut"
    cut.mkdir()
    for name in ("b.db", "b.db-wal"):
        shutil.copy(folder / name, cut / name)
    file.close()
    return steps


def goes_on(folder: Path) -> None:
    """New messages are saved and read, even if the old ones are damaged."""
    file = SqliteBacklog(str(folder / "b.db"))
    new = Message(10**6, 2.0, 200.0, b"new")
    with suppress(UnavailableError):  # a damaged file is renamed at its first use
        file.append([new], 0.0)
    file.append([new], 0.0)
    assert file.first(1000)[-1] == new
    assert file.count == len(file.first(1000))
    file.close()


@examples(60)
@given(SAVES, st.integers(0, 2), st.data(), st.just(b"") | GARBAGE)
def test_what_was_saved_before_the_cut_is_read_and_nothing_is_invented(
    saves: list[tuple[int, int]], removed: int, data: st.DataObject, garbage: bytes
) -> None:
    with tempfile.TemporaryDirectory(prefix="coordd-cut-", dir=MEMORY) as name:
        steps = saved(Path(name), saves, removed)
        cut = Path(name) / "cut"
        log = (cut / "b.db-wal").read_bytes()
        at = data.draw(st.integers(steps[0][0], len(log)) | st.sampled_from([length for length, _ in steps]))
        (cut / "b.db-wal").write_bytes(log[:at] + garbage)

        file = SqliteBacklog(str(cut / "b.db"))
        read = {message.number: message for message in file.first(1000)}
        file.close()

        (expected,) = [kept for length, kept in steps if length <= at][-1:]
        assert read == expected
        assert (file.count, file.bytes) == (len(read), sum(len(message.data) for message in read.values()))
        goes_on(cut)


@examples(60)
@given(SAVES, st.data(), st.just(b"") | GARBAGE)
def test_a_file_that_is_cut_itself_raises_nothing_of_sqlites_and_invents_nothing(
    saves: list[tuple[int, int]], data: st.DataObject, garbage: bytes
) -> None:
    with tempfile.TemporaryDirectory(prefix="coordd-cut-", dir=MEMORY) as name:
        folder = Path(name)
        file = SqliteBacklog(str(folder / "b.db"))
        known: dict[int, Message] = {}
        for number, (count, size) in enumerate(saves):
            batch = [Message(10 * number + n, 1.0, 100.0, b"x" * size) for n in range(count)]
            file.append(batch, 0.0)
            known |= {message.number: message for message in batch}
        file.close()  # all of it is in the one file now
        whole = (folder / "b.db").read_bytes()
        at = data.draw(st.integers(0, len(whole)))
        (folder / "b.db").write_bytes(whole[:at] + garbage)

        file = SqliteBacklog(str(folder / "b.db"))
        read: list[Message] = []
        with suppress(UnavailableError):
            read = file.first(1000)
        file.close()

        for message in read:
            if garbage:  # SQLite has no checksums: only valid messages are promised
                assert [type(value) for value in message] == [int, float, float, bytes]
            else:
                assert known[message.number] == message
        if at == len(whole):
            assert len(read) == len(known)
        goes_on(folder)
