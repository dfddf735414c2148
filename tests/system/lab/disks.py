"""A file system so small that it can be filled."""

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
    """One megabyte, at ``path`` or in a place of its own. It needs root, as the machine has that runs these tests."""
    made = path or Path(tempfile.mkdtemp(prefix="cd-disk-"))
    made.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", str(made)], check=True)
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(made)], check=True)  # a failed test may hold files open
        made.rmdir()


def fill(disk: Path) -> Path:
    """Leave no byte free, and no file's name either; returns the file to remove when there is to be room again."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        for piece in (64 * 1024, 1024, 1):
            with pytest.raises(OSError, match="No space left"):
                while True:
                    os.write(file.fileno(), b"x" * piece)
    return ballast
