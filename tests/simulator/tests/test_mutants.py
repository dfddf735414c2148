"""The simulator notices each broken safety rule. A simulator that cannot fail would prove nothing."""

import pytest

from simulator import command, mutants
from simulator.mutants.mutant import Mutant

# Maximum number of worlds for each mutant. docs/reliability.md tells how many worlds each mutant really needs.
SEEDS_MAX = 500


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    found = next(command.find(mutant, SEEDS_MAX), None)

    assert found is not None, f"{mutant.rule}: broken, and {SEEDS_MAX} worlds did not notice"
    assert found[1].split()[0] in mutant.caught_as.split(), f"noticed as {found[1]!r}, expected {mutant.caught_as}"
