"""Tests with RabbitMQ and Redis. They wait most of the time, so two of them run at a time."""

from __future__ import annotations

import pytest

PRODUCTION_FILES = (
    "test_peer_failures.py",
    "test_lost_ledgers.py",
    "test_ledger_identity.py",
    "test_chaos.py",
    "test_kills.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "production: on RabbitMQ and Redis")
    config.addinivalue_line("markers", "hosts: more of what may become of an installation, only by `make hosts`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in PRODUCTION_FILES or "production" in item.name:
            item.add_marker("production")
