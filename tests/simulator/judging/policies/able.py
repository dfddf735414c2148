"""Who could take a run once all is calm: judged by the machines, their files and their programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.judging.records import KNOWN_S
from simulator.terms import CHAOS_S, SETTINGS

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.rows import Row
    from simulator.world import Host, World

# After the faults have ended, all nodes know each other and all that waits within this time (seconds).
CALM_FROM_S = CHAOS_S + KNOWN_S

# A daemon knows all others, and what waits, after this time (seconds).
MET_S = 8.0

# A node with this much room less than it has will have room when it comes to that.
SPARE = 2


class Able:
    """What the machines of one world can do."""

    def __init__(self, world: World) -> None:
        self.world = world

    def calm(self, since: float) -> bool:
        """True if all nodes have known each other, and the ledger, from before ``since`` (true time) on."""
        setbacks = self.world.server.setbacks
        return since > max(CALM_FROM_S, setbacks[-1].opens_at + KNOWN_S if setbacks else 0.0)

    def free(self, row: Row) -> Job | None:
        """The definition of a run that nothing but its time keeps from starting; None of all others."""
        job = self.world.known_jobs.get(row.digest)
        if job is None or job.overlap != "allow" or job.pool or job.concurrency is not None or job.rate is not None:
            return None
        return None if self.world.server.suspended(row.job) else job

    def can(self, host: Host, job: Job, run: str) -> bool:
        """True if that machine's node can take that run now, and for a while."""
        daemon, world = host.daemon, self.world
        return (
            daemon is not None
            and not host.gone
            and not daemon.paused
            and daemon.began_at < world.now - MET_S
            and daemon.node.ctx.state == "ready"
            and host.jobs.get(job.name) is job
            and set(job.tags) <= set(world.plan.tags[host.index])
            and self.knows(host)
            and not any(runner.launch.run == run for runner in host.runners)
            and sum(runner.alive for runner in host.runners) < SETTINGS.budget_client - SPARE
        )

    def knows(self, host: Host) -> bool:
        """True if all nodes know it: its connection has been up for KNOWN_S, and nobody else has its name."""
        daemon = host.daemon
        if any(away.index == host.index for away in self.world.unseen):
            return False
        return daemon is not None and self.world.mono(host) - daemon.bus_changed_at > KNOWN_S

    def anybody(self, row: Row) -> bool:
        """True if some node can take it now."""
        job = self.free(row)
        return job is not None and any(self.can(host, job, row.run) for host in self.world.hosts)


def machine_of(node: str) -> int:
    """The number of the machine that a full_hostname (n3.101) names."""
    return int(node.partition(".")[0][1:])
