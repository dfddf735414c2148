"""The text of all metrics. prometheus-client writes each line; the lines of a job are kept until a value changes.

There is no global registry: each text is made from the state of the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import trio
from prometheus_client import exposition as plain
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from coordd.services.metrics import families
from coordd.services.metrics.counted import Buckets, OfJob
from coordd.services.metrics.families import CLUSTER, JOB, Family

# After this many jobs whose lines have changed, other tasks have their turn.
AT_ONCE = 20

go_float: Any = floatToGoString  # it is not typed

CONTENT_TYPE = openmetrics.CONTENT_TYPE_LATEST


class Gauges(NamedTuple):
    """The gauges of one job; None: it has no such value."""

    succeeded_at: float | None = None
    expect_within_s: float | None = None
    next_at: float | None = None
    late: float | None = None


class Node(NamedTuple):
    """The values of this node, as they are now. Each family that is not a histogram: values by label."""

    values: Mapping[Family, Mapping[str, float]]
    election: Buckets
    ledger: Mapping[str, Buckets]


class Exposition:
    """Writes the text for one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._kept: dict[str, tuple[tuple[Gauges, int], tuple[bytes, ...]]] = {}  # job -> (of what, lines by family)
        self._heads = {
            is_open: {family: head(family, is_open=is_open) for family in families.FAMILIES}
            for is_open in (True, False)
        }

    async def text(self, jobs: Mapping[str, tuple[Gauges, OfJob]], node: Node, *, is_open: bool = True) -> bytes:
        """OpenMetrics, or the older text format, which node-exporter reads from files."""
        for gone in self._kept.keys() - jobs.keys():
            del self._kept[gone]
        written = 0
        blocks = []
        for name, (gauges, of) in jobs.items():
            key = (gauges, of.changes)
            kept = self._kept.get(name)
            if kept is None or kept[0] != key:
                kept = self._kept[name] = key, lines(*self.of_job(name, gauges, of))
                written += 1
                if written % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            blocks.append(kept[1])
        heads = self._heads[is_open]
        parts: list[bytes] = []
        for place, family in enumerate(families.OF_JOBS):
            parts.append(heads[family])
            parts += [block[place] for block in blocks]
        for family, block in zip(families.OF_NODE, lines(*self.of_node(node)), strict=True):
            parts += [heads[family], block]
        if is_open:
            parts.append(b"# EOF\n")
        return b"".join(parts)

    # ---- as prometheus-client has them

    def of_job(self, name: str, gauges: Gauges, of: OfJob) -> Iterator[Metric]:
        """The families of one job."""
        label = {JOB: name}
        for family, value in zip(families.OF_JOBS, gauges, strict=False):
            metric = made(family)
            if value is not None:
                self._add(metric, "", label, value)
            yield metric
        for family, word, counts in ((families.FIRES, "decision", of.fires), (families.RUNS, "state", of.runs)):
            metric = made(family)
            for said in families.WORDS[word]:
                self._add(metric, "_total", {**label, word: said}, counts[said])
            yield metric
        takeovers = made(families.TAKEOVERS)
        self._add(takeovers, "_total", label, of.takeovers)
        yield takeovers
        for family, buckets in ((families.RUN_DURATION, of.duration), (families.DELAY, of.delay)):
            metric = made(family)
            self._fill(metric, label, buckets)
            yield metric

    def of_node(self, node: Node) -> Iterator[Metric]:
        """The families of this node, in the order of OF_NODE."""
        for family in families.OF_NODE:
            metric = made(family)
            ending = {families.COUNTER: "_total", families.INFO: "_info"}.get(family.kind, "")
            if family is families.ELECTION_DURATION:
                self._fill(metric, {}, node.election)
            elif family is families.LEDGER_OP:
                for op, buckets in sorted(node.ledger.items()):
                    self._fill(metric, {"op": op}, buckets)
            else:
                for said, value in node.values[family].items():
                    self._add(metric, ending, {family.labels[0]: said} if family.labels else {}, value)
            yield metric

    def _add(self, metric: Metric, ending: str, labels: Mapping[str, str], value: float) -> None:
        metric.add_sample(metric.name + ending, {CLUSTER: self._cluster, **labels}, value)

    def _fill(self, metric: Metric, labels: Mapping[str, str], buckets: Buckets) -> None:
        count = 0
        for bound, more in zip((*buckets.bounds, float("inf")), buckets.counts, strict=True):
            count += more
            self._add(metric, "_bucket", {**labels, "le": go_float(bound)}, count)
        self._add(metric, "_count", labels, count)
        self._add(metric, "_sum", labels, buckets.total)


class _Only:
    """A registry with these families."""

    def __init__(self, *metrics: Metric) -> None:
        self.metrics = metrics

    def collect(self) -> tuple[Metric, ...]:
        return self.metrics


def made(family: Family) -> Metric:
    """The family without values."""
    return Metric(family.name, family.text, family.kind)


def lines(*metrics: Metric) -> tuple[bytes, ...]:
    """The lines with the values of each family; they are the same in both formats."""
    writer: Any = openmetrics  # it is not typed
    text: bytes = writer.generate_latest(_Only(*metrics)).removesuffix(b"# EOF\n")
    # Each family begins with its lines HELP and TYPE.
    return tuple([part.split(b"\n", 2)[2] for part in text.split(b"# HELP ")[1:]])


def head(family: Family, *, is_open: bool) -> bytes:
    """The lines before the values."""
    writer: Any = openmetrics if is_open else plain
    text: bytes = writer.generate_latest(_Only(made(family)))
    return text.removesuffix(b"# EOF\n")
