"""A run as OpenLineage names it, the same on every node. Pure."""

from __future__ import annotations

import uuid

from coordd.core.jobs.job import job_of

_RUNS = uuid.UUID("6f1c7f0e-9a44-5d0b-8a43-0d2f6f4f6b5e")

# Spark's listener reads these. Somebody who sets one of them himself means another parent.
PREFIXES = ("spark.openlineage.parent", "spark.openlineage.rootParent")


def run_id(namespace: str, run: str) -> str:
    """The UUID of a run: through all its attempts it is one."""
    return str(uuid.uuid5(_RUNS, f"{namespace}\n{run}"))


def parent_properties(namespace: str, run: str) -> dict[str, str]:
    """What makes this run the parent, and the root, of what a Spark application tells."""
    told = {"JobNamespace": namespace, "JobName": job_of(run), "RunId": run_id(namespace, run)}
    return {f"{prefix}{key}": value for prefix in PREFIXES for key, value in told.items()}
