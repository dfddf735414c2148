"""Fixtures of the contract suites: one ledger of each kind, under a clock that tests move;
servers that tests may break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import servers
from support.ledger_calls import FakeClock, Nodes
from support.memory import MemoryLedger
from support.stepped_redis import OneClock, SteppedLedger, SteppedLoopLedger

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.ports import Ledger

KINDS = ("memory", "sqlite", "redis", "redis on the loop")


@pytest.fixture(scope="session")
def own_rabbit() -> Iterator[servers.Rabbit]:
    """A broker that tests may break. Each test leaves it running."""
    with servers.rabbit() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[servers.Redis]:
    """A server that a test may break."""
    with servers.redis() as server:
        yield server


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> FakeClock:
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    kind = params.get("nodes", params.get("kind", ""))
    return OneClock() if "redis" in kind else FakeClock()


@pytest.fixture
def make_ledger(tmp_path: Path, clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Ledger]]:
    made: list[Ledger] = []

    def make(kind: str) -> Ledger:
        if kind == "memory":
            made.append(MemoryLedger(clock))
        elif "redis" in kind:
            assert isinstance(clock, OneClock)
            a_kind = SteppedLedger if kind == "redis" else SteppedLoopLedger
            made.append(a_kind(request.getfixturevalue("redis_url"), clock))
        else:
            made.append(SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", clock=clock))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, make_ledger: Callable[[str], Ledger], clock: FakeClock) -> Nodes:
    return Nodes(make_ledger(request.param), clock)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/ledger.db"


@pytest.fixture
def open_ledger(path: str, clock: FakeClock) -> Iterator[Callable[..., Nodes]]:
    made: list[SqliteLedger] = []

    def make(where: str = path, timeout_s: float = 0.2) -> Nodes:
        made.append(SqliteLedger(where, timeout_s, clock=clock))
        return Nodes(made[-1], clock)

    yield make
    for ledger in made:
        ledger.close()
