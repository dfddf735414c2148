"""A log in pieces: all of it, through rotations, and never more in memory than was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from coordd.runner.log import Log
from coordd.services.logs.files import Place, read_piece, read_tail


def everything(path: str, limit: int) -> bytes:
    data, place = b"", None
    while True:
        piece = read_piece(path, place, limit)
        data, place = data + piece.data, piece.place
        if not piece.data:
            assert piece.left == 0
            return data


@given(size=st.integers(0, 3000), half=st.integers(100, 2000), limit=st.integers(1, 700), tail=st.integers(1, 4000))
@settings(max_examples=60)
def test_pieces_are_the_whole_log_with_its_older_half(
    tmp_path_factory: pytest.TempPathFactory, size: int, half: int, limit: int, tail: int
) -> None:
    path = str(tmp_path_factory.mktemp("logs") / "a.log")
    text = b"".join(b"%09d\n" % number for number in range(size // 10))
    Log(path, 2 * half).write(text)
    kept = b"".join(Path(name).read_bytes() for name in (f"{path}.old", path) if os.path.exists(name))
    assert text.endswith(kept)
    assert everything(path, limit) == kept
    assert read_tail(path, tail).encode() == kept[-tail:]
    piece = read_piece(path, None, limit, tail=tail)
    assert piece.data == kept[-tail:][:limit]
    assert piece.left == max(0, min(tail, len(kept)) - limit)


def test_a_reader_goes_on_through_a_rotation_and_is_told_of_what_was_dropped(tmp_path: Path) -> None:
    path = str(tmp_path / "a.log")
    log = Log(path, 2000)
    log.write(b"a" * 900)
    piece = read_piece(path, None, 400)
    log.write(b"b" * 600)  # 100 of them fill the first file
    after = read_piece(path, piece.place, 5000)
    assert after.data == b"a" * 500 + b"b" * 600
    assert not after.lost
    assert read_piece(path, after.place, 10).data == b""
    log.write(b"c" * 3000)
    late = read_piece(path, piece.place, 10)
    assert late.lost
    assert late.data == b"c" * 10
    assert not read_piece(path, late.place, 10).lost


def test_an_inode_that_was_used_again_is_not_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 1000)
    stat = path.stat()
    place = read_piece(str(path), None, 500).place
    assert place.inode == stat.st_ino
    path.write_bytes(b"y" * 1000)  # the same inode, other bytes
    piece = read_piece(str(path), place, 100)
    assert (piece.data, piece.lost) == (b"y" * 100, True)


def test_a_log_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_piece(str(tmp_path / "none.log"), Place(1, 2, 3), 10)
    (tmp_path / "a.log.old").write_bytes(b"between two files")
    assert read_piece(str(tmp_path / "a.log"), None, 7).data == b"between"


def test_ten_gigabytes_cost_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    piece = read_piece(str(path), None, 64, tail=8)
    assert (piece.data, piece.left) == (b"the end\n", 0)
    assert read_piece(str(path), None, 64).left == 10 * 2**30 + 8 - 64
