"""The simulator notices each broken safety rule. A simulator that cannot fail would prove nothing."""

import pytest

import simulator
from simulator import command, mutants
from simulator.mutants.mutant import Mutant

# Maximum number of worlds for each mutant. docs/reliability.md tells how many worlds each mutant really needs.
SEEDS_MAX = 500


# The search for a mutant begins with the world that noticed it last: some need hundreds.
FIRST = command.noticed_first()


NEAR = [mutant for mutant in mutants.MUTANTS if mutant.near is not None]


@pytest.mark.parametrize("mutant", NEAR, ids=lambda mutant: mutant.name)
def test_the_world_that_needs_a_rule_holds_with_the_rule(mutant: Mutant) -> None:
    """A world with a defect of its own would notice any mutant."""
    world = command.world_of(mutant, FIRST.get(mutant.name, 0))
    assert world is not None
    simulator.live(world)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    other = set()
    for _, said in command.find(mutant, SEEDS_MAX, FIRST.get(mutant.name)):
        if said.split()[0] in mutant.caught_as.split():
            return
        other.add(said.split()[0])

    pytest.fail(f"{mutant.rule}: broken, {SEEDS_MAX} worlds did not notice it as {mutant.caught_as}, but as {other}")
