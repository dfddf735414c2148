"""The file of alarms: written as a whole, and an unreadable file is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.adapters.disk.alarm_file import AlarmFile
from coordd.errors import UnavailableError


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    file = AlarmFile(f"{tmp_path}/alarms.json")
    assert file.load() == ({}, "")
    file.save({"standing": [{"id": "x"}], "cleared": {}})
    assert file.load() == ({"standing": [{"id": "x"}], "cleared": {}}, "")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 60_000])
def test_a_spoilt_file_is_put_aside_and_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "alarms.json"
    path.write_bytes(content)
    kept, said = AlarmFile(str(path)).load()
    assert kept == {}
    assert str(path) in said
    assert "are forgotten" in said
    assert (tmp_path / "alarms.json.bad").read_bytes() == content


def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot write"):
        AlarmFile(f"{tmp_path}/none/alarms.json").save({})
