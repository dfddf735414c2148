"""The simulator notices each broken safety rule: a simulator that cannot fail proves nothing."""

import pytest

from simulator import command, mutants
from simulator.mutants.mutant import Mutant

# Enough worlds for each; docs/reliability.md tells how many each one really needs.
SEEDS_MAX = 200


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    found = next(command.find(mutant, SEEDS_MAX), None)

    assert found is not None, f"{mutant.rule}: broken, and {SEEDS_MAX} worlds did not notice"
    assert found[1].split()[0] == mutant.caught_as, f"noticed as {found[1]!r}, expected {mutant.caught_as}"
