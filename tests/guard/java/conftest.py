"""The compiled driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard.java.driver import compiled


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("java"))
