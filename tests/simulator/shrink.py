"""Finds the smallest part of a plan that still fails, for a person to read.

Items of the plan, continuous faults and machines are left out as long as the same property breaks (delta debugging:
Zeller and Hildebrandt, 2002). A left-out item changes later random draws of the world, so not every cut still fails.
"""

from __future__ import annotations

from collections.abc import Callable

import simulator
from simulator.plan import Plan, draw

# Maximum number of worlds that are tried. Each takes a tenth of a second.
TRIES_MAX = 400


def broken(plan: Plan) -> str:
    """The violation in the world of a plan; "" when every property holds."""
    try:
        simulator.live(plan)
    except simulator.Violation as exc:
        return str(exc)
    return ""


def shrink(
    seed: int,
    faults: tuple[str, ...] | None = None,
    forgets: bool | None = None,
    tried: Callable[[int, int], None] = lambda _tries, _left: None,
) -> Plan:
    """The plan of a failing seed, without the parts that the failure does not need.

    ``tried`` is called after each world: with the number of worlds so far, and the number of parts that are left.
    """
    whole = draw(seed, faults, forgets)
    verdict = broken(whole)
    assert verdict, f"seed {seed} breaks nothing"
    which = verdict.split()[0]
    without: frozenset[str] = frozenset()
    left = whole.labels()
    tries = 0
    size = max(1, len(left) // 2)
    while size and tries < TRIES_MAX:
        at = 0
        while at < len(left) and tries < TRIES_MAX:
            cut = without | set(left[at : at + size])
            tries += 1
            if broken(draw(seed, faults, forgets, cut)).split(" ")[0] == which:
                without = cut
                del left[at : at + size]
            else:
                at += size
            tried(tries, len(left))
        size //= 2
    return draw(seed, faults, forgets, without)


def telling(trace: list[str], verdict: str) -> list[str]:
    """The lines of a transcript that a person needs: faults, people, and lines about the runs in the verdict."""
    runs = [word.partition("/")[0].rstrip(":,") for word in verdict.split() if "#" in word or "@" in word]
    always = (
        "FAULT",
        "PEOPLE",
        "CONFIGURATION",
        "HEAL",
        "VIOLATION",
        "EXCUSED",
        "the ledger",
        "daemon killed",
        "paused",
        " killed",
    )
    return [line for line in trace if any(word in line for word in (*always, *runs))]
