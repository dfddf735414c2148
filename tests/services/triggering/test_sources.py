"""What a poller finds: commands that print ids, and ones that fail, hang, flood or fork; files that are too old."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.files import Found, Looks
from coordd.errors import UnavailableError
from coordd.ports import Listing
from coordd.services.triggering import programs as module, sources
from coordd.services.triggering.programs import CommandSource, SqlSource
from coordd.services.triggering.sources import FileSource, Known, Look

LIMIT_S = 60.0


def printed(tmp_path: Path, body: str, timeout_s: float = LIMIT_S) -> Look:
    path = tmp_path / "ids"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return trio.run(CommandSource(Trigger(kind="command", name="c", argv=(str(path), "x"), timeout_s=timeout_s)).look)


def test_each_line_is_an_arrival_once(tmp_path: Path) -> None:
    look = printed(tmp_path, r"printf 'a\nb c\n\na\n'; printf 'd\001\n'; head -c 2000 /dev/zero | tr '\0' x")

    assert [one.key for one in look.arrivals] == ["a", "b c"]
    assert look.arrivals[1].values == {"key": "b c"}
    assert [why for _, why in look.refused] == [
        "an id must not have the character '\\x01'",
        "an id has at most 1024 bytes",
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [("echo a; echo broken >&2; exit 3", "ended with 3: broken"), ("kill -9 $$", "ended with -9: it said nothing")],
)
def test_of_a_command_that_fails_nothing_is_taken(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(UnavailableError, match=said):
        printed(tmp_path, body)


def test_a_command_that_is_not_there_says_so() -> None:
    with pytest.raises(UnavailableError, match="cannot be executed: No such file"):
        trio.run(CommandSource(Trigger(kind="command", name="c", argv=("/nothing/here",))).look)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="did not end within 1 s"):
        printed(tmp_path, f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/child; wait", timeout_s=1.0)
    stat = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    until = time.monotonic() + LIMIT_S
    while _goes_on(stat) and time.monotonic() < until:  # it has been killed; a busy machine needs a moment
        time.sleep(0.01)
    assert not _goes_on(stat)


def _goes_on(stat: Path) -> bool:
    with contextlib.suppress(OSError):
        return " Z " not in stat.read_text()
    return False


def test_the_output_of_a_command_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_BYTES_MAX", 1000)
    with pytest.raises(UnavailableError, match="printed more than 1000 bytes"):
        printed(tmp_path, "seq 100000")


def asked(tmp_path: Path, lines: str, timeout_s: float = LIMIT_S) -> Look:
    """A look at a database, whose program prints these lines of a shell script."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    source = SqlSource(
        Trigger(kind="sql", name="s", timeout_s=timeout_s), lambda _trigger, rows: ([str(path)], b"%d rows\n" % rows)
    )
    return trio.run(source.look)


def test_each_row_of_a_query_is_one_arrival_with_its_columns(tmp_path: Path) -> None:
    rows = [
        '{"key": "7", "fields": {"id": 7, "what": "a b"}}',
        '{"key": "7", "fields": {}}',
        '{"key": "", "fields": {}}',
    ]
    look = asked(tmp_path, "cat >&2; " + "; ".join([f"echo '{row}'" for row in rows]))
    assert [(one.key, one.values) for one in look.arrivals] == [("7", {"key": "7", "body.id": "7", "body.what": "a b"})]
    assert look.refused == [("", "an id must not be empty")]
    with pytest.raises(UnavailableError, match=f"the query ended with 1: {module.IDS_MAX} rows"):
        asked(tmp_path, "cat >&2; exit 1")
    with pytest.raises(UnavailableError, match="the database did not answer within"):
        asked(tmp_path, "sleep 1000", timeout_s=0.2)


def test_of_a_query_with_too_much_whole_rows_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = '{"key": "%d", "fields": {}}'
    monkeypatch.setattr(module, "OUTPUT_BYTES_MAX", 3 * len(row % 1) + 5)
    look = asked(tmp_path, "; ".join([f"echo '{row % number}'" for number in range(5)]))
    assert [one.key for one in look.arrivals] == ["0", "1", "2"]
    assert look.problem == f"its rows have more than {module.OUTPUT_BYTES_MAX} bytes: the others wait"


