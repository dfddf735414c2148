"""Looks at HDFS: patterns, pages, two namenodes, bounds. The stand-in speaks WebHDFS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.hdfs import Hdfs

from coordd.adapters.triggers import remote_files as module
from coordd.adapters.triggers.remote_files import look
from coordd.core.triggers.files import Found
from coordd.errors import UnavailableError

MS = 10**6
CHANGED = 1_700_000_000_000


@pytest.fixture
def hdfs() -> Iterator[Hdfs]:
    with Hdfs() as running:
        running.files = {f"/data/in/{number}.csv": b"x" * number for number in range(8)}
        running.files |= {"/data/in/.hidden.csv": b"", "/data/in/a.txt": b"", "/data/in/sub/9.csv": b""}
        running.files |= {"/data/out/a/_SUCCESS": b"", "/data/out/b/part-0": b"", "/data/out/c/_SUCCESS": b""}
        yield running


def paths(hdfs: Hdfs, pattern: str) -> list[str]:
    return [one.path for one in look(f"webhdfs://{hdfs.address}{pattern}?user.name=etl").found]


def test_files_are_found_over_all_pages_with_size_and_time(hdfs: Hdfs) -> None:
    hdfs.changed["/data/in/3.csv"] = CHANGED + 5
    found = look(f"webhdfs://{hdfs.address}/data/in/*.csv?user.name=etl")
    assert found.found == [
        Found(f"/data/in/{number}.csv", number, when, when)
        for number in range(8)
        for when in [(CHANGED + (5 if number == 3 else 0)) * MS]
    ]
    assert (found.refused, found.more, hdfs.users) == ([], False, {"etl"})


def test_markers_in_directories_are_found_and_a_single_file_too(hdfs: Hdfs) -> None:
    assert paths(hdfs, "/data/out/*/_SUCCESS") == ["/data/out/a/_SUCCESS", "/data/out/c/_SUCCESS"]
    assert paths(hdfs, "/data/in/[12].csv") == ["/data/in/1.csv", "/data/in/2.csv"]
    assert paths(hdfs, "/data/in/7.csv") == ["/data/in/7.csv"]
    assert paths(hdfs, "/data/in/absent.csv") == []


def test_a_directory_that_is_not_there_or_a_namenode_that_fails_is_a_problem(hdfs: Hdfs) -> None:
    with pytest.raises(UnavailableError, match="/nowhere"):
        paths(hdfs, "/nowhere/*.csv")
    with Hdfs() as standby:
        standby.standby = True
        both = f"webhdfs://{standby.address},{hdfs.address}/data/in/[0]*.csv"
        assert [one.path for one in look(both).found] == ["/data/in/0.csv"]
    hdfs.broken = 503
    with pytest.raises(UnavailableError):
        paths(hdfs, "/data/in/*.csv")


def test_a_directory_without_permission_is_refused_and_the_others_are_looked_at(hdfs: Hdfs) -> None:
    hdfs.denied = {"/data/out/a", "/data/out/c/_SUCCESS"}
    hdfs.files["/data/out/d/_SUCCESS"] = b""
    with Hdfs() as standby:
        standby.standby = True
        found = look(f"webhdfs://{hdfs.address},{standby.address}/data/out/*/[_]*?user.name=etl")
        assert [one.path for one in found.found] == ["/data/out/c/_SUCCESS", "/data/out/d/_SUCCESS"]
        assert [(what, "Permission denied" in why) for what, why in found.refused] == [("/data/out/a", True)]
    found = look(f"webhdfs://{hdfs.address}/data/out/*/_SUCCESS?user.name=etl")
    assert [what for what, _ in found.refused] == ["/data/out/c/_SUCCESS"]
    hdfs.denied = {"/data/out/a", "/data/out/b", "/data/out/c", "/data/out/d"}
    with pytest.raises(UnavailableError, match="Permission denied"):
        look(f"webhdfs://{hdfs.address}/data/out/*/*")


def test_a_look_is_bounded(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 2)
    found = look(f"webhdfs://{hdfs.address}/data/out/*/_SUCCESS")
    assert ([one.path for one in found.found], found.more) == (["/data/out/a/_SUCCESS"], True)
    monkeypatch.setattr(module, "ENTRIES_MAX", 4)
    assert look(f"webhdfs://{hdfs.address}/data/in/*.csv").more
    monkeypatch.setattr(module, "LOOK_S", -1.0)
    with pytest.raises(UnavailableError, match="was not done within"):
        paths(hdfs, "/data/in/*.csv")


def test_a_path_without_an_address_is_looked_for_here(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    assert [one.path for one in look(f"{tmp_path}/*.csv").found] == [f"{tmp_path}/a.csv"]


def listed(**told: object) -> bytes:
    """The answer of a namenode that has one file, of which it tells this."""
    status = {"type": "FILE", "pathSuffix": "a.csv", "modificationTime": 1, "length": 1, **told}
    page = {"partialListing": {"FileStatuses": {"FileStatus": [status]}}, "remainingEntries": 0}
    return json.dumps({"DirectoryListing": page}).encode()


@pytest.mark.parametrize(
    "says",
    [
        listed(modificationTime=None),
        listed(length=float("inf")),
        listed(length=[1]),
        listed(length=1).replace(b'"length": 1', b'"length": 1e999'),
        listed().replace(b'"remainingEntries": 0', b'"remainingEntries": Infinity'),
        listed(pathSuffix="\ud800").replace(b'"remainingEntries": 0', b'"remainingEntries": 1'),
        b"[" * 100_000,
    ],
)
def test_whatever_a_namenode_answers_is_a_problem(hdfs: Hdfs, says: bytes) -> None:
    hdfs.says = says
    with pytest.raises(UnavailableError):
        paths(hdfs, "/data/in/*.csv")


@pytest.mark.parametrize("length", ["null", "Infinity", "1e999", "[]"])
def test_whatever_a_namenode_answers_of_one_file_is_a_problem(hdfs: Hdfs, length: str) -> None:
    hdfs.says = b'{"FileStatus": {"type": "FILE", "length": %b}}' % length.encode()
    with pytest.raises(UnavailableError):
        paths(hdfs, "/data/in/a.csv")
