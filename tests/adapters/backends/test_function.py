"""A site's function is asked in a process of its own: whatever it does, the daemon gets tables or a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.lab.processes import until

from coordd.adapters.backends import function
from coordd.errors import UnavailableError

JOB = {"schedule": "every 1h", "command": {"argv": ["/bin/true"]}}


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "site_jobs.py"


def ask(site: Path, body: str, timeout_s: float = 20.0) -> object:
    site.write_text(f"def jobs():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
    return function.ask("site_jobs:jobs", timeout_s)


def test_tables_and_texts(site: Path) -> None:
    body = f'print("noise")\nreturn {{"sales": {JOB!r}, "stock": "[command]"}}'

    assert ask(site, body) == {"sales": JOB, "stock": "[command]"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('raise KeyError("db")', "it failed: KeyError: 'db'"),
        ("import sys; sys.exit(3)", r"it called exit\(3\)"),
        ("import os; os._exit(7)", r"ended its process without an answer \(exit code 7\)"),
        ("import os; os.kill(os.getpid(), 9)", r"ended its process without an answer \(exit code -9\)"),
        ("kept = [bytearray(2**26) for _ in range(64)]", "it failed: MemoryError"),
        ("return [1]", r"expected a dict of job tables .* found list: \[1\]"),
        ('return {"sales": 5}', "at 'sales' found 5"),
        ("return {5: {}}", r"at 5 found \{\}"),
        ('return {"sales": {"x": {1, 2}}}', "expected tables of texts, numbers"),
        ('return {"sales": "x" * 2**26}', "expected at most 33554432 bytes"),
    ],
)
def test_anything_else_is_a_sentence(site: Path, body: str, says: str) -> None:
    with pytest.raises(UnavailableError, match=f"site_jobs:jobs: .*{says}"):
        ask(site, body)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:jobs", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("site_jobs:other", "AttributeError: .*other"),
        (function.target_of("coordd.config_backends", "none"), "no installed package brings none"),
    ],
)
def test_what_is_not_there_is_named(site: Path, target: str, says: str) -> None:
    site.write_text("x = 1\n")
    with pytest.raises(UnavailableError, match=says):
        function.ask(target, 20.0)


def test_a_function_that_does_not_end_is_killed_with_its_children(site: Path, tmp_path: Path) -> None:
    """The child holds the pipe of the answer too."""
    body = f"""
        import os, time
        pid = os.fork()
        if pid == 0:
            open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
        while True:
            time.sleep(1)
    """
    with pytest.raises(UnavailableError, match=r"no answer within 3 s; repair it, or raise \[jobs\] timeout"):
        ask(site, body, 3.0)
    child = (tmp_path / "child").read_text()
    until(lambda: is_gone(child), why="the child is killed")


def is_gone(pid: str) -> bool:
    """True if the process is no more, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_entry_point_is_asked_by_its_name(tmp_path: Path, site: Path) -> None:
    site.write_text(f"def jobs():\n    return {{'sales': {JOB!r}}}\n")
    package = tmp_path / "site_jobs-2.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: site-jobs\nVersion: 2.1\n")
    (package / "entry_points.txt").write_text("[coordd.config_backends]\nsite = site_jobs:jobs\n")

    assert function.ask(function.target_of("coordd.config_backends", "site"), 20.0) == {"sales": JOB}


STRAY = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        open({pid!r}, "w").write(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not os.path.exists({pid!r}) or not open({pid!r}).read():
        time.sleep(0.01)
"""


@pytest.fixture
def stray(tmp_path: Path) -> Iterator[str]:
    """The beginning of a function that leaves a process in a session of its own, which holds the pipe."""
    pid = tmp_path / "stray"
    yield STRAY.format(pid=str(pid))
    os.kill(int(pid.read_text()), signal.SIGKILL)


def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting without a deadline fails, instead of hanging."""
    communicate = subprocess.Popen.communicate

    def bounded(self: subprocess.Popen[bytes], data: None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        assert timeout is not None, "it waits without a deadline"
        return communicate(self, data, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", bounded)


def test_a_process_that_the_function_left_does_not_hold_up_the_answer(site: Path, stray: str) -> None:
    assert ask(site, stray + f"    return {{'sales': {JOB!r}}}\n", 20.0) == {"sales": JOB}


def test_nor_the_end_of_a_function_that_hangs(site: Path, stray: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch)
    with pytest.raises(UnavailableError, match="no answer within 3 s"):
        ask(site, stray + "    time.sleep(60)\n", 3.0)
