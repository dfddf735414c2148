"""A look at real directories: patterns, links, files that vanish, directories with too much in them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.triggers import files as module
from coordd.adapters.triggers.files import base_of, look
from coordd.errors import UnavailableError


def test_the_files_of_a_pattern_are_found_with_size_and_times(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", ".hidden.csv", "c.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d.csv").mkdir()
    os.mkfifo(tmp_path / "e.csv")

    listing = look(f"{tmp_path}/*.csv")
    assert sorted(file.path for file in listing.found) == [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"]
    one = next(file for file in listing.found if file.path.endswith("a.csv"))
    assert (one.size, one.mtime_ns) == (5, (tmp_path / "a.csv").stat().st_mtime_ns)
    assert (listing.refused, listing.more) == ([], False)


def test_a_marker_in_directories_that_match(tmp_path: Path) -> None:
    for day in ("day=1", "day=2", "other"):
        (tmp_path / day).mkdir()
    (tmp_path / "day=2" / "_SUCCESS").touch()
    (tmp_path / "other" / "_SUCCESS").touch()

    (found,) = look(f"{tmp_path}/day=*/_SUCCESS").found
    assert found.path == f"{tmp_path}/day=2/_SUCCESS"
    assert base_of("/data/in/day=*/_SUCCESS") == "/data/in"
    assert base_of("/data/in/ready") == "/data/in"


def test_links_out_of_the_directory_are_refused_and_links_within_are_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "in"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret.csv").write_text("s")
    (inside / "real.csv").write_text("r")
    (inside / "link.csv").symlink_to(inside / "real.csv")
    (inside / "out.csv").symlink_to(outside / "secret.csv")
    (inside / "gone.csv").symlink_to(inside / "nothing")
    (inside / "sub").symlink_to(outside)

    listing = look(f"{inside}/*.csv")
    assert sorted(Path(file.path).name for file in listing.found) == ["link.csv", "real.csv"]
    assert listing.refused == [(f"{inside}/out.csv", f"a link out of {inside}")]
    below = look(f"{inside}/*/*.csv")
    assert below.found == []
    assert (f"{inside}/sub", f"a link out of {inside}") in below.refused


def test_a_name_that_no_argument_may_have_is_refused(tmp_path: Path) -> None:
    for name in (b"a\n.csv", b"\xff.csv"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()

    listing = look(f"{tmp_path}/*.csv")
    assert listing.found == []
    assert sorted(why for _, why in listing.refused) == [
        "its name has the character '\\n'",
        "its name has the character '\\udcff'",
    ]


def test_a_directory_that_is_not_there_is_a_problem_and_one_that_vanishes_below_is_not(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No such file"):
        look(f"{tmp_path}/in/*.csv")
    assert look(f"{tmp_path}/ready").found == []
    (tmp_path / "file").touch()
    assert look(f"{tmp_path}/*/x").found == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_what_cannot_be_read_is_refused_and_no_empty_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for day in ("day=1", "day=2"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "a.csv").touch()
    (tmp_path / "b.csv").touch()
    closed = {f"{tmp_path}/day=1", f"{tmp_path}/b.csv"}

    def failing(call: Callable[[str], Any]) -> Callable[[str], Any]:
        def called(path: str) -> Any:
            if path in closed:
                raise OSError(number, os.strerror(number), path)
            return call(path)

        return called

    monkeypatch.setattr(os, "scandir", failing(os.scandir))
    monkeypatch.setattr(os, "lstat", failing(os.lstat))
    why = f"it cannot be read: {os.strerror(number)}"
    listing = look(f"{tmp_path}/day=*/*.csv")
    assert [file.path for file in listing.found] == [f"{tmp_path}/day=2/a.csv"]
    assert listing.refused == [(f"{tmp_path}/day=1", why)]
    assert look(f"{tmp_path}/*.csv").refused == [(f"{tmp_path}/b.csv", why)]
    closed.add(f"{tmp_path}/day=2")
    with pytest.raises(UnavailableError, match=r"day=.*: it cannot be read"):
        look(f"{tmp_path}/day=*/*.csv")
    with pytest.raises(UnavailableError, match="cannot be read"):
        look(f"{tmp_path}/b.csv")


def test_a_look_has_a_limit_and_says_that_there_is_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 5)
    for number in range(10):
        (tmp_path / str(number)).touch()

    listing = look(f"{tmp_path}/*")
    assert (len(listing.found), listing.more) == (5, True)
