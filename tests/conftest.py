"""Servers that tests share: one of each kind for a pytest process, started when the first test asks for it.

Tests keep apart by a virtual host or by a cluster's name of their own. What stops or breaks a server starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import servers


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[servers.Rabbit]:
    with servers.rabbit() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Redis]:
    with servers.redis() as server:
        yield server


@pytest.fixture(scope="session")
def rabbit_url(rabbit_server: servers.Rabbit) -> str:
    return rabbit_server.url


@pytest.fixture(scope="session")
def redis_url(redis_server: servers.Redis) -> str:
    return redis_server.url
