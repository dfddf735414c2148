"""Alert rules, the dashboard and the dead-man ping: they name what exists, and fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from coordd.services.metrics import families
from coordd.services.metrics.counted import Buckets, OfJob
from coordd.services.metrics.exposition import Exposition, Gauges, Node

ROOT = Path(__file__).parents[2]
WATCH = ROOT / "deploy" / "watch"
RULES = WATCH / "coordd.rules.yml"
CASES = Path(__file__).parent / "coordd.rules.test.yml"
DASHBOARD = WATCH / "coordd.dashboard.json"

EXISTING = {name for family in families.FAMILIES for name in family.samples}
LABELS = {label for family in families.FAMILIES for label in family.labels} | {families.CLUSTER, "le", "instance"}


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def promtool(*args: str) -> str:
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_reads_the_rules() -> None:
    said = promtool("check", "rules", str(RULES))

    assert f"SUCCESS: {len(alerts())} rules found" in said
    assert len(alerts()) > 15


def test_each_alert_fires_when_it_should_and_not_in_peace(tmp_path: Path) -> None:
    cases = CASES.read_text()
    assert "RULES" in cases
    file = tmp_path / "cases.yml"
    file.write_text(cases.replace("[RULES]", f"[{RULES}]"))

    assert "SUCCESS" in promtool("test", "rules", str(file))
    assert [alert for alert in alerts() if f'"{alert}"' not in cases] == [], "an alert that no case raises"


def test_a_rule_that_never_fires_is_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "rules.yml"
    broken.write_text(RULES.read_text().replace("max by (cluster) (coordd_unknown_runs) > 0", "vector(0) > 1"))
    file = tmp_path / "cases.yml"
    file.write_text(CASES.read_text().replace("[RULES]", f"[{broken}]"))

    with pytest.raises(AssertionError, match="CoorddRunUnknown"):
        promtool("test", "rules", str(file))


def test_each_alert_has_its_section_in_the_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    links = re.findall(r"runbook_url: docs/runbook\.md#(\w+)$", RULES.read_text(), re.MULTILINE)

    assert links == [alert.lower() for alert in alerts()]
    assert [alert for alert in alerts() if alert not in headings] == []
    assert [name for name in headings if name.startswith("Coordd") and name not in alerts()] == []


# ---- names


def expressions(value: Any) -> Iterator[str]:
    """Every query in the dashboard."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("expr", "query") and isinstance(item, str):
                yield item
            else:
                yield from expressions(item)
    elif isinstance(value, list):
        for item in value:
            yield from expressions(item)


def names(text: str) -> set[str]:
    return set(re.findall(r"\bcoordd_\w+", text)) - {families.JOB}


def test_only_metrics_that_exist_are_named() -> None:
    rules = "\n".join(re.findall(r"expr: (?:\|\n((?: {10,}.*\n)+)|.*)", RULES.read_text())) + RULES.read_text()
    drawn = "\n".join(expressions(json.loads(DASHBOARD.read_text())))

    assert names(rules) <= EXISTING
    assert names(drawn) <= EXISTING
    assert len(names(drawn)) > 15
    assert names(rules) - names(drawn) <= {families.EXPECT_WITHIN.name}, "who is paged looks at the dashboard first"
    for text in (rules, drawn):
        used = {label for inside in re.findall(r"by \(([^)]*)\)", text) for label in inside.split(", ")}
        assert used <= LABELS


def test_the_dashboard_can_be_imported() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {"title", "uid", "schemaVersion", "templating"} <= set(board)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    for panel in panels:
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert all('cluster="$cluster"' in target["expr"] for target in panel["targets"]), panel["title"]


def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """As rules, because promtool reads these."""
    lines = ["groups:", "- name: dashboard", "  rules:"]
    queries = [text for text in expressions(json.loads(DASHBOARD.read_text())) if not text.startswith("label_values")]
    for number, query in enumerate(text for text in queries if text != "prometheus"):
        filled = query.replace("$__rate_interval", "5m").replace("$cluster", "c")
        lines += [f"  - record: dashboard:{number}", f"    expr: {json.dumps(filled)}"]
    file = tmp_path / "queries.yml"
    file.write_text("\n".join(lines).replace("dashboard:", "dashboard:panel_") + "\n")

    assert "SUCCESS" in promtool("check", "rules", str(file))


def test_prometheus_finds_no_fault_in_the_metrics() -> None:
    buckets = {family: Buckets(family.buckets) for family in families.FAMILIES if family.buckets}
    values = {family: ({"x": 1.0} if family.labels else {"": 1.0}) for family in families.OF_NODE if not family.buckets}
    node = Node(values, buckets[families.ELECTION_DURATION], {"claim": buckets[families.LEDGER_OP]})
    jobs = {"etl": (Gauges(1e9, 3600.0, 2e9, 0.0), OfJob())}
    text = trio.run(lambda: Exposition("c1").text(jobs, node, is_open=False))
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- the dead-man ping


def ping(tmp_path: Path, code: int) -> str:
    """What curl is called with if `coordctl check-node` ends with that code."""
    line = re.search(r"^ExecStart=/bin/sh -c '(.*)'$", (WATCH / "coordd-ping.service").read_text(), re.MULTILINE)
    assert line is not None
    called = tmp_path / "called"
    for name, body in (("coordctl", f"exit {code}"), ("curl", f'echo "$@" > {called}')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    subprocess.run(
        ["/bin/sh", "-c", line[1]],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PING_URL": "https://ping.example/1"},
        timeout=60,
        check=False,
    )
    return called.read_text() if called.exists() else ""


@pytest.mark.parametrize(("code", "pings"), [(0, True), (1, True), (2, False), (3, False)])
def test_only_a_node_that_works_pings(tmp_path: Path, code: int, pings: bool) -> None:
    assert ("https://ping.example/1" in ping(tmp_path, code)) == pings


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    for name in ("coordd-ping.service", "coordd-ping.timer"):
        (tmp_path / name).write_text((WATCH / name).read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *[str(path) for path in sorted(tmp_path.iterdir())]],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert [line for line in done.stderr.splitlines() if "coordd-ping" in line] == []
