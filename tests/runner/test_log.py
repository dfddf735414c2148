"""The log of an attempt: a disk, a directory or a descriptor that is missing for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from coordd.runner.log import OPEN_AGAIN_S, Log


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_log_whose_directory_comes_back_is_written_again(tmp_path: Path, clock: list[float]) -> None:
    path = tmp_path / "d" / "log"
    made = Log(str(path), 1000)
    made.write(b"lost\n")
    path.parent.mkdir()
    made.write(b"lost too\n")
    assert not path.exists()

    clock[0] += OPEN_AGAIN_S
    made.write(b"kept\n")
    assert path.read_bytes() == b"kept\n"
    assert "No such file" in made.failure, "a part is missing"


def test_a_log_that_is_away_is_not_opened_for_every_piece(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Log(str(tmp_path / "d" / "log"), 1000)
    opened: list[float] = []
    monkeypatch.setattr(made, "_open", lambda: opened.append(clock[0]))
    for _ in range(100):
        made.write(b"x\n")
        clock[0] += OPEN_AGAIN_S / 50
    assert 2 <= len(opened) <= 3


def test_half_a_rotation_is_finished_later(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    made = Log(str(path), 20)
    made.write(b"0123456789")

    def fails(*_args: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(os, "open", fails)
        made.write(b"lost")
    assert not path.exists()
    assert (tmp_path / "log.old").read_bytes() == b"0123456789"

    made.write(b"lost")
    clock[0] += OPEN_AGAIN_S
    made.write(b"kept")
    assert path.read_bytes() == b"kept"
