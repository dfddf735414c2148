"""The journal keeps its lines in order through crashes and disk errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.small_disk import small_disk

from coordd.adapters.disk import journal as journal_files
from coordd.adapters.disk.journal import Journal, highest_clock, newest, read
from coordd.core.wire.journal_line import encode_line
from coordd.errors import ConfigError, LocalProtocolError, UnavailableError

REPOSITORY = str(Path(__file__).parents[3])
WALL_S = 1_763_683_200.0


def records(*numbers: int) -> list[dict[str, Any]]:
    return [{"type": "task-sent", "clock": n, "name": f"job-{n}"} for n in numbers]


def clocks(directory: Path) -> list[int]:
    return [record["clock"] for record in read(str(directory))]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


class TestJournal:
    def test_reads_back_what_was_appended_in_order(self, directory: Path) -> None:
        journal = Journal(str(directory))
        journal.append(records(1, 2), sync=True)
        journal.append(records(3), sync=False)
        assert list(read(str(directory))) == records(1, 2, 3)
        journal.close()
        assert list(read(str(directory))) == records(1, 2, 3)

    def test_a_clean_stop_closes_the_segment(self, directory: Path) -> None:
        for n in (1, 2):
            journal = Journal(str(directory))
            journal.append(records(n), sync=True)
            journal.close()
            journal.close()
            assert journal.repaired == []
        assert [path.name for path in sorted(directory.iterdir())] == ["00000001.jsonl", "00000002.jsonl"]
        assert clocks(directory) == [1, 2]

    def test_a_journal_without_records_leaves_nothing(self, directory: Path) -> None:
        journal = Journal(str(directory))
        journal.append([], sync=True)
        journal.close()
        assert list(directory.iterdir()) == []

    def test_a_segment_is_closed_by_size(self, directory: Path) -> None:
        journal = Journal(str(directory), segment_bytes_max=200)
        for n in range(10):
            journal.append(records(n), sync=False)
        closed = [Path(path) for path in journal.closed()]
        assert len(closed) > 2
        assert all(path.stat().st_size <= 200 for path in closed)
        assert clocks(directory) == list(range(10))
        journal.close()

    def test_an_append_that_is_larger_than_a_segment_has_one_of_its_own(self, directory: Path) -> None:
        journal = Journal(str(directory), segment_bytes_max=200)
        for batch in (records(1), records(*range(2, 12)), records(12)):
            journal.append(batch, sync=False)
        assert len(journal.closed()) == 2
        assert clocks(directory) == list(range(1, 13))
        journal.close()

    def test_a_segment_is_closed_by_age(self, directory: Path) -> None:
        now = 0.0
        journal = Journal(str(directory), segment_age_s=3600.0, clock=lambda: now)
        journal.append(records(1), sync=False)
        now = 3599.0
        journal.append(records(2), sync=False)
        assert journal.closed() == []
        now = 3600.0
        journal.append(records(3), sync=False)
        assert [Path(path).name for path in journal.closed()] == ["00000001.jsonl"]
        assert clocks(directory) == [1, 2, 3]
        journal.close()

    def test_sync_waits_for_the_disk_once_and_after_the_write(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        write, fdatasync = os.write, os.fdatasync

        def note_write(fd: int, data: bytes) -> int:
            calls.append("write")
            return write(fd, data)

        def note_sync(fd: int) -> None:
            calls.append("fdatasync")
            fdatasync(fd)

        monkeypatch.setattr(os, "write", note_write)
        monkeypatch.setattr(os, "fdatasync", note_sync)
        journal = Journal(str(directory))
        journal.append(records(1, 2, 3), sync=True)
        assert calls == ["write", "fdatasync"]
        journal.append(records(4), sync=False)
        assert calls == ["write", "fdatasync", "write"]
        journal.close()

    def test_a_second_daemon_is_refused(self, directory: Path) -> None:
        journal = Journal(str(directory))
        with pytest.raises(ConfigError, match="in use"):
            Journal(str(directory))
        journal.close()
        Journal(str(directory)).close()

    def test_what_is_not_json_is_our_bug_and_writes_nothing(self, directory: Path) -> None:
        journal = Journal(str(directory))
        for bad in ({"x": float("nan")}, {"x": object()}):
            with pytest.raises(LocalProtocolError, match="not JSON"):
                journal.append([*records(1), bad], sync=True)
        journal.append(records(2), sync=True)
        assert clocks(directory) == [2]
        journal.close()

    def test_a_file_in_the_way_is_an_unavailable_journal(self, directory: Path) -> None:
        directory.write_text("not a directory")
        with pytest.raises(UnavailableError, match="cannot open the journal"):
            Journal(str(directory))


class TestAfterACrash:
    """A process that was killed leaves ``current.jsonl``."""

    @pytest.fixture
    def lines(self) -> list[bytes]:
        return [encode_line(record) for record in records(1, 2, 3)]

    def start(self, directory: Path, content: bytes) -> Journal:
        directory.mkdir(exist_ok=True)
        (directory / "current.jsonl").write_bytes(content)
        return Journal(str(directory))

    def test_a_torn_end_is_moved_aside_at_whatever_byte_it_was_cut(self, directory: Path, lines: list[bytes]) -> None:
        whole = b"".join(lines)
        for cut in range(len(lines[0]) + len(lines[1]) + 1, len(whole)):
            journal = self.start(directory, whole[:cut])
            assert clocks(directory) == [1, 2]
            assert len(journal.repaired) == 1
            assert "torn end" in journal.repaired[0]
            (torn,) = directory.glob("torn-*.bytes")
            assert torn.read_bytes() == whole[len(lines[0]) + len(lines[1]) : cut]
            journal.close()
            for path in directory.iterdir():
                path.unlink()

    def test_zeros_that_a_file_system_left_are_a_torn_end(self, directory: Path, lines: list[bytes]) -> None:
        journal = self.start(directory, lines[0] + b"\0" * 5000)
        assert clocks(directory) == [1]
        assert (directory / "torn-00000001.bytes").read_bytes() == b"\0" * 5000
        journal.append(records(7), sync=True)
        assert clocks(directory) == [1, 7]
        journal.close()

    def test_a_bad_line_in_the_middle_is_left_and_counted(self, directory: Path, lines: list[bytes]) -> None:
        spoilt = lines[1].replace(b"job-2", b"job-9")
        journal = self.start(directory, lines[0] + spoilt + b"\xff\xfe\n" + lines[2])
        assert journal.bad_lines == 2
        assert clocks(directory) == [1, 3]
        assert (directory / "00000001.jsonl").read_bytes() == lines[0] + spoilt + b"\xff\xfe\n" + lines[2]
        assert len(journal.repaired) == 1
        assert "2 bad lines" in journal.repaired[0]
        journal.close()

    def test_nothing_but_a_torn_end_leaves_an_empty_journal(self, directory: Path) -> None:
        for n in range(3):  # a node that crashes again and again keeps all files
            self.start(directory, b"to%d" % n).close()
        assert clocks(directory) == []
        assert {path.read_bytes() for path in directory.iterdir()} == {b"to0", b"to1", b"to2"}

    def test_a_good_segment_needs_no_repair(self, directory: Path, lines: list[bytes]) -> None:
        journal = self.start(directory, b"".join(lines))
        assert journal.repaired == []
        assert clocks(directory) == [1, 2, 3]
        assert [Path(path).name for path in journal.closed()] == ["00000001.jsonl"]
        journal.close()

    def test_killed_process_has_what_it_synced(self, directory: Path) -> None:
        script = (
            "import sys; from coordd.adapters.disk.journal import Journal\n"
            "journal = Journal(sys.argv[1])\n"
            "for n in range(100000):\n"
            "    journal.append([{'clock': n}], sync=True); print(n, flush=True)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, str(directory)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": REPOSITORY},
        ) as process:
            assert process.stdout
            for _ in range(20):
                process.stdout.readline()
            process.kill()
            said = 19 + len(process.stdout.read().splitlines())
        journal = Journal(str(directory))
        kept = clocks(directory)
        assert kept == list(range(len(kept)))
        assert len(kept) >= said
        journal.close()


class TestWhenTheDiskFails:
    def test_a_full_disk_takes_none_of_it_and_works_again_later(self) -> None:
        with small_disk("size=64k") as disk:
            journal = Journal(str(disk / "journal"))
            journal.append(records(1), sync=True)
            (disk / "filler").write_bytes(b"x" * 40_000)
            many = [{"clock": 2, "name": "y" * 1000} for _ in range(50)]
            for _ in range(3):
                with pytest.raises(UnavailableError, match="refuses records: No space left on device"):
                    journal.append(many, sync=True)
                assert (disk / "journal" / "current.jsonl").read_bytes() == encode_line(records(1)[0])
            (disk / "filler").unlink()
            journal.append(records(3), sync=True)
            assert clocks(disk / "journal") == [1, 3]
            journal.close()
            assert clocks(disk / "journal") == [1, 3]

    def test_no_inode_for_a_new_segment_is_no_loss(self) -> None:
        with small_disk("nr_inodes=4") as disk:  # the root, the journal, two files
            journal = Journal(str(disk / "journal"), segment_bytes_max=10)
            journal.append(records(1), sync=True)
            (disk / "filler").touch()
            for _ in range(2):
                with pytest.raises(UnavailableError, match="No space left"):
                    journal.append(records(2), sync=True)
            (disk / "filler").unlink()
            journal.append(records(3), sync=True)
            assert clocks(disk / "journal") == [1, 3]
            journal.close()

    def test_a_read_only_disk_is_said_so(self) -> None:
        with small_disk("size=64k") as disk:
            journal = Journal(str(disk / "journal"))
            journal.close()
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            journal = Journal(str(disk / "journal"))
            with pytest.raises(UnavailableError, match="Read-only file system"):
                journal.append(records(1), sync=True)
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            journal.append(records(2), sync=True)
            assert clocks(disk / "journal") == [2]
            journal.close()

    @pytest.mark.parametrize("failing", ["fdatasync", "write"])
    def test_what_could_not_be_synced_is_not_there(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        journal = Journal(str(directory))
        journal.append(records(1), sync=True)

        def fail(*_args: object) -> int:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, failing, fail)
            with pytest.raises(UnavailableError, match="Input/output error"):
                journal.append(records(2), sync=True)
        assert clocks(directory) == [1]
        journal.append(records(3), sync=True)
        assert clocks(directory) == [1, 3]
        journal.close()

    def test_a_short_write_is_finished(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        journal = Journal(str(directory))
        journal.append(records(1, 2), sync=True)
        assert clocks(directory) == [1, 2]
        journal.close()

    def test_what_could_not_be_cut_back_is_cut_back_later(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = Journal(str(directory))
        journal.append(records(1), sync=True)
        real = os.write

        def torn(fd: int, data: bytes) -> int:
            real(fd, data[:10])
            raise OSError(5, "Input/output error")

        def fail(*_args: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            patch.setattr(os, "ftruncate", fail)
            with pytest.raises(UnavailableError):
                journal.append(records(2), sync=True)
        journal.append(records(3), sync=True)
        expected = b"".join(map(encode_line, records(1, 3)))
        assert (directory / "current.jsonl").read_bytes() == expected
        journal.close()


class TestReadingAndPruning:
    def test_reading_goes_on_while_segments_are_closed(self, directory: Path) -> None:
        journal = Journal(str(directory), segment_bytes_max=100)
        for n in range(6):
            journal.append(records(n), sync=False)
        reader = read(str(directory))
        seen = [next(reader)["clock"]]
        for n in range(6, 9):
            journal.append(records(n), sync=False)  # closes the segment that the reader holds
        seen += [record["clock"] for record in reader]
        assert seen[:6] == list(range(6))
        assert seen == sorted(set(seen))
        journal.close()

    def test_the_end_is_read_in_whole_lines_oldest_first(self, directory: Path) -> None:
        line = len(encode_line(records(1)[0]))
        journal = Journal(str(directory), segment_bytes_max=2 * line)
        for n in range(1, 6):  # 1 2 | 3 4 | 5
            journal.append(records(n), sync=False)

        def end(bytes_max: int) -> list[int]:
            return [record["clock"] for record in newest(str(directory), bytes_max)]

        assert end(100 * line) == [1, 2, 3, 4, 5]
        assert end(3 * line) == [3, 4, 5]
        assert end(2 * line) == [4, 5]
        assert end(2 * line - 1) == [5]
        assert end(line + 1) == [5]
        assert end(0) == []
        journal.close()
        assert end(2 * line) == [4, 5]
        assert highest_clock(str(directory)) == 5
        assert list(newest(str(directory / "nowhere"), line)) == []

    def test_of_a_long_journal_only_the_end_is_read(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        line = len(encode_line(records(1)[0]))
        journal = Journal(str(directory), segment_bytes_max=2 * line)
        for n in range(1, 10):
            journal.append(records(n), sync=False)
        journal.close()
        read_lines: list[bytes] = []
        monkeypatch.setattr(journal_files, "decode_line", read_lines.append)
        list(newest(str(directory), 3 * line))
        assert len(read_lines) == 3

    def test_an_end_that_cannot_be_read_is_unavailable(self, directory: Path) -> None:
        (directory / "00000001.jsonl").mkdir(parents=True)
        with pytest.raises(UnavailableError, match="cannot read the journal"):
            list(newest(str(directory), 1000))

    def test_reading_a_journal_that_is_not_there_is_unavailable(self, directory: Path) -> None:
        with pytest.raises(UnavailableError, match="cannot read the journal"):
            list(read(str(directory)))

    def test_pruning_removes_what_is_old_but_never_the_last_number(self, directory: Path) -> None:
        journal = Journal(str(directory), segment_bytes_max=10)
        for n in range(5):
            journal.append(records(n), sync=False)
        (directory / "torn-00000001.bytes").write_bytes(b"x")
        (directory / "notes.txt").write_text("somebody's")
        for path in directory.iterdir():
            os.utime(path, (WALL_S, WALL_S))
        os.utime(journal.closed()[1], (WALL_S + 50, WALL_S + 50))
        removed = [Path(path).name for path in journal.prune(100.0, WALL_S + 120)]
        assert removed == ["00000001.jsonl", "00000003.jsonl", "torn-00000001.bytes"]
        assert clocks(directory) == [1, 3, 4]
        journal.prune(0.0, WALL_S + 1e9)
        assert clocks(directory) == [3, 4]
        assert (directory / "notes.txt").exists()
        journal.close()
        again = Journal(str(directory))
        again.append(records(9), sync=True)
        again.close()
        assert [Path(path).name for path in again.closed()] == ["00000004.jsonl", "00000005.jsonl", "00000006.jsonl"]


class TestSomebodyRemovedTheOpenSegment:
    def test_it_is_said_once_and_the_journal_goes_on(self, directory: Path) -> None:
        journal = Journal(str(directory))
        journal.append(records(1), sync=True)
        (directory / "current.jsonl").unlink()
        with pytest.raises(UnavailableError, match=r"lost its open segment: .*/current\.jsonl was removed"):
            journal.append(records(2), sync=True)
        journal.append(records(3), sync=True)
        assert clocks(directory) == [3]
        journal.close()
        assert clocks(directory) == [3]

    def test_what_was_put_in_its_place_is_kept(self, directory: Path) -> None:
        journal = Journal(str(directory))
        journal.append(records(1), sync=True)
        (directory / "copy").write_bytes((directory / "current.jsonl").read_bytes() + b"torn")
        (directory / "copy").rename(directory / "current.jsonl")
        with pytest.raises(UnavailableError, match="removed or replaced"):
            journal.append(records(2), sync=True)
        journal.append(records(3), sync=True)
        assert clocks(directory) == [1, 3]
        assert [Path(path).name for path in journal.closed()] == ["00000001.jsonl"]
        journal.close()

    def test_a_whole_directory_that_comes_back_is_used(self, directory: Path) -> None:
        journal = Journal(str(directory))
        journal.append(records(1), sync=True)
        directory.rename(directory.with_name("away"))
        for number in (2, 3):
            with pytest.raises(UnavailableError):
                journal.append(records(number), sync=True)
        directory.mkdir()
        journal.append(records(4), sync=True)
        assert clocks(directory) == [4]
        journal.close()
