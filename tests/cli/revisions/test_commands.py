"""`coordctl config`, before a daemon that answers as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.fake_daemon import STATUS, FakeDaemon, refusal

from coordd.cli.revisions import commands

MADE = {"number": 4, "digest": "d" * 64, "jobs": 2, "added": ["a"], "removed": [], "changed": [], "in_force": 3}
LISTED = {
    "number": 4, "state": "waiting", "at": "2026-11-23T02:00:00Z", "by": "ann", "uid": 7, "note": "why", "jobs": 2,
    "digest": "d" * 64, "waits": ["n2 cannot use it: no pool"],
}  # fmt: skip

Ctl = Callable[..., Result]


@pytest.fixture
def directory_of_jobs(tmp_path: Path) -> str:
    (tmp_path / "a.toml").write_text("[command]\n")
    (tmp_path / "b.toml").write_text("# é\n")
    (tmp_path / ".c.toml").write_text("x")
    (tmp_path / "readme.md").write_text("x")
    return str(tmp_path)


def test_publish_sends_the_job_files_and_waits(ctl: Ctl, daemon: FakeDaemon, directory_of_jobs: str) -> None:
    asked: list[dict[str, Any]] = []
    states, taken = iter(["waiting", "in force", "in force"]), iter([3, 3, 4])

    def made(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return MADE

    daemon.answers["config.publish"] = made
    daemon.answers["status"] = lambda _: {**STATUS, "jobs_from": {"revision": next(taken)}}
    daemon.answers["config.list"] = lambda _: [{**LISTED, "state": next(states)}]

    done = ctl("config", "publish", directory_of_jobs, "--note", "why")

    assert (done.exit_code, done.stdout) == (0, "revision 4\n")
    assert done.stderr == "revision 4 is published: 2 jobs (1 added)\nrevision 4 is in force\n"
    assert asked == [{"files": {"a": "[command]\n", "b": "# é\n"}, "note": "why"}]


def test_a_revision_that_does_not_come_into_force_is_named_with_its_reasons(
    ctl: Ctl, daemon: FakeDaemon, directory_of_jobs: str
) -> None:
    daemon.answers |= {"config.publish": MADE, "config.list": [LISTED], "status": STATUS}

    done = ctl("config", "publish", directory_of_jobs, "--wait", "1s")

    assert done.exit_code == 124
    assert "revision 4 is not in force after 1 s: n2 cannot use it: no pool" in done.stderr
    assert "coordctl config rollback" in done.stderr


def test_a_revision_that_was_overtaken(ctl: Ctl, daemon: FakeDaemon, directory_of_jobs: str) -> None:
    daemon.answers |= {"config.publish": MADE, "config.list": [{**LISTED, "state": "earlier"}], "status": STATUS}

    done = ctl("config", "publish", directory_of_jobs)

    assert done.exit_code == 1
    assert "revision 4 is earlier: another came after it" in done.stderr


def test_a_directory_without_job_files_is_refused(ctl: Ctl, daemon: FakeDaemon, tmp_path: Path) -> None:
    done = ctl("config", "publish", str(tmp_path))

    assert done.exit_code == 65
    assert "expected job files (*.toml), found none" in done.stderr
    assert daemon.asked == []


def test_more_than_a_call_takes_is_refused(
    ctl: Ctl, daemon: FakeDaemon, directory_of_jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "BYTES_MAX", 12)

    done = ctl("config", "publish", directory_of_jobs)

    assert done.exit_code == 1
    assert "expected at most 12 bytes of job files, found more" in done.stderr
    assert daemon.asked == []


def test_a_file_that_is_not_text_is_refused(ctl: Ctl, directory_of_jobs: str) -> None:
    (Path(directory_of_jobs) / "a.toml").write_bytes(b"\xff")

    assert ctl("config", "publish", directory_of_jobs).exit_code == 65


def test_rollback_list_and_show(ctl: Ctl, daemon: FakeDaemon) -> None:
    daemon.answers |= {
        "config.rollback": MADE,
        "config.list": [LISTED],
        "config.show": {**LISTED, "files": {"a": "x = 1\n\x1b[31m"}},
    }

    assert ctl("config", "rollback", "2", "--no-wait").stdout == "revision 4\n"
    assert json.loads(ctl("config", "list", "--output", "json").stdout) == [LISTED]
    table = ctl("config", "list").stdout
    assert "WAITS FOR" in table
    assert "n2 cannot use it: no pool" in table
    shown = ctl("config", "show", "4")
    assert shown.stdout == "# ---- a.toml\nx = 1\n\\x1b[31m\n"
    assert "revision 4, waiting, published by ann at 2026-11-23T02:00:00Z" in shown.stderr
    daemon.answers["config.list"] = []
    assert "coordctl config publish DIRECTORY" in ctl("config", "list").stderr
    daemon.answers["config.rollback"] = refusal("not_published")
    assert ctl("config", "rollback").exit_code == 1
