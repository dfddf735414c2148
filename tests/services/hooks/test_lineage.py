"""OpenLineage's run events: read with the classes of openlineage-python, which check them, and written as it does."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.generated.error_message_run import ErrorMessageRunFacet
from openlineage.client.generated.job_type_job import JobTypeJobFacet
from openlineage.client.generated.nominal_time_run import NominalTimeRunFacet
from openlineage.client.serde import Serde
from support.small_cluster import EPOCH

from coordd.core.jobs.arguments import check_value
from coordd.core.jobs.job import iso
from coordd.core.lineage import parent_properties, run_id
from coordd.core.wire.events import TaskStarted
from coordd.services.hooks import happenings, lineage
from coordd.services.hooks.happenings import Happening

RUN = "etl@2026-11-21T02:00:00Z"


def ended(state: str, run: str = RUN, reason: str = "") -> Happening:
    row: Any = SimpleNamespace(run=run, job="etl", attempt=2, state=state, node="edge-1.7", reason=reason)
    happening = happenings.of_row(row)
    assert happening is not None
    return happening


def started(run: str = RUN, attempt: int = 0) -> Happening:
    return happenings.started(TaskStarted(uuid="u", name="etl", run=run, attempt=attempt, node="edge-1.7"))


def document(happening: Happening) -> dict[str, Any]:
    text = lineage.document(happening, "prod", at=EPOCH, cluster="c1")
    check_value("event", text)  # it fits into an argument of a run
    read: dict[str, Any] = json.loads(text)
    return read


def rebuilt(told: dict[str, Any]) -> dict[str, Any]:
    """The same event, made by openlineage-python."""
    producer = told["producer"]
    facets: dict[str, Any] = dict(told["run"]["facets"])
    if "nominalTime" in facets:
        facets["nominalTime"] = NominalTimeRunFacet(facets["nominalTime"]["nominalStartTime"], producer=producer)
    if "errorMessage" in facets:
        facets["errorMessage"] = ErrorMessageRunFacet(facets["errorMessage"]["message"], "unknown", producer=producer)
    job_type = JobTypeJobFacet("BATCH", "COORDD", "JOB", producer=producer)
    event = RunEvent(
        eventTime=told["eventTime"],
        producer=producer,
        run=Run(told["run"]["runId"], facets),
        job=Job(told["job"]["namespace"], told["job"]["name"], {"jobType": job_type}),
        eventType=RunState(told["eventType"]),
    )
    made: dict[str, Any] = json.loads(Serde.to_json(event))
    return made


@pytest.mark.parametrize("run", [RUN, "etl#x", "etl#by@hand"])
@pytest.mark.parametrize(("state", "kind"), [("", "START"), *lineage.TYPES.items()])
def test_each_event_is_what_the_reference_client_writes(run: str, state: str, kind: str) -> None:
    told = document(ended(state, run, "exit code 3") if state else started(run))

    assert told == rebuilt(told)
    assert (told["eventType"], told["eventTime"]) == (kind, iso(EPOCH))
    assert (told["job"]["namespace"], told["job"]["name"]) == ("prod", "etl")
    assert uuid.UUID(told["run"]["runId"])
    assert ("nominalTime" in told["run"]["facets"]) == (run == RUN)
    assert ("errorMessage" in told["run"]["facets"]) == (kind == "FAIL")
    own = told["run"]["facets"]["coordd_run"]
    assert (own["run"], own["cluster"], own["node"], own["attempt"]) == (run, "c1", "edge-1", 2 if state else 0)


def test_through_all_attempts_it_is_one_run_that_starts_once() -> None:
    first, again = started(attempt=0), started(attempt=1)

    assert first.ident() == again.ident(), "a takeover does not start it again"
    assert document(first)["run"]["runId"] == document(ended("success"))["run"]["runId"] == run_id("prod", RUN)
    assert run_id("prod", RUN) != run_id("test", RUN)
    assert started("etl#1").ident() != first.ident()


def test_spark_gets_the_same_run_as_its_parent() -> None:
    told = parent_properties("prod", RUN)

    same = {"JobNamespace": "prod", "JobName": "etl", "RunId": run_id("prod", RUN)}
    assert told == {
        f"spark.openlineage.{prefix}{key}": value for prefix in ("parent", "rootParent") for key, value in same.items()
    }


@pytest.mark.parametrize("text", ["\U0001f600", "é", '"', "\\", "x"])
def test_long_texts_fit(text: str) -> None:
    happening = ended("failure", reason=text * 5000)
    check_value("event", lineage.document(happening, "n" * 200, at=EPOCH, cluster="c" * 64))
