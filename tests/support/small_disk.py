"""File systems of a few kilobytes, to fill. They need root, as the machine has that runs these tests."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(options: str) -> Iterator[Path]:
    """Mount one, for as long as the block lasts."""
    path = Path(tempfile.mkdtemp(prefix="coordd-disk-"))  # not where pytest cleans up: a mount would stop it
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # a failed test may hold files open
        path.rmdir()
