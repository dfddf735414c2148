"""The SQLite ledger when its file or its disk has a fault."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.ledger_calls import FakeClock, Nodes

import coordd
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger, path_of, system_clock
from coordd.adapters.ledger.sqlite_rows import MIGRATIONS, Transaction
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Claim, ListOpen, Register, Suspend
from coordd.core.ledger.rows import LedgerTime
from coordd.core.ledger.words import AttemptNumber
from coordd.errors import ConfigError, LocalProtocolError, UnavailableError

ROOT = os.path.dirname(os.path.dirname(coordd.__file__))


# ---- locked


def test_a_locked_ledger_is_unavailable_after_the_deadline_and_well_again_after_the_lock(
    open_ledger: Callable[..., Nodes], path: str
) -> None:
    nodes = open_ledger(timeout_s=0.2)
    nodes.ask(Register(of=nodes.of()))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="locked by another process"):
        nodes.claim(nodes.of())
    assert time.monotonic() - began >= 0.2  # it waited for the lock for the configured time
    nodes.ledger.ask(ListOpen(jobs=("sales",)))  # there is nothing to write, so no lock is needed
    assert nodes.state("sales#1") == "pending"
    with pytest.raises(UnavailableError, match="locked"):
        nodes.ledger.ask(ListOpen(jobs=("a new job",)))
    other.execute("COMMIT")
    other.close()
    assert nodes.claim(nodes.of()).word == "granted"


def test_a_ledger_that_is_locked_when_it_is_opened_is_unavailable(open_ledger: Callable[..., Nodes], path: str) -> None:
    open_ledger().ledger.close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UnavailableError, match="locked by another process"):
        open_ledger()
    other.close()
    open_ledger()


def test_a_thread_that_is_stuck_does_not_hold_up_the_others_for_ever(open_ledger: Callable[..., Nodes]) -> None:
    nodes = open_ledger()
    ledger = nodes.ledger
    assert isinstance(ledger, SqliteLedger)
    with ledger._turn, pytest.raises(UnavailableError, match="no turn"):
        nodes.state("sales#1")
    assert nodes.state("sales#1") == ""


# ---- a file that is not ours, or that is damaged


def spoil(path: str, how: str) -> None:
    with open(path, "r+b") as file:
        if how == "truncated":
            file.truncate(0)
        elif how == "header":
            file.write(b"\xff" * 100)
        elif how == "text":
            file.truncate(0)
            file.write(b"this is not a ledger\n" * 500)
        else:
            file.seek(4096)
            file.write(b"\xa5" * (os.path.getsize(path) - 4096))


@pytest.mark.parametrize(("how", "says"), [("truncated", "empty"), ("header", "damaged"), ("text", "damaged")])
def test_a_spoilt_file_is_refused_untouched(open_ledger: Callable[..., Nodes], path: str, how: str, says: str) -> None:
    nodes = open_ledger()
    nodes.granted(nodes.of())
    nodes.ledger.close()
    spoil(path, how)
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(ConfigError, match=says) as caught:
        open_ledger()
    assert path in str(caught.value)
    assert "backup" in str(caught.value)
    with open(path, "rb") as file:
        assert file.read() == before


def test_damage_inside_the_file_is_unavailable_not_empty(open_ledger: Callable[..., Nodes], path: str) -> None:
    nodes = open_ledger()
    for number in range(100):
        nodes.ask(Register(of=nodes.of(f"j#{number}")))
    nodes.ledger.close()
    spoil(path, "pages")
    nodes = open_ledger()
    with pytest.raises(UnavailableError, match="damaged"):
        nodes.claim(nodes.of("j#50"))
    assert isinstance(nodes.ledger, SqliteLedger)
    assert nodes.ledger.integrity() != []


def test_another_programs_database_is_refused(open_ledger: Callable[..., Nodes], path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(ConfigError, match="another program's database") as refused:
        open_ledger()
    assert "restore a backup as docs/runbook.md says" in str(refused.value)
    assert "move it away" not in str(refused.value), "the runbook forbids it"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_vanishes_is_not_begun_anew(open_ledger: Callable[..., Nodes], path: str, replaced: bool) -> None:
    nodes = open_ledger()
    nodes.granted(nodes.of())
    for suffix in ("", "-wal", "-shm"):
        os.rename(path + suffix, path + suffix + ".away")
    if replaced:
        open_ledger().ledger.close()
    with pytest.raises(UnavailableError, match="replaced while in use" if replaced else "the file is gone"):
        nodes.claim(nodes.of())
    with pytest.raises(UnavailableError):
        nodes.state("sales#1")
    assert os.path.exists(path) == replaced


@pytest.mark.parametrize("identity", ["", "0123456789abcdef"])
def test_nobody_makes_a_new_file_beside_the_log_of_one_that_was_moved(
    open_ledger: Callable[..., Nodes], path: str, identity: str
) -> None:
    """A runner did: then the log was its, and everything since the last checkpoint was lost."""
    nodes = open_ledger()
    nodes.granted(nodes.of())
    os.rename(path, f"{path}.away")
    with pytest.raises(UnavailableError, match="the file is gone"):
        SqliteLedger(f"sqlite:///{path}", identity=identity)
    assert not os.path.exists(path)
    os.rename(f"{path}.away", path)
    assert nodes.state("sales#1") == "received"
    nodes.ledger.close()
    assert open_ledger().state("sales#1") == "received"


def test_a_runner_never_makes_a_ledger(path: str) -> None:
    with pytest.raises(UnavailableError, match="the file is gone"):
        SqliteLedger(f"sqlite:///{path}", identity="0123456789abcdef")
    assert os.listdir(os.path.dirname(path)) == []


def test_a_log_that_was_deleted_while_in_use_is_noticed(open_ledger: Callable[..., Nodes], path: str) -> None:
    """Without that, a process that comes later writes into a log of its own: two ledgers in one file."""
    nodes = open_ledger()
    nodes.granted(nodes.of())
    os.unlink(f"{path}-wal")
    with pytest.raises(UnavailableError, match=r"its log .*-wal was deleted or replaced"):
        nodes.state("sales#1")


def test_a_newer_schema_is_refused_and_an_older_one_migrated(open_ledger: Callable[..., Nodes]) -> None:
    nodes = open_ledger()
    nodes.granted(nodes.of())
    nodes.ledger.close()
    MIGRATIONS.append(("CREATE TABLE more (x)", "ALTER TABLE jobs ADD COLUMN pool TEXT NOT NULL DEFAULT ''"))
    try:
        nodes = open_ledger()
        assert nodes.ledger.status()["schema"] == 2
        assert nodes.state("sales#1") == "received"
        nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
        nodes.ledger.close()
    finally:
        MIGRATIONS.pop()
    with pytest.raises(ConfigError, match="newer coordd"):
        open_ledger()


def test_a_migration_that_fails_changes_nothing(open_ledger: Callable[..., Nodes]) -> None:
    open_ledger().ledger.close()
    MIGRATIONS.append(("CREATE TABLE more (x)", "no SQL at all"))
    try:
        with pytest.raises(ConfigError):
            open_ledger()
    finally:
        MIGRATIONS.pop()
    assert open_ledger().ledger.status()["schema"] == 1


# ---- places where a ledger is impossible


@pytest.mark.parametrize("url", ["sqlite:///ledger.db", "sqlite://", "ledger.db", "", "sqlite:////tmp/", "/a\0b"])
def test_only_an_absolute_path_names_a_ledger(url: str) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        path_of(url)


def test_urls_and_paths_name_the_same_file() -> None:
    assert path_of("sqlite:////var/lib/x.db") == path_of("/var/lib/x.db") == "/var/lib/x.db"


def test_a_path_may_have_any_characters(open_ledger: Callable[..., Nodes], tmp_path: Path) -> None:
    odd = f"{tmp_path}/50% of #1?mode=ro & ümlaut.db"
    open_ledger(f"sqlite:///{odd}")
    assert os.path.exists(odd)


def test_a_missing_directory_is_named(open_ledger: Callable[..., Nodes], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot be created in {tmp_path}/gone: No such file or directory"):
        open_ledger(f"{tmp_path}/gone/ledger.db")
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_ledger(f"{tmp_path}")


@pytest.fixture
def unprivileged_directory() -> Iterator[str]:
    """A directory where nobody may write, not even root."""
    with tempfile.TemporaryDirectory(prefix="coordd-ro-") as directory:
        root = os.geteuid() == 0
        yield directory
        if root:
            os.seteuid(0)
        os.chmod(directory, 0o700)


def lock_away(directory: str) -> None:
    os.chmod(directory, 0o500 if os.geteuid() else 0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may write anywhere; this user may not


def test_a_directory_that_cannot_be_written_is_a_clear_error(
    open_ledger: Callable[..., Nodes], unprivileged_directory: str
) -> None:
    lock_away(unprivileged_directory)
    with pytest.raises(ConfigError, match="Permission denied; check the owner and mode"):
        open_ledger(f"{unprivileged_directory}/ledger.db")


def test_a_ledger_that_cannot_be_written_is_a_clear_error(
    open_ledger: Callable[..., Nodes], unprivileged_directory: str
) -> None:
    path = f"{unprivileged_directory}/ledger.db"
    open_ledger(path).ledger.close()
    os.chmod(path, 0o444)
    lock_away(unprivileged_directory)
    with pytest.raises(ConfigError, match="check the owner and mode of the file and of its directory"):
        open_ledger(path)


# ---- a full disk


class SmallDisk:
    """A directory whose disk the test can fill: a tmpfs if the test may mount one,
    otherwise a limit on SQLite's own pages.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory], check=False, capture_output=True
        )
        self.mounted = done.returncode == 0

    def fill(self, ledger: SqliteLedger) -> None:
        if self.mounted:
            with open(f"{self.directory}/filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 4096)
                except OSError:
                    return
        assert ledger._db is not None
        ledger._db.execute("PRAGMA max_page_count = 1")  # SQLite keeps the present size, and adds no page

    def free(self, ledger: SqliteLedger) -> None:
        if self.mounted:
            os.unlink(f"{self.directory}/filler")
        elif ledger._db is not None:
            ledger._db.execute("PRAGMA max_page_count = 1000000")

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", self.directory], check=True)


@pytest.fixture
def small_disk() -> Iterator[SmallDisk]:
    # Not below pytest's own directory: if a test is killed, its mount would make every later session fail there.
    with tempfile.TemporaryDirectory(prefix="coordd-disk-") as directory:
        disk = SmallDisk(directory)
        yield disk
        disk.unmount()


@pytest.mark.parametrize(("commit_s", "left_s"), [(0.0, 0.125), (0.0625, 0.0625), (0.5, 0.0), (-60.0, 60.125)])
def test_what_is_left_until_the_fire_time_is_told_as_of_the_end_of_the_commit(
    path: str, clock: FakeClock, commit_s: float, left_s: float
) -> None:
    """The caller counts it from the receipt of the answer. Or the clock was set back meanwhile."""

    def takes_a_while() -> LedgerTime:
        now = clock()
        clock.step(commit_s * slow)
        return now

    slow = 0
    ledger = SqliteLedger(path, clock=takes_a_while)
    nodes = Nodes(ledger, clock)
    grant = nodes.granted(nodes.of("j@2025-01-29T08:00:04Z", fire_at=clock.wall + 4.0))
    clock.step(3.875)
    slow = 1

    answer = nodes.gate(grant, 0.25)

    assert (answer.word, answer.in_s) == ("ok", left_s)
    ledger.close()


def test_a_full_disk_is_unavailable_and_nothing_is_half_applied(small_disk: SmallDisk, clock: FakeClock) -> None:
    ledger = SqliteLedger(f"{small_disk.directory}/ledger.db", clock=clock)
    nodes = Nodes(ledger, clock)
    first = nodes.granted(nodes.of("j#first", overlap="allow"))
    small_disk.fill(ledger)
    asked = ""
    with pytest.raises(UnavailableError, match="the disk is full"):
        for number in range(2000):  # far more than fit
            asked = f"j#{number}"
            nodes.granted(nodes.of(asked, overlap="allow"))
    newest = ledger.runs(limit=1)[0]
    assert ledger.run(asked) is None
    assert ledger.attempts(asked) == []
    assert ledger.ask(ListOpen(jobs=("j",))).jobs["j"].fence == max(row.token for row in ledger.runs(limit=3000))
    if small_disk.mounted:
        before = sorted(os.listdir(small_disk.directory))
        with pytest.raises(UnavailableError, match=r"full|No space"):
            SqliteLedger(f"{small_disk.directory}/second.db", clock=clock)
        assert sorted(os.listdir(small_disk.directory)) == before
    small_disk.free(ledger)
    assert nodes.gate(first).word == "ok"
    assert nodes.claim(nodes.of(asked, overlap="allow")).word == "granted"
    assert newest.state == "received"
    assert ledger.integrity() == []
    ledger.close()


# ---- the rest


def test_a_value_that_no_row_can_hold_is_our_mistake(open_ledger: Callable[..., Nodes]) -> None:
    nodes = open_ledger()
    for bad in ({"args": "\ud800"}, {"age_s": float("nan")}, {"by": 2**70}):
        with pytest.raises(LocalProtocolError, match="no row can hold"):
            nodes.ask(Register(of=nodes.of(**bad)))
    assert nodes.ask(Register(of=nodes.of())).word == "ok"


def test_the_clocks_are_the_machines() -> None:
    clock = system_clock()
    first, second = clock(), clock()
    assert first.boot == second.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert first.lease <= second.lease <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert abs(first.wall - time.time()) < 3600


def test_status_says_where_the_ledger_is(open_ledger: Callable[..., Nodes], path: str) -> None:
    nodes = open_ledger(f"sqlite:///{path}")
    nodes.granted(nodes.of())
    status = nodes.ledger.status()
    assert status["size_bytes"] > 0
    assert (status["url"], status["path"], status["schema"]) == (f"sqlite:///{path}", path, 1)
    assert (status["jobs"], status["runs"]) == (1, {"received": 1})


def test_a_runner_can_start_with_the_smallest_part_of_python() -> None:
    program = (
        f"import sys; sys.path.insert(0, {ROOT!r}); import coordd.adapters.ledger.sqlite_ledger\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-E", "-c", program], check=True, capture_output=True, text=True)
    heavy = {"typing", "enum", "dataclasses", "json", "contextlib", "random", "threading", "logging", "re", "trio"}
    assert heavy & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        ("open_runs", "runs_open"),
        ("active_runs", "runs_active"),
        ("ended_runs", "runs_ended"),
        ("ended_since", "runs_ended"),
        ("last_fire_at", "runs_fired"),
    ],
)
def test_what_the_rules_ask_is_answered_from_an_index(open_ledger: Callable[..., Nodes], sql: str, index: str) -> None:
    ledger = open_ledger().ledger
    assert isinstance(ledger, SqliteLedger)
    assert ledger._db is not None
    db = ledger._db
    plans: list[str] = []

    class Explained:
        def execute(self, sql: str, values: tuple[object, ...]) -> sqlite3.Cursor:
            plans.extend(row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, values))
            return db.execute(sql, values)

    store = Transaction(Explained(), False)  # type: ignore[arg-type]  # all that it asks of a connection
    arguments = {
        "open_runs": (10,),
        "active_runs": ("j",),
        "ended_runs": (1.0, 10),
        "ended_since": (1.0, 10),
        "last_fire_at": ("j", 1e9),
    }[sql]
    getattr(store, sql)(*arguments)
    assert len(plans) == (2 if sql == "last_fire_at" else 1), plans  # no temporary tree for the order
    assert f"USING INDEX {index}" in plans[0]


