"""What the core needs of the configuration."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from coordd.config.jobfile import JobSet
from coordd.config.sections import Config
from coordd.core.context import Settings
from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import Job, job_of

# A change of these makes another node, or changes the addresses: it needs a restart.
_NEEDS_RESTART = (
    ("node", "name"), ("node", "state_dir"), ("node", "runtime_dir"), ("cluster", "name"), ("cluster", "bus"),
    ("cluster", "ledger"), ("cluster", "mingle"), ("cluster", "gossip"), ("control", "socket"),
    ("control", "operator_group"), ("control", "viewer_group"), ("cluster", "ledger_timeout"),
    ("cluster", "heartbeat_interval"), ("cluster", "unsigned"), ("node", "fast_start"), ("cluster", "fast_path"),
    ("metrics", "listen"), ("metrics", "textfile"), ("tracing", "otlp"), ("guard", "listen"), ("guard", "tls"),
    ("triggers", "listen"), ("triggers", "tls"),
    ("mirror", "url"), ("mirror", "exchange"), ("mirror", "args"), ("mirror", "password_file"),
    ("jobs", "backend"), ("jobs", "url"), ("jobs", "call"),
)  # fmt: skip


def needs_restart(before: Config, after: Config) -> list[str]:
    """The changed settings that a reload does not take."""
    changed = [
        f"[{section}] {key}"
        for section, key in _NEEDS_RESTART
        if getattr(getattr(after, section), key) != getattr(getattr(before, section), key)
    ]
    return changed + (["[[boot]]"] if after.boot != before.boot else [])


def what_changed(before: Mapping[str, Job], jobs: JobSet) -> dict[str, Any]:
    """What a reload has done with the job files: how many jobs there are, and the names by what became of them."""
    now = jobs.jobs
    return {
        "jobs": len(now),
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": sorted([name for name in now.keys() & before.keys() if now[name].digest != before[name].digest]),
        "disabled": sorted(jobs.problems.keys() - now.keys()),
    }


def regrouped(before: Mapping[str, Job], now: Mapping[str, Job], runs: Iterable[str]) -> list[str]:
    """The groups among these runs whose job has another `expand` now: when they end is judged by its present one."""
    groups = {group for run in runs if (group := group_of(run)) != run}
    changed = {name for name in now.keys() & before.keys() if now[name].expand != before[name].expand}
    return sorted([group for group in groups if job_of(group) in changed])


def restarted_with(start: Config, after: Config) -> Config:
    """The configuration that a reload takes: what needs a restart is as it was at the start."""
    fixed: dict[str, dict[str, Any]] = {}
    for section, key in _NEEDS_RESTART:
        fixed.setdefault(section, {})[key] = getattr(getattr(start, section), key)
    sections = {name: structs.replace(getattr(after, name), **values) for name, values in fixed.items()}
    return structs.replace(after, boot=start.boot, **sections)


def named(config: Config, kept: str) -> tuple[Config, str]:
    """The configuration with the name that this node keeps, and a warning or "".

    ``kept``: the name that the machine gave at an earlier start, or "". It depends on DNS, and drains, holds and runs
    for one node name it: while DNS is away the machine has its short name only, which would be another node.
    """
    now = config.node.name
    if not config.called_by_host or kept in ("", now):
        return config, ""
    if _short(kept) != _short(now):
        return config, (
            f"this machine is called {now} now, and the node was {kept} at its last start: what drains, holds or names"
            f" {kept} does not count for it; if that is not intended, set [node] name"
        )
    warning = (
        f"this machine is called {now} now, and the node keeps the name {kept} of an earlier start: is DNS away? Set"
        " [node] name to the one that counts"
    )
    return structs.replace(config, node=structs.replace(config.node, name=kept)), warning


def _short(name: str) -> str:
    return name.partition(".")[0].casefold()


def settings_of(config: Config, version: str) -> Settings:
    """``version`` is the one of this program."""
    cluster, budget = config.cluster, config.node.budget
    return Settings(
        cluster=cluster.name,
        heartbeat_interval_s=cluster.heartbeat_interval,
        election_timeout_s=cluster.election_timeout,
        mingle=cluster.mingle,
        mingle_timeout_s=cluster.mingle_timeout,
        lease_s=cluster.lease,
        renew_interval_s=cluster.renew_interval,
        ledger_timeout_s=cluster.ledger_timeout,
        kill_grace_s=cluster.kill_grace,
        budget_client=budget.max if isinstance(budget.client, str) else budget.client,
        budget_by=budget.client if isinstance(budget.client, str) else "",
        budget_min=budget.min,
        budget_cluster=budget.cluster,
        priority_by=cluster.priority,
        tags=config.node.tags,
        pools=config.pools,
        version=version,
        system=platform.system(),
    )
