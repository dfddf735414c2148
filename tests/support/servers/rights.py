"""The rights of deploy/acl, as an administrator gives them to the user of one cluster."""

from __future__ import annotations

import re
from pathlib import Path

ACL = Path(__file__).parents[3] / "deploy" / "acl"


def redis_rules(cluster: str, name: str = "redis") -> list[str]:
    """The words of ACL SETUSER. ``cluster``: its name, or "*" for any. ``name``: redis, redis-wire, or sentinel."""
    text = re.sub("#.*", "", (ACL / f"{name}.rules").read_text())
    return text.replace("CLUSTER", cluster).split()


def rabbit_regex(cluster: str, node: str = ".*") -> str:
    """The exchanges and queues of a node. ``cluster`` and ``node`` are regular expressions."""
    return (ACL / "rabbitmq.regex").read_text().strip().replace("CLUSTER", cluster).replace("NODE", node)


def rabbit_wire(cluster: str) -> list[str]:
    """The three words of set_permissions (configure, write, read) for the user of `coordctl wire`."""
    return (ACL / "rabbitmq-wire.regex").read_text().replace("CLUSTER", cluster).split()


def rabbit_monitor(cluster: str) -> str:
    """The exchanges and queues of Celery's monitors."""
    return (ACL / "rabbitmq-monitor.regex").read_text().strip().replace("CLUSTER", cluster)
