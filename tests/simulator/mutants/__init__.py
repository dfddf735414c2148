"""Mutants: each turns off one safety mechanism, and the simulator must notice it. The product has no such switches.

Each mutant replaces one small method of the real code by its literal opposite. ``faults`` narrows the worlds to those
in which the mechanism matters (None: any world). So one of the first seeds shows the mutant.

There is one file for each subject, and each file ends with its MUTANTS. A new mutant belongs in the file of the subject
whose rule it breaks.
"""

from simulator.mutants import (
    fires,
    identity,
    jobs,
    lease,
    ledger,
    node,
    order,
    policies,
    pursuit,
    recovery,
    runner,
    testimony,
    wire,
)
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
    *testimony.MUTANTS,
    *jobs.MUTANTS,
    *fires.MUTANTS,
    *wire.MUTANTS,
    *policies.MUTANTS,
)
