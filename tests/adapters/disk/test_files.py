"""The state file of a node survives crashes, full disks and damage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.small_disk import small_disk

from coordd.adapters.disk.files import StateFile, write_atomic
from coordd.adapters.disk.journal import Journal, highest_clock
from coordd.core.clock import CLOCK_BLOCK
from coordd.errors import UnavailableError

WALL_S = 1_763_683_200.0


class TestStateFile:
    def test_remembers(self, tmp_path: Path) -> None:
        state = StateFile(str(tmp_path / "state.json"))
        state.save(7, 131072)
        assert state.load(wall_s=WALL_S, highest_clock=lambda: 0)[:3] == (7, 131072, "")
        assert json.loads((tmp_path / "state.json").read_bytes()) == {"boots": 7, "clock_mark": 131072}
        assert [path.name for path in tmp_path.iterdir()] == ["state.json"]

    def test_remembers_which_life_of_a_ledger_it_saw(self, tmp_path: Path) -> None:
        state = StateFile(str(tmp_path / "state.json"))
        state.save(7, 131072, {"redis://h/0": "12"})
        assert state.load(wall_s=WALL_S, highest_clock=lambda: 0).ledgers == {"redis://h/0": "12"}

    def test_remembers_which_ledger_it_has_used(self, tmp_path: Path) -> None:
        state = StateFile(str(tmp_path / "state.json"))
        state.save(7, 131072, pin=("0123456789abcdef", "redis://h/0 cluster default"))
        found = state.load(wall_s=WALL_S, highest_clock=lambda: 0)
        assert found.pin == ("0123456789abcdef", "redis://h/0 cluster default")

    @pytest.mark.parametrize("pin", ["x", 7, [], {"identity": "x"}, {"identity": 7, "address": "x"}])
    def test_a_pin_that_is_none_is_not_taken(self, tmp_path: Path, pin: object) -> None:
        path = tmp_path / "state.json"
        path.write_text(json.dumps({"boots": 7, "clock_mark": 9, "pin": pin}))
        assert StateFile(str(path)).load(wall_s=WALL_S, highest_clock=lambda: 0) == (7, 9, "", {}, ("", ""), "")

    def test_remembers_what_the_machine_was_called(self, tmp_path: Path) -> None:
        state = StateFile(str(tmp_path / "state.json"))
        state.save(7, 131072, name="edge-2.example.com")
        assert state.load(wall_s=WALL_S, highest_clock=lambda: 0).name == "edge-2.example.com"

    @pytest.mark.parametrize("name", [7, [], "", "a b", "x" * 65, "e\u0301"])
    def test_a_name_that_no_node_can_have_is_not_taken(self, tmp_path: Path, name: object) -> None:
        path = tmp_path / "state.json"
        path.write_text(json.dumps({"boots": 7, "clock_mark": 9, "name": name}))
        assert StateFile(str(path)).load(wall_s=WALL_S, highest_clock=lambda: 0) == (7, 9, "", {}, ("", ""), "")

    def test_the_first_start_is_above_any_earlier_life_of_this_name(self, tmp_path: Path) -> None:
        state = StateFile(str(tmp_path / "state.json")).load(wall_s=WALL_S, highest_clock=lambda: 0)
        assert state == (int(WALL_S), 0, "", {}, ("", ""), "")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\0" * 40,
            b"{",
            b"[]",
            b'"x"',
            b'{"boots":1}',
            b'{"boots":"1","clock_mark":2}',
            b'{"boots":true,"clock_mark":2}',
            b'{"boots":-1,"clock_mark":2}',
            b"\xff\xfe",
            b"[" * 60_000,
        ],
    )
    def test_a_spoilt_file_is_kept_and_the_numbers_still_grow(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "state.json"
        for copy in (1, 2):
            path.write_bytes(content)
            state = StateFile(str(path)).load(wall_s=WALL_S, highest_clock=lambda: 500)
            assert state.boots == int(WALL_S)
            assert state.clock_mark == 500 + 2 * CLOCK_BLOCK
            assert f"kept as {path}.bad-{copy}" in state.warning
            assert (tmp_path / f"state.json.bad-{copy}").read_bytes() == content
            assert not path.exists()

    def test_copies_of_spoilt_files_are_bounded(self, tmp_path: Path) -> None:
        for _ in range(20):
            (tmp_path / "state.json").write_bytes(b"x")
            StateFile(str(tmp_path / "state.json")).load(wall_s=WALL_S, highest_clock=lambda: 0)
        assert len(list(tmp_path.iterdir())) == 8

    def test_a_lost_file_beside_a_journal_is_warned_of(self, tmp_path: Path) -> None:
        journal = Journal(str(tmp_path / "journal"), segment_bytes_max=10)
        for n in (40, 41, 42):
            journal.append([{"clock": n}], sync=False)
        state = StateFile(str(tmp_path / "state.json")).load(
            wall_s=WALL_S, highest_clock=lambda: highest_clock(str(tmp_path / "journal"))
        )
        assert state.clock_mark == 42 + 2 * CLOCK_BLOCK
        assert "is gone though the journal is not" in state.warning
        journal.close()

    def test_highest_clock_of_no_journal_is_zero(self, tmp_path: Path) -> None:
        assert highest_clock(str(tmp_path / "journal")) == 0

    def test_an_unreadable_file_is_not_taken_for_a_spoilt_one(self, tmp_path: Path) -> None:
        (tmp_path / "state.json").mkdir()
        with pytest.raises(UnavailableError, match="cannot read"):
            StateFile(str(tmp_path / "state.json")).load(wall_s=WALL_S, highest_clock=lambda: 0)
        assert (tmp_path / "state.json").is_dir()

    def test_a_failed_write_leaves_the_old_numbers(self) -> None:
        with small_disk("size=16k") as disk:
            state = StateFile(str(disk / "state.json"))
            state.save(7, 100)
            with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
                while True:
                    filler.write(b"x" * 1024)
            with pytest.raises(UnavailableError, match=r"cannot write .*No space left"):
                state.save(8, 200)
            assert state.load(wall_s=WALL_S, highest_clock=lambda: 0)[:3] == (7, 100, "")
            assert {path.name for path in disk.iterdir()} == {"state.json", "filler"}

    def test_file_and_name_are_synced_before_the_write_is_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        fsync, rename = os.fsync, os.rename

        def note_sync(fd: int) -> None:
            done.append("sync directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")
            fsync(fd)

        def note_rename(old: str, new: str) -> None:
            done.append("rename")
            rename(old, new)

        monkeypatch.setattr(os, "fsync", note_sync)
        monkeypatch.setattr(os, "rename", note_rename)
        write_atomic(str(tmp_path / "x"), b"data")
        assert done == ["sync file", "rename", "sync directory"]
