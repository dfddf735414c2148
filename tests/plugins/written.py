"""Packages with plug-ins: those of deploy/plugins, installed by pip, and bad ones that a test writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "deploy/plugins"


def installed(tmp_path: Path, *kinds: str) -> Path:
    """Install the examples of these kinds; returns the folder for PYTHONPATH."""
    sources, target = [tmp_path / f"source-{kind}" for kind in kinds], tmp_path / "site"
    for kind, source in zip(kinds, sources, strict=True):
        shutil.copytree(EXAMPLES / kind, source)  # the build writes into it
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    argv += ["--disable-pip-version-check", "--target", str(target), *map(str, sources)]
    subprocess.run(argv, check=True, timeout=300)
    return target


# The program of plug-ins, with a folder of them as its first argument.
HOST = "import sys; sys.path.insert(0, sys.argv.pop(1)); from coordd.plugins.host import main; main()"


def hosting(folder: Path) -> list[str]:
    """The program that runs the plug-ins of this folder."""
    return [sys.executable, "-c", HOST, str(folder)]


# Two bad ones that each package has; its own of these names take their places.
HOGS = """
def loops(of):
    while True:
        pass

def leaks(of):
    kept = []
    while True:
        kept.append(bytearray(2**26))
"""


def written(folder: Path, group: str, text: str, *names: str, requires: str = "") -> Path:
    """A package ``bad`` whose module has these functions, and HOGS, as plug-ins. ``requires``: a package that it
    needs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bad_plug_ins.py").write_text(HOGS + text)
    about = folder / "bad-0.7.dist-info"
    about.mkdir()
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bad\nVersion: 0.7\n{needs}")
    points = [f"{name} = bad_plug_ins:{name}" for name in names]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))
    return folder


def environ(*folders: Path) -> dict[str, str]:
    """The environment of a program that shall find them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