# ---- batches


def test_a_batch_has_the_answers_of_its_operations_one_by_one_and_is_written_at_once(
    open_ledger: Callable[..., Nodes],
) -> None:
    nodes = open_ledger()
    ledger, of = sqlite_of(nodes), nodes.of()
    first = Claim(of=of, attempt=AttemptNumber(0), nonce="a", node="n1", lease_s=60.0)
    said: list[str] = []
    assert ledger._db is not None
    ledger._db.set_trace_callback(said.append)

    answers = ledger.ask_all(
        [
            Register(of=of),
            Register(of=of),
            ListOpen(jobs=("sales",)),
            first,
            Claim(of=of, attempt=AttemptNumber(0), nonce="b", node="n2", lease_s=60.0),
            first,
            Register(of=nodes.of("sales#2")),
        ]
    )

    assert [answer.word for answer in answers if isinstance(answer, Answer)] == [
        "ok",
        "exists",
        "granted",
        "held",
        "granted",
        "ok",
    ]
    assert isinstance(answers[2], OpenAnswer)
    assert [row.run for row in answers[2].runs] == ["sales#1"]
    assert (said.count("BEGIN IMMEDIATE"), said.count("COMMIT")) == (1, 1)
    assert {row.run for row in open_ledger().ledger.runs()} == {"sales#1", "sales#2"}


