"""Completion in a real bash: run ids have "@" and ":" in them, at which bash breaks words."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_daemon import CTL, DEADLINE_S, FakeDaemon, environment

from coordd.cli.completion.bash import kept_by_bash

BREAKS = " \t\n\"'@><=;|&(:"
RUN = "tick@2026-12-01T02:00:00Z"
LATER = "tick@2026-12-01T02:10:00Z"

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(str(tmp_path / "s"))
    daemon.answers["job.list"] = [{"name": "tick"}, {"name": "tock"}]
    daemon.answers["run.list"] = [{"id": RUN}, {"id": LATER}, {"id": "count#a1"}]
    yield daemon
    daemon.close()


def completed(line: str, tmp_path: Path, *, env: dict[str, str]) -> str:
    """The line after the Tab key at its end, in an interactive bash."""
    program = tmp_path / "coordctl"
    quoted = " ".join(f"'{part}'" for part in CTL)
    program.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    program.chmod(0o755)
    shown = tmp_path / "line"
    # ^X e runs it after the completion, where readline tells what the line has become.
    (tmp_path / "rc").write_text(
        f"PATH={tmp_path}:$PATH\n"
        'eval "$(_COORDCTL_COMPLETE=bash_source coordctl)"\n'
        f'shown() {{ printf %s "$READLINE_LINE" > {shown}; exit; }}\n'
        "bind -x '\"\\C-xe\": shown'\n"
    )
    subprocess.run(
        ["bash", "--rcfile", str(tmp_path / "rc"), "-i"],
        input=f"{line}\t\x18e",
        env={**environment(), "HOME": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return shown.read_text()


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("coordctl why cou", "coordctl why count#a1 "),
        ("coordctl why tick@", "coordctl why tick@2026-12-01T02:"),
        ("coordctl why tick@20", "coordctl why tick@2026-12-01T02:"),
        ("coordctl why tick@2026-12-01T02:", "coordctl why tick@2026-12-01T02:"),
        ("coordctl why tick@2026-12-01T02:1", f"coordctl why {LATER} "),
        ("coordctl why tick@2026-12-01T02:00", f"coordctl why {RUN} "),
        ("coordctl why 'tick@2026-12-01T02:1", f"coordctl why '{LATER}' "),
        ("coordctl run list --job to", "coordctl run list --job tock "),
        ("coordctl run list --job=to", "coordctl run list --job=tock "),
        ("coordctl job resu", "coordctl job resume "),
    ],
)
def test_the_tab_key(typed: str, becomes: str, daemon: FakeDaemon, tmp_path: Path) -> None:
    assert completed(typed, tmp_path, env={"COORDD_SOCKET": daemon.path}).rstrip() == becomes.rstrip()


def test_the_socket_that_was_typed_is_asked(daemon: FakeDaemon, tmp_path: Path) -> None:
    typed = f"coordctl --socket {daemon.path} why cou"
    assert completed(typed, tmp_path, env={}).rstrip() == f"coordctl --socket {daemon.path} why count#a1"


@pytest.mark.parametrize(
    ("line", "begun", "kept"),
    [
        ("why tick@20", "tick@20", "tick"),
        ("why tick@", "tick@", "tick"),
        ("why tick@2026-12-01T02:1", "tick@2026-12-01T02:1", "tick@2026-12-01T02:"),
        ("why tick", "tick", ""),
        ("why ", "", ""),
        ("why 'tick@20", "tick@20", ""),
        ("why tick\\@20", "tick@20", ""),
        ("list --job=a:b", "--job=a:b", "a:"),
        ("list --job=a", "--job=a", ""),
    ],
)
def test_what_bash_keeps(line: str, begun: str, kept: str) -> None:
    assert kept_by_bash(line, begun, BREAKS) == kept
