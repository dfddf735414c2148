"""The text of the metrics: valid, complete from the start, and what prometheus-client itself would write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import trio
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed
from prometheus_client.parser import text_string_to_metric_families as parsed_plain

from coordd.services.metrics import exposition as module, families
from coordd.services.metrics.counted import Buckets, OfJob
from coordd.services.metrics.exposition import Exposition, Gauges, Node

ROOT = Path(__file__).parents[3]

# The names that users' scripts rely on, with the labels beside `cluster`.
PROMISED = {
    "last_success_timestamp_seconds": "coordd_job",
    "expect_within_seconds": "coordd_job",
    "next_fire_timestamp_seconds": "coordd_job",
    "fires_total": "coordd_job decision",
    "runs_total": "coordd_job state",
    "run_duration_seconds_bucket": "coordd_job le",
    "launch_delay_seconds_bucket": "coordd_job le",
    "takeovers_total": "coordd_job",
    "elections_total": "",
    "election_duration_seconds_bucket": "le",
    "members": "state",
    "bus_up": "",
    "ledger_up": "",
    "ledger_op_duration_seconds_bucket": "op le",
    "breaker_open": "name",
    "outbox_messages": "",
    "build_info": "version",
}


parser: Any = parsed  # it is not typed


def node() -> Node:
    values = {
        family: ({"x": 1.0} if family.labels else {"": 1.0})
        for family in families.OF_NODE
        if family.kind != families.HISTOGRAM
    }
    return Node(values, Buckets(families.ELECTION_S), {"claim": Buckets(families.LEDGER_S)})


def texts(jobs: dict[str, tuple[Gauges, OfJob]], *, is_open: bool = True, times: int = 1) -> list[str]:
    of = Exposition("c1")

    async def write() -> list[str]:
        return [(await of.text(jobs, node(), is_open=is_open)).decode() for _ in range(times)]

    return trio.run(write)


def jobs(count: int = 2) -> dict[str, tuple[Gauges, OfJob]]:
    return {f"job-{n}": (Gauges(1e9 + n, 3600.0, 2e9 + n, 0.0), OfJob()) for n in range(count)}


def samples(text: str) -> list[Any]:
    return [sample for family in parser(text) for sample in family.samples]


def test_every_promised_name_is_there_with_its_labels() -> None:
    (text,) = texts(jobs())
    labels = {sample.name: " ".join(sorted(sample.labels)) for sample in samples(text)}

    for name, said in PROMISED.items():
        assert labels["coordd_" + name] == " ".join(sorted(["cluster", *said.split()])), name
    assert not {"job", "instance"} & {label for said in labels.values() for label in said.split()}
    assert {name for family in families.FAMILIES for name in family.samples} == set(labels)


def test_every_series_of_a_known_job_is_there_from_the_start_at_0() -> None:
    (text,) = texts({"new": (Gauges(), OfJob())})
    of_job = [sample for sample in samples(text) if "coordd_job" in sample.labels]

    assert {sample.value for sample in of_job} == {0.0}
    for family in (families.FIRES, families.RUNS):
        said = {sample.labels[family.labels[1]] for sample in of_job if sample.name == family.name + "_total"}
        assert said == set(families.WORDS[family.labels[1]])
    names = {sample.name for sample in of_job}
    assert families.NEXT_FIRE.name not in names, "a gauge without a value is absent"


def test_the_kept_lines_are_those_that_the_library_writes() -> None:
    many = jobs(50)
    first, again = texts(many, times=2)
    of = Exposition("c1")
    merged = []
    for place, family in enumerate(families.OF_JOBS):
        metric = module.made(family)
        for name, (gauges, counts) in many.items():
            metric.samples += list(of.of_job(name, gauges, counts))[place].samples
        merged.append(metric)
    writer: Any = openmetrics
    whole = writer.generate_latest(module._Only(*merged, *of.of_node(node()))).decode()

    assert first == again == whole


def test_a_changed_value_is_written_and_a_job_that_is_gone_is_not() -> None:
    known = jobs(3)
    of = Exposition("c1")

    async def write() -> str:
        return (await of.text(known, node())).decode()

    trio.run(write)
    counts = known["job-1"][1]
    counts.runs["success"] += 1
    counts.changes += 1
    known["job-2"] = (Gauges(None, None, 7.0), known["job-2"][1])
    del known["job-0"]
    text = trio.run(write)

    assert 'coordd_runs_total{cluster="c1",coordd_job="job-1",state="success"} 1.0' in text
    assert 'coordd_next_fire_timestamp_seconds{cluster="c1",coordd_job="job-2"} 7.0' in text
    assert "job-0" not in text


def test_the_file_has_the_older_format() -> None:
    (text,) = texts(jobs(), is_open=False)
    found = {family.name: family.type for family in parsed_plain(text)}

    assert "# EOF" not in text
    assert found["coordd_runs"] == "counter"
    assert found["coordd_run_duration_seconds"] == "histogram"
    assert found["coordd_build_info"] == "gauge"


def test_buckets_are_cumulative() -> None:
    counts = OfJob()
    for seconds in (0.5, 2.0, 1e6):
        counts.duration.add(seconds)
    (text,) = texts({"etl": (Gauges(), counts)})
    found = re.findall(r'coordd_run_duration_seconds_\w+\{cluster="c1",coordd_job="etl"(?:,le="(.*)")?\} (.*)', text)

    assert [value for _, value in found] == [
        "1.0",
        "2.0",
        "2.0",
        "2.0",
        "2.0",
        "2.0",
        "2.0",
        "3.0",
        "3.0",
        "1.0000025e+06",
    ]
    assert found[7][0] == "+Inf"
