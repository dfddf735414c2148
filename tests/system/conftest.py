"""Tests that wait most of the time, those with RabbitMQ and Redis among them: three of them run at a time."""

from __future__ import annotations

import pytest

PRODUCTION_FILES = (
    "test_peer_failures.py",
    "test_lost_ledgers.py",
    "test_ledger_identity.py",
    "test_chaos.py",
    "test_kills.py",
)

# Each of these has its own files, processes and ports too.
PAIRED_FILES = (
    "test_guard.py",
    "test_guard_spark.py",
    "test_progress.py",
    "test_identity.py",
    "test_proof.py",
    "test_wheelhouse.py",
    "test_back.py",
    "test_hooks.py",
    "test_sinks.py",
    "test_lineage.py",
    "test_limits.py",
    "test_policies.py",
    "test_triggers.py",
    "test_arrivals.py",
    "test_retries.py",
    "test_breakers.py",
    "test_wire.py",
    "test_inputs.py",
    "test_holds.py",
    "test_backfill.py",
    "test_dedupe.py",
    "test_after.py",
    "test_exec.py",
    "test_why.py",
    "test_single.py",
    "test_bad_disks.py",
    "test_runner_deaths.py",
    "test_connect.py",
    "test_fast_start.py",
    "test_prepared.py",
    "test_spark_kubernetes.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "production: on RabbitMQ and Redis")
    config.addinivalue_line("markers", "paired: it waits most of the time; three of these run at a time")
    config.addinivalue_line("markers", "hosts: more of what may become of an installation, only by `make hosts`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in PRODUCTION_FILES or "production" in item.name:
            item.add_marker("production")
        # The same test on the backends of one machine waits as long.
        alike = item.get_closest_marker("production") is not None or "embedded" in item.name
        if alike or item.path.name in PAIRED_FILES:
            item.add_marker("paired")
