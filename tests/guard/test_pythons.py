"""The file in each Python of this machine: drivers of old Sparks have old ones."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordd import guard
from guard.conftest import Begin
from guard.test_publish import content, directory

VERSIONS = [f"3.{minor}" for minor in range(8, 16)]

PROGRAM = """
import guard, logging, sys
logging.basicConfig(level=logging.INFO)
print(guard.still_owner(), guard.publish(*sys.argv[1:])[0].how, guard.transact(lambda of: of.app_id))
"""


def interpreters() -> dict[str, str]:
    """By version: those in the PATH, and those of pyenv."""
    found = {version: path for version in VERSIONS if (path := shutil.which(f"python{version}"))}
    for version in VERSIONS:
        for path in glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")):
            found[version] = path  # rather than pyenv's shim, which may refuse
    return {**found, f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}


@pytest.mark.parametrize("version", interpreters())
def test_it_works_in_every_python_of_this_machine(version: str, begin: Begin, tmp_path: Path) -> None:
    begin()
    shutil.copy(guard.__file__, tmp_path / "guard.py")
    target = directory(tmp_path / "sales", old="old")
    staged = directory(tmp_path / "staged", part="new")
    command = [interpreters()[version], "-c", PROGRAM, str(staged), str(target)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert done.stdout.split() == ["True", "now", "coordd:sales@2026-11-23T02:00:00Z"], done.stderr
    assert content(target) == {"part": "new"}
