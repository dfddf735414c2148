"""The processes of an attempt, if some of them cannot be seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordd.runner.tree import Tree


def test_a_cgroup_that_cannot_be_read_does_not_count_as_empty(tmp_path: Path) -> None:
    """The one of a unit belongs to root, and the runner is another user."""
    closed, gone = tmp_path / "closed", tmp_path / "gone"
    closed.mkdir()
    with pytest.raises(PermissionError, match="closed cannot be read"):
        Tree("nonce", str(closed), {os.getpid()}, 1).populated()
    assert not Tree("nonce", str(gone), {os.getpid()}, 1).populated()
    assert not Tree("nonce", "", {os.getpid()}, 1).populated()
    (closed / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert Tree("nonce", str(closed), {os.getpid()}, 1).populated()
