"""A publisher dies, or is frozen, before each step that touches a file, a lock or the socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordd import guard
from guard.conftest import Begin
from guard.fake_runner import FakeRow
from guard.test_publish import beside, content, directory

ROOT = Path(guard.__file__).parents[1]
KINDS = ("file", "directory", "new directory")

PUBLISHER = """
import json, os, signal, sys
root, step, number, staged, target = sys.argv[1:]
sys.path.insert(0, root)
from coordd import guard

STEPS = {
    "open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.listdir", "shutil.rmtree", "ctypes.dlsym",
    "fcntl.flock", "socket.connect",
}
seen = 0

def look(event, _arguments):
    global seen
    if event in STEPS:
        seen += 1
        if seen == int(step):
            os.kill(os.getpid(), int(number))

sys.addaudithook(look)
try:
    said = guard.publish(staged, target, timeout_s=5)[0].how
except guard.GuardError as exc:
    said = type(exc).__name__
print(json.dumps([said, seen]))
"""


def make(path: Path, kind: str, text: str) -> None:
    if kind == "file":
        path.write_text(text)
    else:
        directory(path, part=text)


def text_of(path: Path) -> str:
    return path.read_text() if path.is_file() else content(path).get("part", "")


def prepared(folder: Path, kind: str) -> Path:
    """A target with old content, and the output of the attempt of this moment."""
    folder.mkdir()
    target = folder / "sales"
    if kind != "new directory":
        make(target, kind, "old")
    return target


@contextlib.contextmanager
def publisher(step: int, number: int, staged: str, target: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [str(ROOT), str(step), str(number), staged, str(target)]
    command = [sys.executable, "-I", "-S", "-c", PUBLISHER, *arguments]
    with subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def publish_here(target: Path, kind: str, text: str) -> str:
    """Publish as the attempt of this moment; returns how, or the error's class."""
    staged = guard.staging(str(target))
    if not os.path.lexists(staged):  # a publication that was refused leaves it there
        make(Path(staged), kind, text)
    try:
        return guard.publish(staged, str(target), timeout_s=0.3)[0].how
    except guard.GuardError as exc:
        return type(exc).__name__


def begun(place: Path, kind: str, begin: Begin, row: FakeRow) -> tuple[Path, str]:
    """A target, and the staging of token 5 with its output; nobody has committed."""
    target = prepared(place, kind)
    row.commit_token = 0
    begin(5)
    staged = guard.staging(str(target))
    make(Path(staged), kind, "5")
    return target, staged


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", ["the same attempt", "the next attempt"])
def test_it_dies_before_any_step_and_another_finishes(
    after: str, kind: str, begin: Begin, row: FakeRow, tmp_path: Path
) -> None:
    died = step = 0
    while died == step:
        step += 1
        target, staged = begun(tmp_path / str(step), kind, begin, row)
        with publisher(step, signal.SIGKILL, staged, target) as process:
            process.wait()
        died += process.returncode == -signal.SIGKILL
        assert text_of(target) in (("5", "old") if target.exists() and kind != "new directory" else ("5", ""))
        if after == "the same attempt":
            guard.publish(staged, str(target))
            assert text_of(target) == "5"
        else:
            begin(6, attempt=1)
            how = publish_here(target, kind, "6")
            assert (how == "now") == (row.commit_token == 6), how
            assert text_of(target) == str(row.commit_token), f"step {step}: {how}"
        assert beside(target) == ["lock", "published.json"]
    assert died >= 15, "the steps were seen"


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_frozen_before_any_step_and_thaws_after_a_takeover(
    kind: str, begin: Begin, row: FakeRow, tmp_path: Path
) -> None:
    froze = step = 0
    refused = 0
    while froze == step:
        step += 1
        target, staged = begun(tmp_path / str(step), kind, begin, row)
        with publisher(step, signal.SIGSTOP, staged, target) as process:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            froze += 1
            begin(6, attempt=1)
            how = publish_here(target, kind, "6")
            process.send_signal(signal.SIGCONT)
            said, _ = json.loads(process.communicate()[0])
        if how == "NotPublishableError":  # the frozen one held the lock
            how = publish_here(target, kind, "6")
        assert text_of(target) == str(row.commit_token), f"step {step}: {how}, {said}"
        assert (said in ("now", "before")) == (row.commit_token == 5), f"step {step}: {said}"
        refused += said in ("LeaseLostError", "SupersededError")
    assert froze >= 15, "the steps were seen"
    assert refused >= 5
