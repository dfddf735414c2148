"""Mutants of the rules about time, limits and definitions that people set: one file for each subject."""

from simulator.mutants.mutant import Mutant
from simulator.mutants.policies import (
    breakers,
    checks,
    holds,
    hooks,
    joined,
    line,
    retries,
    revisions,
    room,
    skips,
    times,
    triggers,
)

MUTANTS: tuple[Mutant, ...] = (
    *revisions.MUTANTS,
    *line.MUTANTS,
    *holds.MUTANTS,
    *times.MUTANTS,
    *room.MUTANTS,
    *retries.MUTANTS,
    *skips.MUTANTS,
    *hooks.MUTANTS,
    *breakers.MUTANTS,
    *checks.MUTANTS,
    *joined.MUTANTS,
    *triggers.MUTANTS,
)
