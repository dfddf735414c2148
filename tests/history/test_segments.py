"""Segments are read once; open journals are read from a snapshot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coordd.errors import ConfigError, UnavailableError
from coordd.history import segments
from coordd.history.segments import snapshot


def journal(path: Path, **segments: str) -> Path:
    path.mkdir(parents=True)
    for name, text in segments.items():
        (path / f"{name}.jsonl").write_text(text)
    return path


def contents(paths: list[str]) -> list[str]:
    return [Path(path.removeprefix("file://")).read_text() for path in paths]


def test_the_picture_stays_as_it_was_taken(tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-1", **{"00000001": "closed\n", "current": "open\n"})
    picture = snapshot([str(one)], str(tmp_path / "picture"))
    with open(one / "current.jsonl", "a") as current:
        current.write("more\n")
    (one / "00000001.jsonl").unlink()
    assert contents(picture.paths) == ["closed\n", "open\n"]
    assert picture.size == len("closed\nopen\n")


def test_directories_globs_files_and_uris(tmp_path: Path) -> None:
    journal(tmp_path / "edge-1", current="a")
    two = journal(tmp_path / "edge-2", current="b")
    (two / "torn-1.bytes").write_text("not a segment")
    by_glob = snapshot([str(tmp_path / "edge-*")], str(tmp_path / "p1"))
    assert contents(by_glob.paths) == ["a", "b"]
    assert contents(snapshot([f"file://{two}/current.jsonl"], str(tmp_path / "p2")).paths) == ["b"]
    mixed = snapshot([str(two), "hdfs://name/journals/"], str(tmp_path / "p3"))
    assert mixed.paths[1:] == ["hdfs://name/journals/*.jsonl"]
    assert mixed.size is None


def test_no_journal_at_all_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no journal segments"):
        snapshot([str(tmp_path / "nothing")], str(tmp_path / "picture"))


def test_a_segment_that_is_closed_meanwhile_is_found_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = journal(tmp_path / "edge-1", current="a")
    take = segments._take

    def close_it_first(path: str, target: str) -> None:
        if (one / "current.jsonl").exists():
            (one / "current.jsonl").rename(one / "00000001.jsonl")
        take(path, target)

    monkeypatch.setattr(segments, "_take", close_it_first)
    assert contents(snapshot([str(one)], str(tmp_path / "picture")).paths) == ["a"]


def test_names_that_never_settle_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = journal(tmp_path / "edge-1", current="a")

    def gone(path: str, *_: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(segments, "_take", gone)
    with pytest.raises(UnavailableError, match="kept changing names"):
        snapshot([str(one)], str(tmp_path / "picture"))


def test_across_file_systems_segments_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "link", no_link)
    one = journal(tmp_path / "edge-1", **{"00000001": "a"})
    assert contents(snapshot([str(one)], str(tmp_path / "picture")).paths) == ["a"]


def test_a_closed_segment_is_read_once_whatever_its_name_is(tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-1", **{"00000001": "a\n", "00000002": "b\n", "current": "c\n"})
    first = snapshot([str(one)], str(tmp_path / "p1"))
    assert contents(first.paths) == ["a\n", "b\n", "c\n"]
    (one / "current.jsonl").rename(one / "00000003.jsonl")
    (one / "00000001.jsonl").unlink()  # retention
    journal(tmp_path / "sink", **{"00000002-89ab": "b\n", "00000004-cdef": "d\n"})
    again = snapshot([str(one), str(tmp_path / "sink")], str(tmp_path / "p2"), first.read)
    assert contents(again.paths) == ["c\n", "d\n"], "the open segment was copied, and is closed now"
    assert again.known == 2
    assert {segment.path for segment in again.read} >= {str(one / "00000001.jsonl"), str(one / "00000003.jsonl")}
    nothing = snapshot([str(one), str(tmp_path / "sink")], str(tmp_path / "p3"), again.read)
    assert (nothing.paths, nothing.known) == ([], 4)


def test_a_segment_with_other_bytes_under_a_known_name_is_read(tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-1", **{"00000001": "a\n"})
    first = snapshot([str(one)], str(tmp_path / "p1"))
    (one / "00000001.jsonl").write_text("longer\n")  # a node that lost its disk counts from 1 again
    assert contents(snapshot([str(one)], str(tmp_path / "p2"), first.read).paths) == ["longer\n"]


def test_the_list_survives_damage(tmp_path: Path) -> None:
    known = [segments.Segment("/j/1.jsonl", 3, 4, "d")]
    (tmp_path / segments.LIST).write_text(segments.list_text(known) + "{half\n[1]\n")
    assert segments.read_before(str(tmp_path)) == known
    assert segments.read_before(str(tmp_path / "none")) == []
