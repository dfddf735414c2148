"""Whether this node, and the cluster, take new runs."""

from __future__ import annotations

from typing import Any

import structlog

from coordd.core.members.membership import ALIVE, LEFT
from coordd.core.wire.events import ClusterReady
from coordd.services.driver import Driver
from coordd.services.ledger import CONNECTED, LedgerService, boottime

log = structlog.get_logger("health")

READY = "ready"

# If a timer of the core is this much overdue (seconds), the core is stuck.
OVERDUE_S = 5.0


def stuck(driver: Driver) -> str:
    """How late the core's timer is, if it is too late; "" if it is not."""
    overdue_s = boottime() - driver.node.timer_at()
    return f"the core's timer is {overdue_s:.0f} s overdue" if overdue_s > OVERDUE_S else ""


def node_problem(driver: Driver, ledger: LedgerService) -> str:
    """Why this node takes no new runs; "" if it does."""
    node = driver.node
    if node.state != READY:
        return f"the node is {node.state}"
    if ledger.state != CONNECTED:
        return f"the ledger is {ledger.state}"
    return node.braked or node.unfit or node.aside


def cluster_problem(driver: Driver, ledger: LedgerService) -> str:
    """Why the cluster is not ready, as this node sees it; "" if it is: more than half of the nodes take new runs.

    A node that has left on purpose does not count. Whether another node's ledger answers is not known here.
    """
    others = [member for member in driver.node.members.values() if member.state != LEFT]
    own = node_problem(driver, ledger)
    taking = sum(member.state == ALIVE and member.says == READY for member in others) + (not own)
    known = len(others) + 1
    if 2 * taking > known:
        return ""
    return f"{taking} of {known} nodes take new runs" + (f"; here: {own}" if own else "")


def ready_view(driver: Driver, ledger: LedgerService) -> dict[str, Any]:
    """As in `status`."""
    own, cluster = node_problem(driver, ledger), cluster_problem(driver, ledger)
    return {"node": not own, "cluster": not cluster, "reason": own or cluster or None}


class Readiness:
    """Notices when the cluster becomes ready, and when it stops being so."""

    def __init__(self, driver: Driver, ledger: LedgerService) -> None:
        self._driver = driver
        self._ledger = ledger
        self.since: float | None = None  # since when it is ready (Unix seconds); None: it is not
        self.problem = "the node is starting"

    def look(self) -> None:
        """Judge again; called every few seconds."""
        self.problem = cluster_problem(self._driver, self._ledger)
        if self.problem and self.since is not None:
            self.since = None
            log.warning("cluster.not_ready", reason=self.problem)
            self._tell()
        elif not self.problem and self.since is None:
            self.since = self._driver.now().wall
            log.info("cluster.ready", alive=self._driver.node.member_counts()["alive"])
            self._tell()

    def _tell(self) -> None:
        node, now = self._driver.node, self._driver.now()
        event = ClusterReady(clock=node.stamp(), timestamp=now.wall, ready=not self.problem, reason=self.problem)
        event.alive = node.member_counts()["alive"]
        self._driver.tell(event)

    def word(self) -> str:
        """For STATUS and `status`."""
        return "cluster ready" if not self.problem else f"cluster not ready: {self.problem}"
