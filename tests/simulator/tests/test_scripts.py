"""Worlds whose ledger runs the real Redis scripts: every property holds in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import servers

import simulator

# Half of these ledgers go back: they lose their last writes.
WORLDS = range(40)

# Worlds that failed on the scripts alone: a breaker's state could not be read; an old definition stayed.
PAST = (9000069, 16041269)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with servers.redis(appendonly="no") as server:
        yield server.url


def test_every_property_holds_of_the_scripts(redis_url: str) -> None:
    for seed in (*WORLDS, *PAST):
        if simulator.draw(seed).scripted:
            world = simulator.run(seed, redis_url=redis_url)
            assert world.server.scripts is not None
            assert world.children, f"seed {seed} launches nothing"
