"""Safety mechanisms turned off, one at a time: the simulator must find each. The product has no such switches.

Each mutant replaces one small method of the real code by its literal opposite. ``faults`` narrows the worlds
to those in which the mechanism matters (None: any world), so that the first seed that shows it comes soon.

One file a subject, and each ends with its MUTANTS. A new one belongs to the subject whose rule it breaks.
"""

from simulator.mutants import identity, jobs, lease, ledger, node, order, pursuit, recovery, runner, wire
from simulator.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *identity.MUTANTS,
    *pursuit.MUTANTS,
    *node.MUTANTS,
    *order.MUTANTS,
    *ledger.MUTANTS,
    *lease.MUTANTS,
    *runner.MUTANTS,
    *recovery.MUTANTS,
    *jobs.MUTANTS,
    *wire.MUTANTS,
)
