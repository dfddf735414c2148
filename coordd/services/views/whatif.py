"""What would be if a node were away: from the statements of an election, and the row of the run."""

from __future__ import annotations

from coordd.core.election import Election
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import RECEIVED, STARTED, TERMINAL, UNKNOWN, Policy
from coordd.core.names import host_of


def without(node: str, run: str, row: Row | None, left_s: float, election: Election | None, alive: list[str]) -> str:
    """What becomes of a run without that node. ``election``: the newest one that this node knows of it, or of its job;
    ``left_s``: the longest time until its lease ends; ``alive``: the other nodes that are.
    """
    next_one = _next(node, election, alive)
    if row is not None and host_of(row.node) == node:
        if row.state in (RECEIVED, STARTED):
            return f"If {node} went away now: {_taken_over(row, left_s)} {next_one}"
        if row.state == UNKNOWN:
            return f"Without {node} nothing changes: a person says how {run} ended (`coordctl run resolve {run}`)."
    if row is not None and row.state in (RECEIVED, STARTED):
        return f"Without {node} nothing changes now: {host_of(row.node)} has it. If that went away too: {next_one}"
    if row is not None and row.state in TERMINAL:
        return f"If {node} had been away: {_next(node, election, alive, past=True)}"
    return f"Without {node}: {next_one}"


def _taken_over(row: Row, left_s: float) -> str:
    policy = Policy.unpack(row.policy)
    if policy.on_lost == "hold" and row.state == STARTED:
        return (
            f'its job says on_lost = "hold", so once its lease ends (in at most {left_s:.0f} s) {row.run} is unknown'
            " until a person resolves it; it is not started again by itself. After `run resolve --as relaunch`:"
        )
    if row.cancel:
        return (
            f"{row.run} is cancelled, so it ends with its lease (in at most {left_s:.0f} s). No other node starts it:"
        )
    if row.relaunches >= policy.relaunches:
        return (
            f"{row.run} was lost {row.relaunches} times already and may be no more, so it ends as lost with its lease"
            f" (in at most {left_s:.0f} s). Otherwise:"
        )
    return f"its lease ends in at most {left_s:.0f} s, and {row.run} is taken over as attempt {row.attempt + 1}."


def _next(node: str, election: Election | None, alive: list[str], *, past: bool = False) -> str:
    """Who tries first then."""
    if election is None or election.succession is None:
        others = f"Alive beside it: {', '.join(alive)}." if alive else "No other node is known to be alive."
        return f"No decided election of it is remembered here, so who can take it is not known. {others}"
    left = [host_of(name) for name in election.succession if host_of(name) != node]
    if not left:
        abstain = [
            f"{host_of(c.name)} ({c.abstains})"
            for c in election.statements.values()
            if c.abstains and host_of(c.name) != node
        ]
        why = f": {'; '.join(sorted(abstain))}" if abstain else " in its election"
        return f"no other node stood{why}. It {'would have waited' if past else 'would wait'} for one."
    first = host_of(election.succession[0])
    later = f", then {', '.join(left[1:])}" if len(left) > 1 else ""
    same = f" {node} is not the one that tries first." if first != node else ""
    tries = "would have tried" if past else "would try"
    return f"{left[0]} {tries} first{later} (by the statements in {election.id}).{same}"
