"""The file of an attempt's output: no two runs share one, and files of older versions are found."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from coordd.services.logs.files import end_of, find_log, log_path, tail_lines

IDENTS = st.text("ab_.:+-T0123Z~", min_size=1, max_size=12)


@given(one=IDENTS, two=IDENTS, marks=st.tuples(st.sampled_from("#@"), st.sampled_from("#@")))
def test_no_two_runs_share_a_file(one: str, two: str, marks: tuple[str, str]) -> None:
    first, second = f"j{marks[0]}{one}", f"j{marks[1]}{two}"
    assert (log_path("/l", first, 0) == log_path("/l", second, 0)) == (first == second)


def test_ids_that_an_older_version_gave_one_file() -> None:
    runs = ["j#a:b", "j#a+b", "j#a_b", "j@2026-01-01T01:00:00Z", "j#2026-01-01T01_00_00Z", "j#2026-01-01T01:00:00Z"]
    paths = sorted(log_path("/l", run, 0) for run in runs)
    assert all(one != other for one, other in pairwise(paths))


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("j@2026-01-01T01:00:00Z", "j_2026-01-01T01_00_00Z.3.log"),
        ("j@2026-01-01T01:00:00.5Z", "j_2026-01-01T01_00_00.5Z.3.log"),
        ("j#backfill_7.a-b", "j_backfill_7.a-b.3.log"),
    ],
)
def test_most_keep_the_name_that_they_had(run: str, name: str) -> None:
    assert log_path("/l", run, 3) == f"/l/j/{name}"


def test_a_log_of_an_older_version_is_found(tmp_path: Path) -> None:
    old = tmp_path / "j" / "j_a_b.1.log"
    old.parent.mkdir()
    old.write_text("old")
    assert find_log(str(tmp_path), "j#a:b", 1, earlier=False) == str(old)
    assert find_log(str(tmp_path), "j#a:b", 2, earlier=False) == ""
    assert find_log(str(tmp_path), "j#a:b", 2, earlier=True) == str(old)
    new = Path(log_path(str(tmp_path), "j#a:b", 1))
    new.write_text("new")
    assert find_log(str(tmp_path), "j#a:b", 1, earlier=False) == str(new)


def test_the_last_lines_are_few_and_without_passwords(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n}\n" for n in range(5000)) + f"jdbc://me:secret@db {'x' * 1000}\n")
    lines = tail_lines(str(path))
    assert lines[:-1] == [f"line {n}" for n in range(4981, 5000)]
    assert lines[-1].startswith("jdbc://me:***@db xxx")
    assert len(lines[-1]) == 500
    assert tail_lines(str(tmp_path / "none")) == []


def test_a_log_that_may_not_be_looked_at_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, stat = log_path(str(tmp_path), "j#1", 0), os.stat

    def refused(name: str) -> os.stat_result:
        if name == path:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return stat(name)

    assert find_log(str(tmp_path), "j#1", 0, earlier=False) == ""
    monkeypatch.setattr("coordd.services.logs.files.os.stat", refused)
    assert find_log(str(tmp_path), "j#1", 0, earlier=False) == path


@pytest.mark.parametrize(
    ("data", "limit", "end", "cut"),
    [
        (b"one\ntwo\n", 8, b"one\ntwo\n", False),
        (b"one\ntwo\n", 7, b"two\n", True),
        (b"one\ntwo\n", 4, b"two\n", True),
        (b"one\ntwo\n", 3, b"wo\n", True),
        (b"one\ntwo", 5, b"two", True),
        (b"abcdef", 3, b"def", True),
    ],
)
def test_the_end_of_a_log_has_whole_lines(data: bytes, limit: int, end: bytes, cut: bool) -> None:
    assert end_of(data, limit) == (end, cut)
