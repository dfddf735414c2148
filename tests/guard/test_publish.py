"""Publications of files and directories, and transactions of tables."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from coordd import guard
from guard.conftest import Begin
from guard.fake_runner import FakeRow

SHORT_S = 0.3


def directory(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def content(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


def beside(target: Path) -> list[str]:
    return sorted(os.listdir(target.parent / f".{target.name}.coordd"))


def test_a_file_replaces_its_target(begin: Begin, tmp_path: Path) -> None:
    begin()
    target = tmp_path / "report.html"
    target.write_text("old")
    (tmp_path / "staged").write_text("new")

    done = guard.publish(str(tmp_path / "staged"), str(target))

    assert done == [guard.Published(str(target), 5, "now")]
    assert target.read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == [".report.html.coordd", "report.html"]
    assert beside(target) == ["lock", "published.json"]


@pytest.mark.parametrize("there", ["absent", "empty", "full"])
def test_a_directory_replaces_its_target_whole(there: str, begin: Begin, tmp_path: Path) -> None:
    begin()
    target = tmp_path / "sales"
    if there != "absent":
        directory(target, **({"a.parquet": "old", "b.parquet": "old"} if there == "full" else {}))
    staged = directory(Path(guard.staging(str(target))), **{"a.parquet": "new"})

    guard.publish(str(staged), str(target))

    assert content(target) == {"a.parquet": "new"}
    assert beside(target) == ["lock", "published.json"]


def test_several_targets_have_one_commit(begin: Begin, tmp_path: Path) -> None:
    runner = begin()
    for name in "ab":
        directory(tmp_path / f"staged-{name}", part=name)

    done = guard.publish({str(tmp_path / f"staged-{name}"): str(tmp_path / name) for name in "ab"})

    assert [one.how for one in done] == ["now", "now"]
    assert (tmp_path / "a/part").read_text() + (tmp_path / "b/part").read_text() == "ab"
    assert len(runner.heard) == 1


def test_a_second_publication_with_other_targets_is_refused(begin: Begin, tmp_path: Path) -> None:
    begin()
    for name in "ab":
        (tmp_path / f"staged-{name}").write_text(name)
    guard.publish(str(tmp_path / "staged-a"), str(tmp_path / "a"))

    with pytest.raises(guard.NotPublishableError, match="in one call"):
        guard.publish(str(tmp_path / "staged-b"), str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()
    assert (tmp_path / "staged-b").exists()


def test_a_repetition_changes_nothing(begin: Begin, tmp_path: Path) -> None:
    begin()
    (tmp_path / "staged").write_text("new")
    arguments = (str(tmp_path / "staged"), str(tmp_path / "target"))
    guard.publish(*arguments)

    for _ in range(2):  # in the same process, and in another one
        assert [one.how for one in guard.publish(*arguments)] == ["before"]
        guard._published.clear()
    assert (tmp_path / "target").read_text() == "new"


def test_after_a_takeover_the_target_is_unchanged(begin: Begin, row: FakeRow, tmp_path: Path) -> None:
    begin()
    target = directory(tmp_path / "sales", part="old")
    staged = directory(tmp_path / "staged", part="a zombie's")
    row.token = 6

    with pytest.raises(guard.LeaseLostError, match=r"attempt 0 \(token 5\) may not publish: a reason"):
        guard.publish(str(staged), str(target))
    assert content(target) == {"part": "old"}


def test_the_next_attempt_finishes_what_was_committed(begin: Begin, row: FakeRow, tmp_path: Path) -> None:
    begin()
    target = directory(tmp_path / "sales", part="old")
    directory(tmp_path / "staged-5", part="first")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="a crash"):
        patch.setattr(guard._Place, "_finish", raise_crash)
        guard.publish(str(tmp_path / "staged-5"), str(target))
    assert (row.commit_token, content(target)) == (5, {"part": "old"})

    begin(6, attempt=1)
    directory(tmp_path / "staged-6", part="second")
    done = guard.publish(str(tmp_path / "staged-6"), str(target))

    assert done == [guard.Published(str(target), 5, "finished")]
    assert content(target) == {"part": "first"}
    assert beside(target) == ["lock", "published.json"]
    assert guard.publish(str(tmp_path / "staged-6"), str(target))[0].how == "before"


def raise_crash(*_: object) -> None:
    raise OSError("a crash")


def test_the_next_attempt_finds_it_published_before(begin: Begin, tmp_path: Path) -> None:
    begin()
    target = directory(tmp_path / "sales", part="old")
    guard.publish(str(directory(tmp_path / "staged-5", part="first")), str(target))

    begin(6, attempt=1)
    done = guard.publish(str(directory(tmp_path / "staged-6", part="second")), str(target))

    assert done == [guard.Published(str(target), 5, "before")]
    assert content(target) == {"part": "first"}


def test_a_commit_whose_output_is_elsewhere_is_said_so(begin: Begin, row: FakeRow, tmp_path: Path) -> None:
    begin(6, attempt=1)
    row.commit_token = 5
    target = directory(tmp_path / "sales", part="old")

    with pytest.raises(guard.NotPublishableError, match="on a disk that all nodes share"):
        guard.publish(str(directory(tmp_path / "staged", part="second")), str(target))
    assert content(target) == {"part": "old"}


def test_an_older_run_never_replaces_a_newer_one(begin: Begin, tmp_path: Path) -> None:
    begin(7, run="sales@2026-11-24T02:00:00Z")
    target = tmp_path / "sales"
    guard.publish(str(directory(tmp_path / "new", part="today's")), str(target))

    runner = begin(5)
    old = directory(tmp_path / "old", part="yesterday's")
    with pytest.raises(guard.SupersededError, match="2026-11-24"):
        guard.publish(str(old), str(target))
    assert content(target) == {"part": "today's"}
    assert runner.heard == [], "it was known before the commit"


def test_the_next_run_replaces_the_output_of_the_last(begin: Begin, tmp_path: Path) -> None:
    target = tmp_path / "sales"
    for token in (5, 6, 7):
        runner = begin(token, run=f"sales#{token}")
        runner.row.commit_token = 0
        guard.publish(str(directory(tmp_path / "staged", part=str(token))), str(target))
        assert content(target) == {"part": str(token)}


def test_an_unanswered_commit_is_finished_by_a_repetition(begin: Begin, tmp_path: Path) -> None:
    runner = begin()
    target = directory(tmp_path / "sales", part="old")
    staged = directory(tmp_path / "staged", part="new")
    runner.reply = lambda _: b""
    with pytest.raises(guard.LeaseLostError, match="nobody can tell"):
        guard.publish(str(staged), str(target), timeout_s=SHORT_S)
    assert content(target) == {"part": "old"}

    runner.reply = runner.from_row
    assert guard.publish(str(staged), str(target))[0].how == "now"
    assert content(target) == {"part": "new"}


def test_nobody_publishes_while_another_process_does(begin: Begin, row: FakeRow, tmp_path: Path) -> None:
    begin()
    staged, target = tmp_path / "staged", tmp_path / "target"
    staged.write_text("new")
    guard.staging(str(target))
    fd = os.open(tmp_path / ".target.coordd/lock", os.O_RDWR | os.O_CREAT)
    with contextlib.closing(os.fdopen(fd)):
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(guard.NotPublishableError, match="another process holds"):
            guard.publish(str(staged), str(target), timeout_s=SHORT_S)
    assert row.commit_token == 0
    guard.publish(str(staged), str(target))
    assert target.read_text() == "new"


# ---- what is refused before the commit


def refused(begin: Begin, staged: Path | str, target: Path | str, why: str) -> None:
    runner = begin()
    with pytest.raises(guard.NotPublishableError, match=why):
        guard.publish(str(staged), str(target))
    assert runner.heard == [], "nothing was committed"


def test_what_cannot_be_published_is_refused_before_the_commit(begin: Begin, tmp_path: Path) -> None:
    there, file = directory(tmp_path / "there", part="x"), tmp_path / "file"
    file.write_text("x")
    unfinished = directory(tmp_path / "unfinished", part="x")
    (unfinished / "_temporary").mkdir()

    refused(begin, tmp_path / "absent", tmp_path / "target", "is not there")
    refused(begin, there, file, "the other is not")
    refused(begin, file, there, "the other is not")
    refused(begin, there, there / "inner", "in its staging")
    refused(begin, there, there, "in its staging")
    refused(begin, unfinished, tmp_path / "target", "_temporary")
    refused(begin, there, "hdfs://name/sales", "mounted paths")
    refused(begin, "s3a://bucket/sales", there, "mounted paths")
    refused(begin, file, file / "inner", "cannot be made")


def test_another_file_system_is_refused_before_the_commit(begin: Begin, tmp_path: Path) -> None:
    staged = Path("/dev/shm") / f"coordd-guard-{os.getpid()}"  # memory: another file system
    if staged.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system here")
    staged.write_text("new")
    try:
        refused(begin, staged, tmp_path / "target", "Invalid cross-device link")
        assert staged.read_text() == "new"
    finally:
        staged.unlink()


def test_a_file_system_without_exchange_is_refused_before_the_commit(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, staged = directory(tmp_path / "sales", part="old"), directory(tmp_path / "staged", part="new")
    monkeypatch.setattr(guard, "exchange", lambda *_: False)

    refused(begin, staged, target, "in one step")
    assert (content(target), content(staged)) == ({"part": "old"}, {"part": "new"})


def test_one_of_several_that_cannot_be_published_stops_all(begin: Begin, tmp_path: Path) -> None:
    runner = begin()
    staged = directory(tmp_path / "staged", part="new")

    with pytest.raises(guard.NotPublishableError, match="is not there"):
        guard.publish({str(staged): str(tmp_path / "a"), str(tmp_path / "absent"): str(tmp_path / "b")})
    assert runner.heard == []
    assert content(staged) == {"part": "new"}, "it is back where it was"
    with pytest.raises(guard.NotPublishableError, match="2 stagings for 1 target"):
        guard.publish({str(staged): str(tmp_path / "a"), str(tmp_path / "other"): str(tmp_path / "a")})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run": 1, "job": "", "token": 0, "inode": 0, "done": true}'])
def test_a_damaged_record_is_named_before_the_commit(text: str, begin: Begin, tmp_path: Path) -> None:
    begin()
    guard.staging(str(tmp_path / "target"))
    (tmp_path / ".target.coordd/published.json").write_text(text)
    (tmp_path / "staged").write_text("new")

    refused(begin, tmp_path / "staged", tmp_path / "target", "published.json is damaged")


# ---- tables


def write_once(db: sqlite3.Connection, of: guard.Transaction) -> bool:
    """As docs/spark.md shows it for JDBC: a key of the run, in the same transaction as its rows."""
    try:
        with db:
            db.execute("INSERT INTO published VALUES (?)", (of.app_id,))
            db.execute("INSERT INTO sales SELECT * FROM staged WHERE token = ?", (of.token,))
    except sqlite3.IntegrityError:
        return False
    return True


def test_a_table_takes_a_run_once_whichever_attempt_writes_it(begin: Begin, tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "tables.db")
    with contextlib.closing(db):
        db.executescript(
            "CREATE TABLE published (run TEXT PRIMARY KEY); CREATE TABLE sales (token INT);"
            "CREATE TABLE staged (token INT); INSERT INTO staged VALUES (5), (6)"
        )
        begin()
        assert guard.transact(lambda of: write_once(db, of)) is True
        begin(6, attempt=1)
        assert guard.transact(lambda of: write_once(db, of)) is False
        assert db.execute("SELECT token FROM sales").fetchall() == [(5,)]


def test_a_zombie_writes_to_no_table(begin: Begin, row: FakeRow) -> None:
    begin()
    row.token = 6
    with pytest.raises(guard.LeaseLostError):
        guard.transact(lambda _: pytest.fail("it was called"))


def test_files_come_before_transactions(begin: Begin, tmp_path: Path) -> None:
    begin()
    (tmp_path / "staged").write_text("new")
    assert guard.transact(lambda of: (of.app_id, of.version, of.token)) == ("coordd:sales@2026-11-23T02:00:00Z", 1, 5)
    with pytest.raises(guard.NotPublishableError, match="before any transaction"):
        guard.publish(str(tmp_path / "staged"), str(tmp_path / "target"))


# ---- the file itself


def test_it_is_one_file_for_every_python_from_3_8_on() -> None:
    text = Path(guard.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    tops = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    # Of the driver that it runs in, if that is Spark's.
    assert tops - {"pyspark"} <= sys.stdlib_module_names
    assert "coordd" not in tops
    # Newer than 3.8: methods of str, the union of dicts at runtime.
    newer = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not newer & {"removeprefix", "removesuffix", "is_relative_to", "readlink", "hardlink_to", "randbytes"}
