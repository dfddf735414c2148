"""One image and one package for all tests of this room, because these take the longest."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages import deb, wheelhouse
from system.lab import debian


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return debian.make_image(tmp_path_factory.mktemp("debian") / "root")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this source tree, as `make deb` builds it, but not compressed: that takes half a minute."""
    to = tmp_path_factory.mktemp("package")
    return deb.build(wheelhouse.wheelhouse(to / "wheelhouse"), to, compression="none")
