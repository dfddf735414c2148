"""A file system that is small enough for a test to fill it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path | None = None) -> Iterator[Path]:
    """A file system of one megabyte, at ``path`` or in a new directory. The mount needs root; these tests have it."""
    made = path or Path(tempfile.mkdtemp(prefix="cd-disk-"))
    made.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", str(made)], check=True)
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(made)], check=True)  # a failed test may hold files open
        made.rmdir()


def fill(disk: Path) -> Path:
    """Fill the disk: no byte is free, not even for a new file name. Returns the file to remove to make room again."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        for piece in (64 * 1024, 1024, 1):
            with pytest.raises(OSError, match="No space left"):
                while True:
                    os.write(file.fileno(), b"x" * piece)
    return ballast
