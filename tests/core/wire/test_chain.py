"""The chain of audit records: every change of the journal is found, and so is its place."""

from __future__ import annotations

from typing import Any

import pytest

from coordd.core.wire.chain import Checked, Checker, Head, Line, chained, head_after, link
from coordd.core.wire.journal_line import encode_line


def journal(count: int, *, per_file: int = 4) -> tuple[list[Line], Head]:
    """Audit records between other lines, in several segments."""
    head: Head | None = None
    made: list[bytes] = []
    for number in range(1, count + 1):
        made.append(encode_line({"type": "task-sent", "run": f'a"type":"control" {number}'}))
        record = chained({"type": "control", "timestamp": float(number), "method": "run.cancel"}, head)
        made.append(encode_line(record))
        head = Head(number, link(made[-1]), float(number))
    assert head is not None
    lines = [Line(f"{at // per_file}.jsonl", at % per_file + 1, data) for at, data in enumerate(made)]
    return lines, head


def checked(lines: list[Line], head: Head | None, *, oldest: float = 0.0, **asked: Any) -> Checked:
    checker = Checker(**asked)
    for line in lines:
        checker.take(line)
    return checker.finish(head, "audit.json", oldest=oldest)


def test_what_was_written_is_intact_and_all_there() -> None:
    lines, head = journal(9)
    found = checked(lines, head)
    assert (found.breaks, found.total, found.first) == ([], 9, 1)
    assert [record["n"] for record in found.records] == list(range(1, 10))


def test_records_are_those_since_an_instant_and_the_newest() -> None:
    lines, head = journal(9)
    assert [record["n"] for record in checked(lines, head, since=4.0).records] == [4, 5, 6, 7, 8, 9]
    assert [record["n"] for record in checked(lines, head, since=4.0, limit=2).records] == [8, 9]


@pytest.mark.parametrize("at", range(9))
def test_an_edited_record_is_named_with_its_place(at: int) -> None:
    lines, head = journal(9)
    place = 2 * at + 1
    old = lines[place]
    text = old.data.replace(b"run.cancel", b"run.revoke")
    torn = [*lines[:place], old._replace(data=text), *lines[place + 1 :]]
    assert (torn[place].file, torn[place].number) in {(b.file, b.line) for b in checked(torn, head).breaks}
    record = {"type": "control", "timestamp": at + 1.0, "method": "run.revoke", "n": at + 1}
    prev = "" if at == 0 else link(lines[place - 2].data)
    made = [*lines[:place], old._replace(data=encode_line({**record, "prev": prev})), *lines[place + 1 :]]
    breaks = checked(made, head).breaks  # the changed record has a correct checksum of its own
    assert [(b.file, b.line) for b in breaks] == [(old.file, old.number)]
    assert "not what was written" in breaks[0].problem


@pytest.mark.parametrize("at", range(1, 8))
def test_a_removed_record_is_missed_by_the_next_one(at: int) -> None:
    lines, head = journal(9)
    breaks = checked([*lines[: 2 * at + 1], *lines[2 * at + 2 :]], head).breaks
    after = lines[2 * at + 3]
    assert [(b.file, b.line) for b in breaks] == [(after.file, after.number)]
    assert f"number {at + 1} are missing" in breaks[0].problem


def test_several_removed_records_are_told_as_a_range() -> None:
    lines, head = journal(9)
    assert "number 3 to 6 are missing" in checked([*lines[:4], *lines[12:]], head).breaks[0].problem


def test_records_that_changed_places_are_named() -> None:
    lines, head = journal(9)
    lines[5], lines[9] = lines[9]._replace(file="swapped", number=1), lines[5]._replace(file="swapped", number=2)
    assert {b.file for b in checked(lines, head).breaks} & {"swapped"}


def test_a_record_that_was_put_in_is_named() -> None:
    lines, head = journal(9)
    twice = [*lines[:6], lines[3]._replace(file="twice", number=7), *lines[6:]]
    assert checked(twice, head).breaks[0].file == "twice"
    bare = Line("bare", 1, encode_line({"type": "control", "timestamp": 1.0, "method": "x"}))
    assert checked([*lines[:6], bare, *lines[6:]], head).breaks[0].file == "bare"
    assert checked([bare, *lines], head).breaks == []  # before the first record of the chain: from an older version


@pytest.mark.parametrize("kept", range(1, 9))
def test_what_was_cut_from_the_end_is_missed_by_the_head(kept: int) -> None:
    lines, head = journal(9)
    breaks = checked(lines[: 2 * kept], head).breaks
    assert [b.problem for b in breaks] == [f"after number {kept} the records up to number 9 are missing"]
    assert (breaks[0].file, breaks[0].line) == (lines[2 * kept - 1].file, lines[2 * kept - 1].number)


def test_all_of_it_cut_is_missed_unless_retention_may_have_been_it() -> None:
    _, head = journal(9)
    assert "number 9 was written" in checked([], head).breaks[0].problem
    assert checked([], head, oldest=10.0).breaks == []
    assert checked([], None).breaks == []


def test_old_segments_that_retention_removed_are_no_break() -> None:
    lines, head = journal(9)
    found = checked(lines[8:], head)
    assert (found.breaks, found.first, found.total) == ([], 5, 5)


def test_a_head_that_is_gone_or_older_is_told() -> None:
    lines, head = journal(9)
    assert checked(lines, None).breaks[0].file == "audit.json"
    older = Head(4, link(lines[7].data), 4.0)
    assert "went back" in checked(lines, older).breaks[0].problem
    assert checked(lines, head._replace(hash="0" * 32)).breaks


def test_a_crash_between_record_and_head_is_no_break_and_the_chain_goes_on_from_the_record() -> None:
    lines, head = journal(9)
    before = Head(8, link(lines[15].data), 8.0)
    assert checked(lines, before).breaks == []
    assert head_after(lines, before) == head
    assert head_after(lines, None) == head
    assert head_after(lines[:16], head) == head
