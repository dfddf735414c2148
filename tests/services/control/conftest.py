"""A control server for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.control.conversation import Server


@pytest.fixture
def server(directory: str) -> Iterator[Server]:
    made = Server(f"{directory}/control.sock")
    yield made
    made.stop()
