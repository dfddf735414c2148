"""Servers that tests share, and how long hypothesis looks.

There is one server of each kind for a pytest process, started when the first test asks for it. Tests keep apart by a
virtual host or by a cluster's name of their own. What stops or breaks a server starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import search  # noqa: F401 - registers the profiles
import servers
from hypothesis import settings

settings.load_profile("fixed")  # unless --hypothesis-profile names another


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
