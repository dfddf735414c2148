"""Objects that many tests share, and how long hypothesis searches.

Servers: each pytest process has one of each kind, which starts when the first test asks for it. Each test uses its own
virtual host or its own cluster name. A test that stops or breaks a server starts its own.

The command line against a fake daemon with a table of answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import settings
from support import (
    search,  # noqa: F401 - registers the profiles
    servers,
)
from support.fake_daemon import FakeDaemon, open_directory
from support.servers import rights

from coordd.cli import coordctl
from coordd.config import ownership

os.umask(0o022)  # coordd refuses files that the group may write, and on some accounts all new files are so

settings.load_profile("fixed")  # unless --hypothesis-profile names another one


@pytest.fixture(autouse=True)
def trusted_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of root trust the service's user from then on, in their process: not so in the tests after them."""
    monkeypatch.setattr(ownership, "_also", set())


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[servers.Rabbit]:
    """Its user guest has the rights that deploy/acl gives, in the virtual host "/"."""
    with servers.rabbit() as server:
        server.ctl("set_permissions", "guest", *[rights.rabbit_regex(".*")] * 3)
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
    """The address with a user that has the rights of deploy/acl, for clusters of any name, and KEYS for the tests."""
    assert redis_server.cli("ACL", "SETUSER", "coordd", "on", *rights.redis_rules("*"), "+keys", ">least") == "OK"
    return redis_server.url.replace("://", "://coordd:least@")


@pytest.fixture
def directory() -> Iterator[str]:
    with open_directory() as path:
        yield path


@pytest.fixture
def daemon(directory: str) -> Iterator[FakeDaemon]:
    made = FakeDaemon(f"{directory}/s")
    yield made
    made.close()


@pytest.fixture
def ctl(daemon: FakeDaemon) -> Callable[..., Result]:
    def run(*args: str, **kwargs: Any) -> Result:
        return CliRunner().invoke(coordctl.program, ["--socket", daemon.path, *args], prog_name="coordctl", **kwargs)

    return run
