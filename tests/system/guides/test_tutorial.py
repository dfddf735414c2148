"""docs/tutorial.md, line by line, in a fresh directory, as a user without any rights; and the reader of such pages."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from system.guides.transcript import Shell, Step, agrees, steps
from system.lab.ordinary import NOBODY, as_user
from system.lab.processes import ROOT, kill_at_once, processes, until

TUTORIAL = ROOT / "docs" / "tutorial.md"

# The number of its commands: fewer mean that this test reads the page wrongly.
COMMANDS_MIN = 25
MINUTES_MAX = 5


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A directory of a user without rights. Whatever a test leaves there is ended and removed."""
    where = Path(tempfile.mkdtemp(prefix="tutorial-", dir="/tmp"))  # short, for the sockets
    os.chown(where, NOBODY, NOBODY)
    yield where
    kill_at_once(lambda: processes([f"{where}/"]))
    shutil.rmtree(where)


def test_the_tutorial_line_by_line(fresh: Path) -> None:
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    with Shell(as_user(), fresh, {"PATH": path, "HOME": str(fresh), "LANG": "C.UTF-8"}) as shell:
        count = shell.follow(TUTORIAL.read_text())

    assert count >= COMMANDS_MIN
    # A run outlives its daemons: one that began as they ended still does its work.
    try:
        until(lambda: not processes([f"{fresh}/"]), why="the tutorial leaves nothing that runs")
    except AssertionError as exc:
        for pid in processes([f"{fresh}/"]):
            with suppress(OSError):
                exc.add_note(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        raise


def test_the_pauses_of_the_tutorial_fit_into_five_minutes() -> None:
    words = [step.command.split() for step in steps(TUTORIAL.read_text())]
    pauses = [int(command[1]) for command in words if command[0] == "sleep"]

    assert sum(pauses) < MINUTES_MAX * 60 / 5


# ---- the reader


def test_a_page_is_read_as_it_is_typed() -> None:
    page = "Text.\n\n```console\n$ cat <<END\n> a\n>\n> END\na\n\n$ true\n```\n\n```\n$ not this\n```\n"

    assert list(steps(page)) == [Step(4, "cat <<END\na\n\nEND", ("a", "")), Step(10, "true", ())]


@pytest.mark.parametrize(
    ("shown", "found", "same"),
    [
        ("a  b", "a b\n", True),
        ("a …", "a b c\n", True),
        ("a …", "b\n", False),
        ("a\n…\nz", "a\nb\nc\nz\n", True),
        ("a\n…", "a\n", True),
        ("a\n…\nz", "a\nb\n", False),
        ("a", "a\nb\n", False),
        ("", "a\n", False),
        ("a", "bash: line 7:  4711 Killed      coordd run\na\n", True),
    ],
)
def test_what_is_seen_is_compared_with_what_is_shown(shown: str, found: str, *, same: bool) -> None:
    assert agrees(shown.splitlines(), found) is same


@pytest.mark.parametrize("command", ["false", "echo two"])
def test_a_page_that_does_not_tell_the_truth_fails(tmp_path: Path, command: str) -> None:
    page = f"```console\n$ x=1\n$ {command}\none\n```\n"
    with Shell([], tmp_path, {"PATH": "/usr/bin:/bin"}) as shell, pytest.raises(AssertionError, match="line 3"):
        shell.follow(page)
