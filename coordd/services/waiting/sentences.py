"""Parts of sentences about runs: names of nodes, elections, instants. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from coordd.core.context import SKEW_MAX_S, clock_fault
from coordd.core.election import Election
from coordd.core.jobs.job import iso
from coordd.core.runs.pursued import NO_BUDGET


def by_host(text: str, full_hostnames: Iterable[str]) -> str:
    """The text with the names of nodes shortened: without the pid, which does not help people."""
    for name in set(full_hostnames):
        host, _, pid = name.rpartition(".")
        if host and pid.isdecimal():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", host.replace("\\", r"\\"), text)
    return text


def standing(election: Election | None) -> str:
    """Which nodes would launch it, and which not."""
    if election is None:
        return ""
    if election.succession:
        return f"Elected to try first: {election.succession[0]}."
    abstaining = [f"{name} ({c.abstains})" for name, c in sorted(election.statements.items()) if c.abstains]
    # A budget is short for moments, and nobody elects again: what was short then may be free long since.
    then = any(c.abstains == NO_BUDGET for c in election.statements.values())
    told = "At its election no node could take it" if then else "No node can take it"
    return f"{told}: {'; '.join(abstaining)}." if abstaining else ""


def when(at: float) -> str:
    """An instant (Unix seconds) in a sentence."""
    return iso(int(at)) if at else "no time"  # the second that other views show


def clock_off(skew_s: float) -> str:
    """That a node with this clock opens no scheduled run; "" if it does. ``skew_s``: ahead of the ledger's."""
    fault = clock_fault(skew_s)
    return fault and f"This node {fault} (limit {SKEW_MAX_S:g} s); set this machine's clock, or the ledger's."
