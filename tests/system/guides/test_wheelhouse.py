"""`make wheelhouse`: what it builds, and the command that it prints, install coordd without any network."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

from coordd import __version__
from system.lab.processes import ROOT

# Only the build of the wheelhouse may use the network.
OFFLINE = ("unshare", "--net")


def run(*command: str | Path, place: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=place, env={**environment, **variables}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_environment_without_a_network_gets_both_programs(tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "packages", "wheelhouse", place=ROOT, PYTHONPATH=f"{ROOT}:{ROOT}/deploy")
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv/bin"

    _, _, command = said.partition(": ")
    _, *words = shlex.split(command)
    # The machine's own settings of pip may name another folder of wheels.
    run(*OFFLINE, programs / "pip", "--isolated", *words, place=tmp_path, PIP_CONFIG_FILE=os.devnull)

    assert run(*OFFLINE, programs / "coordd", "--version", place=tmp_path) == f"coordd {__version__}\n"
    assert "Usage: coordctl" in run(*OFFLINE, programs / "coordctl", "--help", place=tmp_path)
    found = run(programs / "python", "-c", "import coordd, uvloop; print(coordd.__file__)", place=tmp_path)
    assert Path(found.strip()).is_relative_to(tmp_path)
