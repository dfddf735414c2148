"""Commands of packages in coordctl and coordd: good ones, and those that raise, end the program or hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plugins.written import environ, written
from support.fake_daemon import CTL, DAEMON

COMMANDS = """
import click

@click.command(short_help="greets")
@click.argument("whom")
def greet(whom):
    click.echo(f"hello {whom}")

@click.group()
def many(): pass

@many.command("one")
def one():
    raise click.UsageError("not so")

@click.command()
def raises():
    raise ValueError("it is Friday")

@click.command()
def status():
    click.echo("not ours")

number = 7
"""


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return written(tmp_path / "bad", "coordd.commands", COMMANDS, "greet", "many", "raises", "number", "gone", "status")


def call(folder: Path, *arguments: str, program: list[str] = CTL, limit_s: float = 60.0) -> tuple[int, str, str]:
    argv = [*program, *arguments]
    done = subprocess.run(argv, env=environ(folder), capture_output=True, text=True, check=False, timeout=limit_s)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", [CTL, DAEMON])
def test_a_command_of_a_package_is_a_command(bad: Path, program: list[str]) -> None:
    assert call(bad, "greet", "ann", program=program)[:2] == (0, "hello ann\n")
    code, out, _ = call(bad, "--help", program=program)
    assert code == 0
    assert "greet" in out
    assert "A plug-in: bad 0.7." in out
    assert call(bad, "greet", program=program)[0] == 2
    assert "not so" in call(bad, "many", "one", program=program)[2]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("raises", "the plug-in raises of bad 0.7 failed: ValueError: it is Friday"),
        ("gone", "the plug-in gone of bad 0.7 cannot be loaded: AttributeError: module 'bad_plug_ins' has no"),
        ("number", "the plug-in number of bad 0.7: expected a command of click, found int"),
    ],
)
def test_a_bad_one_is_named_and_fails_alone(bad: Path, name: str, sentence: str) -> None:
    code, out, err = call(bad, name)
    assert (code, out) == (1, "")
    assert err.startswith(f"coordctl: {sentence}")
    assert "Traceback" not in err


def test_a_command_of_coordd_itself_comes_first_and_groups_have_their_own_alone(bad: Path) -> None:
    assert "not ours" not in call(bad, "status", "--socket", "/nowhere")[1]
    assert call(bad, "breaker", "greet", "ann")[0] == 2
    assert "greet" not in call(bad, "breaker", "--help")[1]


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)", "while True: pass", "x = ["])
def test_one_that_spoils_its_import_spoils_no_other_command(tmp_path: Path, text: str) -> None:
    folder = written(tmp_path / "bad", "coordd.commands", text, "spoilt")
    code, out, _ = call(folder, "--help")
    assert (code, "spoilt" in out) == (0, True)
    if "while" not in text:
        code, _, err = call(folder, "spoilt")
        assert code == 1
        assert "the plug-in spoilt of bad 0.7 cannot be loaded: " in err


def test_the_usual_commands_search_no_package() -> None:
    program = "import sys, coordd.cli.coordctl; sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_one_for_another_version_of_coordd_is_not_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "bad", "coordd.commands", COMMANDS, "greet", requires="coordd>=99")
    code, out, err = call(folder, "greet", "ann")
    assert (code, out) == (1, "")
    assert "the plug-in greet of bad 0.7 is not run: bad 0.7 is for coordd>=99, and this is coordd" in err
