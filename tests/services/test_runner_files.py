"""Files of earlier runners and kept triggers are read, even if they are damaged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.disk.requests import RequestFiles
from coordd.adapters.process import ProcessLauncher
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import Policy
from coordd.errors import UnavailableError

SPEC: dict[str, Any] = {
    "run": "j#1",
    "job": "j",
    "attempt": 0,
    "token": 1,
    "nonce": "n",
    "fire_at": 1.0,
    "deadline": 5.0,
    "lease_s": 60.0,
    "cgroup": "",
}
GOOD = {"fact": "started", "at": 2.0, "program": 13, "program_start_ticks": 5}
NO_FACTS = [
    "7",
    "[]",
    "{}",
    "[" * 100_000,
    '{"at": 1.0}',
    '{"fact": "ended"}',
    '{"fact": "ended", "at": "soon"}',
    '{"fact": "ended", "at": NaN}',
    '{"fact": "ended", "at": 1.0, "exit_code": true}',
    '{"fact": "ended", "at": 1.0, "exit_code": 9223372036854775808}',
    '{"fact": "started", "at": 1.0, "program": 3}',
]
NO_SPECS = [
    "7",
    "[1]",
    "{}",
    "[" * 100_000,
    json.dumps({**SPEC, "token": 2**64}),
    json.dumps({**SPEC, "run": []}),
    json.dumps({**SPEC, "deadline": float("inf")}),
    json.dumps({**SPEC, "attempt": False}),
]
REQUEST = {"run": "j#2", "job": "j", "digest": "d", "policy": Policy().pack(), "fire_at": 1.0, "args": "{}", "by": "x"}
CHANGES: list[dict[str, Any]] = [
    {"run": []},
    {"job": {}},
    {"policy": "a b"},
    {"fire_at": float("nan")},
    {"fire_at": "1e999"},
    {"args": "[]"},
    {"by": None},
]
NO_REQUESTS = ["7", "[" * 100_000, *[json.dumps({**REQUEST, **change}) for change in CHANGES]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "one"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("line", NO_FACTS, ids=range(len(NO_FACTS)))
def test_a_line_that_is_no_fact_is_left_out(tmp_path: Path, directory: Path, line: str) -> None:
    (directory / "facts").write_text(f"{line}\n{json.dumps(GOOD)}\n")
    assert ProcessLauncher(str(tmp_path)).facts(str(directory)) == [GOOD]


@pytest.mark.parametrize("text", NO_SPECS, ids=range(len(NO_SPECS)))
def test_a_spec_that_is_none_is_said_so(tmp_path: Path, directory: Path, text: str) -> None:
    launcher = ProcessLauncher(str(tmp_path))
    (directory / "spec.json").write_text(json.dumps(SPEC))
    assert launcher.spec(str(directory)) == SPEC
    (directory / "spec.json").write_text(text)
    with pytest.raises(UnavailableError, match=r"spec\.json"):
        launcher.spec(str(directory))


@pytest.mark.parametrize("text", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_a_kept_trigger_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    files = RequestFiles(str(tmp_path / "requests"))
    files.keep(Registration("j#1", "j", "d", Policy(), 1.0, scheduled=False, args='{"a": "b"}', by="root"))
    (tmp_path / "requests" / "bad.json").write_text(text)
    found, bad = files.load()
    assert [of.run for of in found] == ["j#1"]
    assert bad == [str(tmp_path / "requests" / "bad.json")]


@pytest.mark.parametrize("size", [20, 1000])
def test_a_trigger_that_a_killed_daemon_was_writing_was_never_accepted(tmp_path: Path, size: int) -> None:
    """Its caller had no answer. It would be registered, or named as bad, at every start, for ever."""
    files = RequestFiles(str(tmp_path / "requests"))
    files.keep(Registration("j#1", "j", "d", Policy(), 1.0, scheduled=False))
    (kept,) = (tmp_path / "requests").iterdir()
    kept.with_name(f"{kept.name}.new").write_bytes(kept.read_bytes()[:size])
    kept.unlink()
    assert files.load() == ([], [])
    assert list((tmp_path / "requests").iterdir()) == []


def test_a_directory_of_kept_triggers_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not end the start."""
    files = RequestFiles(str(tmp_path / "requests"))
    files.keep(Registration("j#1", "j", "d", Policy(), 1.0, scheduled=False))

    def refuse(path: str) -> list[str]:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert files.load() == ([], [str(tmp_path / "requests")])


def test_a_directory_of_no_attempt_is_cleared_away(tmp_path: Path, directory: Path) -> None:
    """A daemon that is killed while it creates or removes a directory leaves it, perhaps with a secret in it."""
    (directory / "secrets.properties").write_text("spark.password x\n")
    kept = directory.parent / "two"
    kept.mkdir()
    (kept / "spec.json").write_text(json.dumps(SPEC))
    launcher = ProcessLauncher(str(tmp_path))
    launcher.clear_away()
    assert launcher.scan() == [str(kept)]
    assert list(directory.parent.iterdir()) == [kept]


def test_a_kept_trigger_that_the_disk_does_not_let_go_of_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only disk must not end the daemon."""
    files = RequestFiles(str(tmp_path / "requests"))
    for run in ("j#1", "j#2"):
        files.keep(Registration(run, "j", "d", Policy(), 1.0, scheduled=False))

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        files.forget("j#1")
    assert len(files.load()[0]) == 2
    files.forget("j#2")
    assert files.load() == ([], [])


def test_what_could_not_be_started_leaves_no_attempt_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is free once the spec is on the disk: not even the directory can be listed."""
    launcher = ProcessLauncher(str(tmp_path), use_cgroups=False)
    real = os.open

    def refuse(path: str, *how: Any, **more: Any) -> int:
        if any((tmp_path / "runs").glob("*/spec.json")):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return real(path, *how, **more)

    spec = {**SPEC, "argv": ["/bin/true"], "env": {}, "ledger_options": {}}
    del spec["cgroup"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(UnavailableError, match="Too many open files"):
            launcher.start(spec)
    assert launcher.scan() == []
    launcher.clear_away()
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_spec_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon is killed while it writes a spec: no attempt was started, and the next daemon finds none."""
    launcher = ProcessLauncher(str(tmp_path), use_cgroups=False)

    def killed(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    spec = {**SPEC, "argv": ["/bin/true"], "env": {}, "ledger_options": {}}
    del spec["cgroup"]
    with monkeypatch.context() as patch:
        patch.setattr("coordd.adapters.process.json.dumps", killed)
        with pytest.raises(KeyboardInterrupt):
            launcher.start(spec)
    after = ProcessLauncher(str(tmp_path), use_cgroups=False)
    assert after.scan() == []
