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


def written(folder: Path, group: str, text: str, *names: str) -> Path:
    """A package ``bad`` whose module has these functions (those of ``text``, if none is named) as plug-ins."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bad_plug_ins.py").write_text(text)
    about = folder / "bad-0.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 0.7\n")
    points = [f"{name} = bad_plug_ins:{name}" for name in names]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))
    return folder


def environ(*folders: Path) -> dict[str, str]:
    """The environment of a program that shall find them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
