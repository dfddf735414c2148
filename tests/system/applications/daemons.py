"""Real daemons whose jobs run on a fake cluster, or on a real Standalone one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.clusters.yarn import FakeYarn
from support.servers.spark import StandaloneCluster

from coordd.core.jobs.applications import run_mark
from system.applications.standalone import RealPlace
from system.applications.tracked import Place
from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import LIMIT_S, until

# The name of a cluster in tests.
CLUSTER = "default"


@contextmanager
def daemons_on(
    kind: str, size: int = 2, *, settle_s: float = 3.0, real: StandaloneCluster | None = None, **options: Any
) -> Iterator[tuple[Cluster, Place]]:
    """A cluster of daemons, not started yet, and the fake that its jobs run on, or ``real``. The fake remembers
    everything.
    """
    timing = {"lease": 4.0, "renew": 0.5, "ledger_timeout": 0.5, "kill_grace": 1.5, **options}
    with cluster_of(size, **timing) as cluster:
        directory = cluster.path / "place"
        directory.mkdir()
        place = Place(kind, directory) if real is None else RealPlace(real, directory)
        env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in place.environment().items())
        for node in cluster.nodes:
            node.settings = "\n".join([
                "[spark]",
                f'submit = "{place.spark_submit()}"',
                f'master = "{place.master}"',
                f'settle = "{settle_s:g}s"',
                'retention = "1d"',
                f"env = {{ {env} }}",
            ])  # fmt: skip
        try:
            yield cluster, place
        finally:
            place.fake.close()


def applications(place: Place) -> list[str]:
    """All applications that were ever submitted."""
    fake = place.fake
    with fake.lock:
        return sorted(fake.apps if isinstance(fake, FakeYarn) else fake.pods)


def application_of(place: Place, run: str) -> list[str]:
    """The applications that were ever submitted for a run."""
    found: list[str] = place.fake.of_mark(run_mark(CLUSTER, run))
    return found


def followed(cluster: Cluster, run: str, limit_s: float = LIMIT_S) -> str:
    """Wait until the ledger has the application of a run that runs; returns its id."""

    def look() -> str:
        row = cluster.row(run)
        return str(row.get("application_id") or "") if row.get("state") == "started" else ""

    return until(look, limit_s, why=f"{run} has an application")
