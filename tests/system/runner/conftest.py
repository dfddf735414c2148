"""The ledger, launcher and programs that the runner's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from system.lab.runner_lab import World, world_in


@pytest.fixture(params=["cgroup", "no cgroup", "warm parent"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Each test runs three times: with a cgroup (if this machine has cgroups), without, and forked by a warm parent."""
    with world_in(tmp_path, use_cgroups=request.param == "cgroup", warm=request.param == "warm parent") as world:
        yield world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as world:
        yield world
