"""Directories of clusters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that does not exist yet; its path is short, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="dev-", dir="/tmp") as parent:
        yield Path(parent) / "d"
