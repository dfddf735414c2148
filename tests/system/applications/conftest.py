"""A world with a fake cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from system.applications.tracked import FAKES, Cluster, cluster_on
from system.lab.runner_lab import World, world_in


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as world:
        yield world


@pytest.fixture(params=FAKES)
def cluster(request: pytest.FixtureRequest, world: World) -> Iterator[Cluster]:
    with cluster_on(world, request.param) as cluster:
        yield cluster
