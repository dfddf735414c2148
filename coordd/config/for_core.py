"""What the core needs of the configuration."""

from __future__ import annotations

import platform

from coordd.config.sections import Config
from coordd.core.context import Settings


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
        tags=config.node.tags,
        pools=config.pools,
        version=version,
        system=platform.system(),
    )
