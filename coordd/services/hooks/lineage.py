"""OpenLineage's run events (spec 2-0-2): the documents that are posted instead of a hook's event. Pure."""

from __future__ import annotations

import json
from typing import Any

from coordd import __version__
from coordd.core.jobs.job import iso
from coordd.core.ledger.words import FAILURE, LOST, REVOKED, SUCCESS
from coordd.core.lineage import run_id
from coordd.services.hooks.happenings import Happening, short

SPEC = "https://openlineage.io/spec"
SCHEMA = f"{SPEC}/2-0-2/OpenLineage.json#/$defs"
PRODUCER = f"https://pypi.org/project/coordd/{__version__}"

START = "START"
# The end of a run -> the type of its event. What never ran has none.
TYPES = {SUCCESS: "COMPLETE", FAILURE: "FAIL", LOST: "FAIL", REVOKED: "ABORT"}


def document(happening: Happening, namespace: str, *, at: float, cluster: str) -> str:
    """The JSON of a run event. ``at``: Unix seconds."""
    told = {key: short(value) for key, value in happening.fields.items()}
    run, job = str(told["run"]), str(told["job"])
    kind = TYPES.get(str(told["state"]), START)
    facets: dict[str, Any] = {
        "coordd_run": _facet(
            f"{SCHEMA}/RunFacet",
            run=run, cluster=cluster, node=told["node"], attempt=told["attempt"], state=told["state"],
        )
    }  # fmt: skip
    nominal = run.partition("@")[2]
    if nominal and "#" not in run:
        facets["nominalTime"] = _facet(
            f"{SPEC}/facets/1-0-1/NominalTimeRunFacet.json#/$defs/NominalTimeRunFacet", nominalStartTime=nominal
        )
    if kind == "FAIL":
        facets["errorMessage"] = _facet(
            f"{SPEC}/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
            message=told["reason"] or "it failed",
            programmingLanguage="unknown",
        )
    job_type = _facet(
        f"{SPEC}/facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
        processingType="BATCH", integration="COORDD", jobType="JOB",
    )  # fmt: skip
    event = {
        "eventType": kind,
        "eventTime": iso(round(at, 3)),
        "run": {"runId": run_id(namespace, run), "facets": facets},
        "job": {"namespace": namespace, "name": job, "facets": {"jobType": job_type}},
        "inputs": [],
        "outputs": [],
        "producer": PRODUCER,
        "schemaURL": f"{SCHEMA}/RunEvent",
    }
    return json.dumps(event)


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": schema, **fields}