def test_a_row_without_an_id_is_refused_and_the_others_are_taken(tmp_path: Path) -> None:
    rows = ['{"key": null, "fields": {"what": "a"}}', '{"key": "7", "fields": {}}', '{"key": null, "fields": {}}']
    look = asked(tmp_path, "; ".join([f"echo '{row}'" for row in rows]))
    assert [one.key for one in look.arrivals] == ["7"]
    assert look.refused == [("NULL", "expected an id in the first column of each row, found NULL")]


def test_what_a_program_says_of_its_failure_has_no_secret(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"://u:\*\*\*@h/db is closed") as failed:
        asked(tmp_path, "echo postgresql://u:s3cret@h/db is closed >&2; exit 1")
    assert "s3cret" not in str(failed.value)


def test_files_whose_runs_the_ledger_may_have_forgotten_are_not_taken() -> None:
    now = time.time_ns()
    old = now - 40 * 86_400 * 10**9
    found = [Found("/in/new", 1, now, now), Found("/in/moved", 1, old, now), Found("/in/old", 1, old, old)]

    def files(pattern: str) -> Listing:
        assert pattern == "/in/*"
        return Listing(list(found), [], more=True)

    async def two_looks() -> tuple[Look, Look]:
        source = FileSource(Trigger(kind="file", name="f", path="/in/*", settle_s=0.0), files, lambda: 30 * 86_400.0)
        return await source.look(), await source.look()

    one, two = trio.run(two_looks)
    assert (one.arrivals, one.soon) == ([], True)
    assert sorted(arrival.values["path"] for arrival in two.arrivals) == ["/in/moved", "/in/new"]
    assert [path for path, _ in two.refused] == ["/in/old"]
    assert "more entries than one look reads" in two.problem


def test_files_are_judged_in_the_thread_and_only_what_the_taker_does_not_know_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200,000 files would hold the daemon's loop for seconds."""
    now = time.time_ns()
    found = {name: Found(f"/in/{name}", 1, now, now) for name in "abcde"}
    judged_in: set[int] = set()

    class Watching(Looks):
        def look(self, found: Iterable[Found], now: float) -> list[Found]:
            judged_in.add(threading.get_ident())
            return super().look(found, now)

    monkeypatch.setattr(sources, "Looks", Watching)
    monkeypatch.setattr(sources, "HANDED_MAX", 2)

    async def looks() -> list[Look]:
        trigger = Trigger(kind="file", name="f", path="/in/*", settle_s=0.0)
        source = FileSource(trigger, lambda _: Listing(list(found.values()), [], more=False), lambda: 30 * 86_400.0)
        await source.look()
        keys = {one.path: one.key for one in found.values()}
        source.known = Known(({keys["/in/a"]}, {keys["/in/b"]: "why"}), {keys["/in/a"], keys["/in/b"], "gone"})
        first = await source.look()
        source.known = None
        return [first, await source.look()]

    some, every = trio.run(looks)
    assert ([one.values["name"] for one in some.arrivals], some.behind, some.gone) == (["c", "d"], 1, {"gone"})
    assert ([one.values["name"] for one in every.arrivals], every.behind, every.gone) == (list("abcde"), 0, None)
    assert threading.get_ident() not in judged_in


def test_a_file_system_that_hangs_is_a_problem_and_holds_up_only_its_own_trigger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "LOOK_S", 0.1)
    calls: list[str] = []

    def files(pattern: str) -> Listing:
        calls.append(pattern)
        time.sleep(0.5)
        return Listing([], [], more=False)

    async def looks() -> None:
        source = FileSource(Trigger(kind="file", name="f", path="/in/*"), files, lambda: 1e9)
        for _ in range(3):
            with pytest.raises(UnavailableError, match=r"did not answer within 0.1 s"):
                await source.look()

    trio.run(looks)
    assert len(calls) == 1, "no further thread begins while one hangs"
