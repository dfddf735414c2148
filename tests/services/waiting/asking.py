"""A node of a small cluster, and the methods of its control socket that people ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import trio
from support.small_cluster import Cluster

from coordd.core.breaker import Breaker
from coordd.core.ready import Now
from coordd.errors import UnavailableError
from coordd.ports import Ledger
from coordd.services.control.callers import VIEWER, Caller
from coordd.services.control.job_methods import JobMethods
from coordd.services.control.lookups import Lookups
from coordd.services.views import troubles
from coordd.services.views.troubles import Troubles

T = TypeVar("T")

ANN = Caller(uid=1000, groups=frozenset(), role=VIEWER, pid=1, name="ann")


class Reading:
    """The ledger service of a node: the ledger of the cluster, at once."""

    recovering_s = 0.0

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.breaker = Breaker("ledger")

    @property
    def error(self) -> str:
        return "Connection refused" if self._cluster.ledger_away else ""

    async def query(self, call: Callable[[Ledger], T]) -> T:
        if self._cluster.ledger_away:
            raise UnavailableError("Connection refused")
        return call(self._cluster.ledger)


class People:
    """The methods of one node. ``ahead_s``: how far its wall clock is ahead of the ledger's."""

    def __init__(self, cluster: Cluster, name: str = "a", *, ahead_s: float = 0.0) -> None:
        self.cluster, self.ahead_s = cluster, ahead_s
        self.passed_over: Mapping[tuple[str, float], str] = {}
        driver: Any = SimpleNamespace(
            node=cluster[name],
            now=self.now,
            bus=SimpleNamespace(state="connected", error=""),
            passed_over=lambda job, due: self.passed_over.get((job, due), ""),
            lost_at={},
        )
        ledger: Any = Reading(cluster)
        relay: Any = None  # viewers do not ask other nodes
        self.troubles = Troubles(driver, ledger)
        self.methods = JobMethods(driver, ledger, self.troubles, ledger_url="memory:", job_problems=dict, relay=relay)
        self.methods._lookups, self.methods._next_fires = Lookups(), {}

    def now(self) -> Now:
        now = self.cluster.time()
        return Now(now.mono, now.wall + self.ahead_s)

    def ask(self, method: str, **params: Any) -> Any:
        return trio.run(lambda: getattr(self.methods, method)(params, ANN))

    def why(self, subject: str) -> str:
        return str(self.ask("why", id=subject)["sentence"])

    def looked(self) -> troubles.Found:
        """The result of a look at troubles now."""
        return trio.run(lambda: self.troubles.look(older_than_s=-1.0))