def test_a_bad_row_is_the_answer_of_its_operations_alone(open_ledger: Callable[..., Nodes], path: str) -> None:
    nodes = open_ledger()
    nodes.ask(Register(of=nodes.of()))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE runs SET attempt = x'00ff'")

    answers = sqlite_of(nodes).ask_all([Register(of=nodes.of("sales#2")), Register(of=nodes.of()), ListOpen(jobs=())])

    assert [answer.word for answer in answers if isinstance(answer, Answer)] == ["ok", "bad"]
    assert isinstance(answers[2], OpenAnswer)
    assert list(answers[2].bad) == ["sales#1"]
    assert nodes.state("sales#2") == "pending"


def test_a_batch_that_cannot_be_written_is_not_written_at_all(open_ledger: Callable[..., Nodes]) -> None:
    nodes = open_ledger()
    wrong = nodes.of("sales#2")
    wrong.args = "\ud800"
    with pytest.raises(LocalProtocolError, match="no row can hold"):
        sqlite_of(nodes).ask_all([Register(of=nodes.of()), Register(of=wrong)])
    assert nodes.ledger.runs() == []


def sqlite_of(nodes: Nodes) -> SqliteLedger:
    assert isinstance(nodes.ledger, SqliteLedger)
    return nodes.ledger
