"""`coordctl why`: one run or one job, explained in a sentence from what is recorded. Pure."""

from __future__ import annotations

from typing import NamedTuple

from coordd.core.context import Context
from coordd.core.election import Election
from coordd.core.job import Job, iso
from coordd.core.pursuit import Pursuit
from coordd.core.rows import AttemptRow, Policy, Row

# A run in one of these states is still to be launched, so what keeps nodes from launching is of interest.
_TO_COME = ("pending", "retry", "received")


class Surroundings(NamedTuple):
    """What may keep a node from launching anything. ``*_error``: why it does not answer, or ""."""

    ledger_error: str = ""
    recovering_s: float = 0.0  # for so long the ledger grants nothing
    breaker_open: bool = False  # the ledger's: it is not even asked
    retry_in_s: float = 0.0
    bus_down: bool = False
    bus_error: str = ""

    def sentences(self) -> list[str]:
        """One for each trouble, the worst first."""
        said = []
        if self.ledger_error:
            said.append(f"Nothing new starts: the ledger does not answer ({self.ledger_error}).")
        if self.breaker_open:
            said.append(
                "The ledger's breaker is open, for it has failed again and again: "
                + (f"it is tried again in {self.retry_in_s:.1f} s." if self.retry_in_s else "it is being tried again.")
            )
        if self.recovering_s:
            said.append(recovering(self.recovering_s))
        if self.bus_down:
            reason = f" ({self.bus_error})" if self.bus_error else ""
            said.append(
                f"The bus is down{reason}: nobody is asked who goes first, a hash of the run's id says it. That keeps "
                "no run from starting."
            )
        return said


CALM = Surroundings()


def why_run(
    run: str,
    row: Row | None,
    attempts: list[AttemptRow],
    pursuit: Pursuit | None,
    election: Election | None,
    around: Surroundings = CALM,
) -> str:
    """What became of a run, and why."""
    troubles = "".join(f" {sentence}" for sentence in around.sentences())
    if row is None and around.ledger_error:
        return f"Nobody can launch {run} now.{troubles}"
    if row is None and around.recovering_s:
        return f"{run} is not in the ledger now.{troubles}"
    if row is None:
        if pursuit is not None:
            text = f"{run} is not in the ledger yet: {pursuit.why or pursuit.phase}. {_standing(election)}".strip()
            return text + troubles
        return (
            f"The ledger knows no run {run!r}: it was never due, never triggered, or it is older than the history kept."
        )
    before = _before(attempts, row)
    if row.state in _TO_COME:
        before = troubles + before
    said = {
        "pending": lambda: _pending(row, pursuit, election),
        "retry": lambda: _retry(row, pursuit),
        "received": lambda: f"was granted to {row.node} at {_at(row.received_at)} and waits at the gate for its time",
        "started": lambda: f"is running on {row.node} since {_at(row.started_at)} (attempt {row.attempt})",
        "success": lambda: (
            f"succeeded on {row.node} at {_at(row.ended_at)} after {row.ended_at - row.started_at:.1f} s"
        ),
        "failure": lambda: f"failed on {row.node or 'no node'} at {_at(row.ended_at)}: {row.reason}",
        "revoked": lambda: f"was revoked at {_at(row.ended_at)}: {row.reason}",
        "rejected": lambda: f"was not launched: {row.reason}",
        "missed": lambda: f"was not launched: {row.reason}",
        "lost": lambda: f"was lost: {row.reason}",
        "unknown": lambda: (
            f"may or may not have finished: {row.reason}. Its job says on_lost = hold, so it is not started again; "
            f"look at its output, then say `coordctl run resolve {row.run} --as success|failed|relaunch`"
        ),
    }[row.state]()
    return f"{run} {said}.{before}"


def why_job(
    name: str,
    job: Job | None,
    problem: str,
    suspended: bool,
    next_at: float | None,
    last: Row | None,
    last_word: str,
    ctx: Context,
    around: Surroundings = CALM,
) -> str:
    """What stands between a job and its next run."""
    if job is None:
        if problem:
            return f"{name} does not run on this node: its file is wrong. {problem}"
        return f"This node has no job {name!r}: there is no such file in its jobs directory."
    parts = around.sentences()
    if suspended:
        parts.append(f"{name} is suspended; `coordctl job resume {name}` lets it run again.")
    blocked = ctx.impaired or ctx.launch_problems.get(name, "")
    if blocked:
        parts.append(f"This node cannot start it: {blocked}.")
    if not set(job.tags) <= set(ctx.settings.tags):
        parts.append(f"This node may not run it: it takes the tags {', '.join(job.tags)}.")
    if ctx.state != "ready":
        parts.append(f"This node takes no runs: it is {ctx.state}.")
    if last is not None:
        parts.append(f"Last: {last_word}")
    elif not around.ledger_error:
        parts.append(f"{name} has never run.")
    if next_at is not None:
        parts.append(f"Next: {iso(next_at)}.")
    elif job.schedule is None:
        parts.append("It has no schedule: it runs when somebody triggers it.")
    else:
        parts.append("Its schedule has no further time.")
    return " ".join(parts)


def recovering(left_s: float) -> str:
    """The ledger is in quarantine."""
    return (
        f"The ledger went back or was replaced: nothing new launches for {left_s:.0f} s, while the nodes put back what "
        "it forgot."
    )


def _pending(row: Row, pursuit: Pursuit | None, election: Election | None) -> str:
    late = Policy.unpack(row.policy).start_within_s
    text = f"waits to be launched (due {_at(row.not_before)}, given up {late:.0f} s after that)"
    if pursuit is not None and pursuit.why:
        text += f"; {pursuit.why}"
    standing = _standing(election)
    return f"{text}. {standing}".rstrip(". ") if standing else text


def _retry(row: Row, pursuit: Pursuit | None) -> str:
    text = f"is due again as attempt {row.attempt} at {_at(row.not_before)}, because: {row.reason}"
    if pursuit is not None and pursuit.why:
        text += f"; {pursuit.why}"
    return text


def _standing(election: Election | None) -> str:
    """Who would and who would not."""
    if election is None:
        return ""
    if election.succession:
        return f"Elected to try first: {election.succession[0]}."
    abstaining = [f"{name} ({c.abstains})" for name, c in sorted(election.statements.items()) if c.abstains]
    return f"No node stands: {'; '.join(abstaining)}." if abstaining else ""


def _before(attempts: list[AttemptRow], row: Row) -> str:
    """Earlier attempts, each with its end."""
    earlier = [a for a in attempts if a.attempt < row.attempt]
    if not earlier:
        return ""
    told = "; ".join(
        f"attempt {a.attempt} on {a.node} was {a.state} ({a.reason or 'no reason recorded'})" for a in earlier
    )
    return f" Before that: {told}."


def _at(at: float) -> str:
    return iso(round(at)) if at else "no time"
