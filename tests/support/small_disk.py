"""File systems of a few kilobytes that tests can fill. They need root, which the test machine has."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(options: str) -> Iterator[Path]:
    """Mount a small disk until the end of the block."""
    path = Path(tempfile.mkdtemp(prefix="coordd-disk-"))  # not where pytest cleans up: the mount would make that fail
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)  # a failed test may leave files open
        path.rmdir()
