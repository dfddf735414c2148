"""One suite for every store: a name has the whole content or none, whatever fails on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.servers.hdfs import Hdfs

from coordd.adapters.remote.command import CommandStore
from coordd.adapters.remote.content import Content, Deadline
from coordd.adapters.remote.stores import open_store
from coordd.adapters.remote.webhdfs import WebHdfsStore
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import RemoteStore

LIMIT_S = 20.0
NAME = "prod/edge-1/logs/sales/sales_1.0.log"

# As an object store does: the object is there when all of it is.
PUT = """[ ! -e "$0/503" ] || { echo "upload failed: (503) Slow Down" >&2; exit 1; }
mkdir -p "$(dirname "$2")" && cp "$1" "$2.up" && mv "$2.up" "$2\""""
GET = '[ -e "$1" ] || { echo "404: the object does not exist" >&2; exit 1; }; cat "$1"'


class Place(NamedTuple):
    store: RemoteStore
    names: Callable[[], set[str]]  # what can be seen there
    fail: Callable[[bool], None]  # every answer is an error


@pytest.fixture(params=["file", "webhdfs", "command"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    there = tmp_path / "there"

    def seen() -> set[str]:
        return {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file() and path.name != "503"}

    if request.param == "webhdfs":
        with Hdfs() as hdfs:
            store: RemoteStore = open_store(hdfs.url, (), (), "")

            def breaks(yes: bool) -> None:
                hdfs.broken = 503 if yes else 0

            yield Place(store, lambda: {path.removeprefix("/logs/") for path in hdfs.files}, breaks)
            return
    there.mkdir()
    if request.param == "file":

        def full(yes: bool) -> None:  # a directory where the part would be: also root cannot write it
            part = there / f"{NAME}.part"
            part.mkdir(parents=True) if yes else part.rmdir()

        yield Place(open_store(f"file://{there}", (), (), ""), seen, full)
        return
    put = ("/bin/sh", "-c", PUT, str(there), "{source}", "{target}")
    get = ("/bin/sh", "-c", GET, str(there), "{target}")

    def slow_down(yes: bool) -> None:
        (there / "503").touch() if yes else (there / "503").unlink()

    # The command sees s3://; here it stands for a directory.
    yield Place(open_store(str(there), put, get, str(tmp_path / "spool")), seen, slow_down)
    assert not list((tmp_path / "spool").glob("*"))


def parts(tmp_path: Path, *texts: bytes) -> list[str]:
    paths = [tmp_path / f"part-{number}" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    return [str(path) for path in paths]


def test_what_is_stored_is_read_back_and_replaced(place: Place, tmp_path: Path) -> None:
    data = os.urandom(700_000)
    assert place.store.put(NAME, parts(tmp_path, data[:300_000], data[300_000:]), LIMIT_S) == len(data)
    assert place.names() == {NAME}
    assert place.store.end(NAME, 2 * len(data), LIMIT_S) == data
    assert place.store.end(NAME, 5, LIMIT_S) == data[-5:]
    assert place.store.put(NAME, parts(tmp_path, b"again"), LIMIT_S) == 5
    assert place.store.end(NAME, 100, LIMIT_S) == b"again"
    assert place.store.put("empty", parts(tmp_path, b""), LIMIT_S) == 0
    assert place.names() == {NAME, "empty"}


def test_a_store_that_answers_503_is_named_and_leaves_no_part(place: Place, tmp_path: Path) -> None:
    paths = parts(tmp_path, b"one")
    place.fail(True)
    with pytest.raises(UnavailableError) as caught:
        place.store.put(NAME, paths, LIMIT_S)
    assert any(word in str(caught.value) for word in ("503", "cannot write"))
    assert place.names() == set()
    place.fail(False)
    place.store.put(NAME, paths, LIMIT_S)
    assert place.names() == {NAME}


def test_a_local_file_that_shrinks_while_it_is_read_gives_no_copy(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = parts(tmp_path, b"x" * 400_000)
    whole = Content.__init__

    def shrinks(self: Content, names: list[str]) -> None:
        whole(self, names)
        os.truncate(names[0], 300_000)

    monkeypatch.setattr(Content, "__init__", shrinks)
    with pytest.raises(UnavailableError):
        place.store.put(NAME, paths, LIMIT_S)
    assert NAME not in place.names()


def test_a_file_that_is_gone_is_refused_and_the_half_of_a_log_is_enough(place: Place, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="is gone"):
        place.store.put(NAME, [str(tmp_path / "none.old"), str(tmp_path / "none")], LIMIT_S)
    (tmp_path / "a.log").write_bytes(b"new")
    assert place.store.put(NAME, [str(tmp_path / "a.log.old"), str(tmp_path / "a.log")], LIMIT_S) == 3
    assert place.names() == {NAME}


def test_a_copy_that_does_not_exist(place: Place) -> None:
    with pytest.raises((RefusedError, UnavailableError), match=r"(?i)no|exist|404"):
        place.store.end("none", 10, LIMIT_S)


def test_a_deadline_counts_for_the_whole_copy(place: Place, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="within"):
        place.store.put(NAME, parts(tmp_path, b"one"), 0.0)
    assert NAME not in place.names()


# ---- WebHDFS


def test_a_datanode_that_dies_leaves_only_a_part(tmp_path: Path) -> None:
    with Hdfs() as hdfs:
        hdfs.files[f"/logs/{NAME}"] = b"old"
        hdfs.drops_data = True
        with pytest.raises(UnavailableError):
            WebHdfsStore(hdfs.url).put(NAME, parts(tmp_path, b"x" * 100_000), LIMIT_S)
        assert hdfs.files == {f"/logs/{NAME}": b"old"}
        hdfs.drops_data = False
        WebHdfsStore(hdfs.url).put(NAME, parts(tmp_path, b"new"), LIMIT_S)
        assert hdfs.files == {f"/logs/{NAME}": b"new"}
        assert [op for _, op in hdfs.asked[-5:]] == ["CREATE", "CREATE", "RENAME", "DELETE", "RENAME"]
        assert hdfs.users == {"coordd"}


def test_the_second_namenode_is_asked_when_the_first_stands_by_or_is_away(tmp_path: Path) -> None:
    with Hdfs() as first, Hdfs() as second:
        url = f"webhdfs://127.0.0.1:1,{first.address},{second.address}/logs"
        first.standby = True
        WebHdfsStore(url).put(NAME, parts(tmp_path, b"one"), LIMIT_S)
        assert list(second.files.values()) == [b"one"]
        assert WebHdfsStore(url).end(NAME, 9, LIMIT_S) == b"one"
        second.standby = True
        with pytest.raises(UnavailableError, match="403 StandbyException: Operation category"):
            WebHdfsStore(url).put(NAME, parts(tmp_path, b"two"), LIMIT_S)


def test_a_redirect_to_what_is_not_an_address_is_named(tmp_path: Path) -> None:
    with Hdfs() as hdfs:
        for there in ("http://[bad/x", "http://[::1/x", "http://a:b:c/x", "http://\xff/x", "ftp://h/x"):
            hdfs.redirects_to = there
            with pytest.raises(UnavailableError):
                WebHdfsStore(hdfs.url).put("n", parts(tmp_path, b"x"), 10.0)


def test_a_size_that_is_not_a_number_is_named() -> None:
    with Hdfs() as hdfs:
        for status in (b'{"length": null}', b'{"length": Infinity}', b"[]"):
            hdfs.says = b'{"FileStatus": %b}' % status
            with pytest.raises(UnavailableError, match="does not tell the size of"):
                WebHdfsStore(hdfs.url).end("n", 10, 10.0)


def test_a_server_that_is_no_namenode_is_named(tmp_path: Path) -> None:
    with Hdfs() as hdfs:
        hdfs.broken = 200
        with pytest.raises(UnavailableError, match="answered 200"):
            WebHdfsStore(hdfs.url).put(NAME, parts(tmp_path, b"one"), LIMIT_S)
        with pytest.raises(UnavailableError, match="is it a namenode"):
            WebHdfsStore(hdfs.url).end(NAME, 9, LIMIT_S)


# ---- commands


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = f"sleep 300 & echo $! > {mark}; wait"
    store = CommandStore("s3://b", ("/bin/sh", "-c", script, "{source}", "{target}"), (), str(tmp_path / "spool"))
    with pytest.raises(UnavailableError, match="was not done within 1 s"):
        store.put(NAME, parts(tmp_path, b"one"), 1.0)
    pid = int(mark.read_text())
    limit = time.monotonic() + LIMIT_S
    while os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_command_that_floods_is_read_to_its_end_and_only_the_end_is_kept(tmp_path: Path) -> None:
    flood = ("/bin/sh", "-c", "head -c 50000000 /dev/zero; echo the end", "{target}")
    store = CommandStore("s3://b", ("/bin/false", "{source}", "{target}"), flood, str(tmp_path / "spool"))
    assert store.end(NAME, 8, LIMIT_S) == b"the end\n"
    with pytest.raises(UnavailableError, match="/bin/false ended with 1: it says nothing"):
        store.put(NAME, parts(tmp_path, b"one"), LIMIT_S)
    with pytest.raises(UnavailableError, match="No such file"):
        CommandStore("s3://b", ("/none", "{source}"), (), str(tmp_path / "spool")).put(NAME, parts(tmp_path, b"1"), 9.0)
    with pytest.raises(RefusedError, match="sink_get is not set"):
        CommandStore("s3://b", flood, (), str(tmp_path)).end(NAME, 8, LIMIT_S)


def test_a_complaint_shows_no_password(tmp_path: Path) -> None:
    argv = ("/bin/sh", "-c", "echo cannot reach https://me:secret@s3/b >&2; exit 3", "{source}", "{target}")
    with pytest.raises(UnavailableError, match=r"ended with 3: cannot reach https://me:\*\*\*@s3/b"):
        CommandStore("s3://b", argv, (), str(tmp_path)).put(NAME, parts(tmp_path, b"one"), LIMIT_S)


def test_a_deadline_that_is_over() -> None:
    with pytest.raises(UnavailableError, match="the copy was not done within 0 s"):
        Deadline(0.0, "the copy").left_s()
