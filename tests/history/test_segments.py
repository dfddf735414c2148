"""Segments are read once; open journals are read from a snapshot."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from coordd.errors import ConfigError, UnavailableError
from coordd.history import segments
from coordd.history.segments import snapshot
from coordd.history.streaming import find
from coordd.history.tables import Tables, link_tree
from coordd.history.transforms import lines


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
    there = ["hdfs://name/journals/prod/edge-1/journal/00000001-ab.jsonl"]
    mixed = snapshot([str(two), "hdfs://name/journals/"], str(tmp_path / "p3"), lists=lambda _uri: there)
    assert mixed.paths[1:] == there
    assert mixed.size is None
    with pytest.raises(
        ConfigError, match=r"no journal segments \(\*\.jsonl, \*\.jsonl\.gz\) in hdfs://name/journals/:"
    ):
        snapshot([str(two), "hdfs://name/journals/"], str(tmp_path / "p4"), lists=lambda _uri: [])
    by_stream = snapshot(there, str(tmp_path / "p5"), found=True, lists=lambda _uri: [])
    assert by_stream.paths == there


def test_a_uri_is_read_as_deep_as_a_local_directory(spark: SparkSession, tmp_path: Path) -> None:
    """A sink has CLUSTER/NODE/journal: only *.jsonl of the directory itself was read, and no compressed segment."""
    journal(tmp_path / "sink" / "prod" / "edge-1" / "journal", **{"00000001-ab": "one\n"})
    two = journal(tmp_path / "sink" / "prod" / "edge-2" / "journal", **{"00000002-cd": "two\n"})
    (two / "00000003-ef.jsonl.gz").write_bytes(gzip.compress(b"three\n"))
    (two / "00000004-00.jsonl.part").write_text("not whole\n")
    spark.conf.set("fs.viewfs.mounttable.shared.link./sink", f"file://{tmp_path}/sink")
    top = "viewfs://shared/sink/prod"
    expected = [
        f"{top}/edge-1/journal/00000001-ab.jsonl",
        f"{top}/edge-2/journal/00000002-cd.jsonl",
        f"{top}/edge-2/journal/00000003-ef.jsonl.gz",
    ]
    try:
        for uri in ("viewfs://shared/sink", f"{top}/*/journal/", f"{top}/edge-*"):
            assert find(spark, uri) == expected
        assert find(spark, expected[2]) == expected[2:]
        picture = snapshot([top], str(tmp_path / "picture"), lists=lambda uri: find(spark, uri))
        assert sorted(row.value for row in lines(spark, picture.paths).collect()) == ["one", "three", "two"]
    finally:
        spark.conf.unset("fs.viewfs.mounttable.shared.link./sink")


def test_no_journal_at_all_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no journal segments"):
        snapshot([str(tmp_path / "nothing")], str(tmp_path / "picture"))


def test_each_journal_without_segments_is_named(tmp_path: Path) -> None:
    """A report over half of the nodes would be green."""
    one = str(journal(tmp_path / "edge-1", current="a"))
    empty = str(journal(tmp_path / "a-mount-that-is-gone"))
    (tmp_path / "00000001.jsonl.part").write_text("half")
    missing = [f"{tmp_path}/TYPO", empty, f"{tmp_path}/edge-[2-9]", f"{tmp_path}/00000001.jsonl.part"]
    first = snapshot([one], str(tmp_path / "p1"))
    for before in ((), first.read):
        with pytest.raises(ConfigError) as refused:
            snapshot([one, *missing], str(tmp_path / "p2"), before)
        assert str(refused.value).startswith(
            f"no journal segments (*.jsonl, *.jsonl.gz) in {', '.join(missing)}: expected some"
        )
    pruned = snapshot([one, f"{one}/00000001.jsonl"], str(tmp_path / "p3"), found=True)
    assert contents(pruned.paths) == ["a"], "a stream found a segment that was pruned since"


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(tmp_path / "j" / "edge-1", current="a")
    secret = str(journal(tmp_path / "j" / "edge-2", current="b"))
    scandir = os.scandir

    def denied(path: str) -> object:  # root may list everything
        if path == secret:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UnavailableError, match=f"cannot list {secret} \\(Permission denied\\)"):
        snapshot([str(tmp_path / "j")], str(tmp_path / "picture"))


def test_linked_directories_are_read_and_loops_end(tmp_path: Path) -> None:
    journal(tmp_path / "elsewhere" / "edge-1", current="a")
    two = journal(tmp_path / "j" / "edge-2", current="b")
    (tmp_path / "j" / "edge-1").symlink_to(tmp_path / "elsewhere" / "edge-1")
    (tmp_path / "j" / "also-edge-2").symlink_to(two)
    (two / "up").symlink_to(tmp_path / "j")
    picture = snapshot([str(tmp_path / "j")], str(tmp_path / "p1"))
    assert contents(picture.paths) == ["b", "a"]
    assert [path.removeprefix(f"file://{picture.below}{tmp_path}/j") for path in picture.paths] == [
        "/edge-2/current.jsonl",
        "/edge-1/current.jsonl",
    ]
    assert len(snapshot([f"{tmp_path}/j/*"], str(tmp_path / "p2")).paths) == 2


def unpacked(uri: str) -> str:
    with gzip.open(uri.removeprefix("file://")) as file:
        return file.read().decode()


def test_of_a_damaged_compressed_segment_that_counts_which_can_be_read(tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-1", **{"00000001": "a\n"})
    packed = gzip.compress(b"".join(b'{"line":%d}\n' % number for number in range(20_000)))
    for name, data in (("2", packed), ("3", packed[: len(packed) // 2]), ("4", b"no gzip"), ("5", packed + b"tail")):
        (one / f"0000000{name}.jsonl.gz").write_bytes(data)
    picture = snapshot([str(one)], str(tmp_path / "p1"))
    _, whole, half, none, tail = picture.paths
    assert Path(whole.removeprefix("file://")).read_bytes() == packed
    lines = unpacked(half).splitlines()
    assert lines[0] == '{"line":0}'
    assert 5000 < len(lines) < 20_000
    assert lines[-1].startswith("(the rest of this file cannot be read: ")
    assert unpacked(none).strip().startswith("(the rest of this file cannot be read: Not a gzipped file")
    assert len(unpacked(tail).splitlines()) >= 20_000
    assert (one / "00000003.jsonl.gz").read_bytes() == packed[: len(packed) // 2], "the journal stays as it is"
    again = snapshot([str(one)], str(tmp_path / "p2"), picture.read)
    assert (again.paths, again.known) == ([], 5)
    (one / "00000003.jsonl.gz").write_bytes(gzip.compress(b"copied again\n"))
    assert [unpacked(path) for path in snapshot([str(one)], str(tmp_path / "p3"), picture.read).paths] == [
        "copied again\n"
    ]


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


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
def test_where_links_cannot_be_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    one = journal(tmp_path / "edge-1", **{"00000001": "a"})
    assert contents(snapshot([str(one)], str(tmp_path / "picture")).paths) == ["a"]
    (one / "part-0.parquet").write_text("rows")
    link_tree(str(one), str(tmp_path / "next"))
    assert (tmp_path / "next" / "part-0.parquet").read_text() == "rows"


def test_no_output_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--rebuild`` reads nothing of the old output, also when it is started in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / segments.LIST).write_text(segments.list_text([segments.Segment("/j/1.jsonl", 3, 4, "d")]))
    journal(tmp_path / "runs" / "date=2026-09-21")
    (tmp_path / "runs" / "date=2026-09-21" / "part-0.parquet").write_text("rows")
    assert segments.read_before("") == []
    Tables(cast(SparkSession, None), "", str(tmp_path / "next")).keep("runs")
    assert not (tmp_path / "next").exists()


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
