"""Wall clocks that are off: a library for LD_PRELOAD that moves CLOCK_REALTIME of one process, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "chaos" / "payload" / "skew.c"


def skew_library(directory: Path) -> Path | None:
    """Compile it into that directory. Returns None without a compiler: then wall clocks cannot be moved."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "skew.so"
    argv = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(argv, check=True, env={**os.environ, "LC_ALL": "C"})
    return library


def skewed(library: Path | None, path: Path, ahead_s: float) -> dict[str, str]:
    """The environment of a process whose wall clock is ahead by that many seconds. ``path``: the file that says so."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(f"{ahead_s}")
    fresh.rename(path)
    return {"LD_PRELOAD": str(library), "SKEW_FILE": str(path)} if library else {}
