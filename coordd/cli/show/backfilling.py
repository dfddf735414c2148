"""`coordctl job backfill`: what a backfill would run, and how far it has come."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coordd.cli.options import JSON, JSONL, asked, say
from coordd.cli.show import tables
from coordd.cli.show.phrases import duration, safe, some
from coordd.core.ledger.backfill.plan import RUNNING
from coordd.errors import RefusedError, UnavailableError

# How often (seconds) the progress is asked for.
POLL_S = 1.0

# Without any answer for this time (seconds), the command gives up; the backfill goes on.
AWAY_S = 600.0

COLUMNS = [
    tables.Column("JOB", tables.text("job"), whole=True),
    tables.Column("PLAN", tables.text("plan"), whole=True),
    tables.Column("STATE", tables.state()),
    *(tables.Column(key.upper(), tables.text(key)) for key in ("from", "to", "order", "redo")),
    tables.Column("FIRE TIMES", tables.text("fire_times"), right=True),
    *(tables.Column(key.upper(), tables.text(key), right=True) for key in ("passed", "opened", "succeeded", "failed")),
    tables.Column("OPEN", lambda row, _: safe(", ".join(row.get("open") or ()))),
    tables.Column("BY", tables.text("by")),
]

# What became of a fire time that has no run of its own.
STATES = {"none": "no run", "group": "a group"}

# What becomes of a fire time whose run is in this state, by ``redo``.
NEVER_BEGUN = "run, if no node was ever granted it"
OUTCOMES = {
    "none": {"none": "run", "missed": NEVER_BEGUN, "rejected": NEVER_BEGUN},
    "failed": dict.fromkeys(("none", "failure", "lost", "missed", "rejected"), "run"),
    "all": dict.fromkeys(("none", "success", "failure", "lost", "missed", "rejected", "revoked"), "run"),
}


def foreseen(told: Mapping[str, Any]) -> None:
    """What the backfill runs, as a table and a few lines."""
    rows = [
        {"state": STATES.get(state, state), "count": count, "then": OUTCOMES[told["redo"]].get(state, "left as it is")}
        for state, count in told["states"].items()
    ]
    columns = [
        tables.Column("ITS RUN IS", tables.state()),
        tables.Column("FIRE TIMES", tables.text("count"), right=True),
        tables.Column("THEN", tables.text("then")),
    ]
    tables.draw(columns, rows, "No fire times.")
    say(sentence(told))


def sentence(told: Mapping[str, Any]) -> str:
    """A backfill in a sentence or two."""
    head = f"{told['job']}: {some(told['runs'], 'run')}"
    if told["runs"]:
        head += f", {told['first']} to {told['last']}, {told['order']} first"
    limit = "one at a time" if told["overlap"] != "allow" or told["at_most"] == 1 else f"{told['at_most']} at a time"
    takes = f"; about {duration(told['takes_s'])}, by the last runs" if told["takes_s"] is not None else ""
    stop = told["stop_after_failures"]
    return f"{head}, {limit}{takes}" + (f"; it stops after {some(stop, 'failure')}" if stop else "")


def line(plan: Mapping[str, Any], runs: int) -> str:
    """How far a plan has come."""
    ended = plan["succeeded"] + plan["failed"]
    of = f" of {runs}" if runs else ""
    return f"{plan['state']}: {ended}{of} ended, {plan['failed']} failed, {len(plan['open'])} open"


def draw(plans: Sequence[Mapping[str, Any]], nothing: str) -> None:
    """The plans, and why one does not move."""
    tables.draw(COLUMNS, plans, nothing)
    for plan in plans:
        if plan.get("waits"):
            say(f"{plan['plan']} waits: {safe(plan['waits'])}")


def left_alone(job: str) -> str:
    """What to do with a backfill that goes on without the command."""
    return f"the backfill goes on: coordctl job backfill {job} --status; --cancel ends it"


def follow(job: str, ident: str, runs: int) -> dict[str, Any] | str | None:
    """Show the progress until the plan has ended; returns the plan then, or why it is gone, or None if the answers
    stay away.
    """
    terminal = sys.stderr.isatty() and asked().output not in (JSON, JSONL)
    console = tables.console()
    console.stderr = True
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )
    task = bar.add_task(job, total=runs)
    told, heard_at = "", time.monotonic()
    if terminal:
        bar.start()
    try:
        while time.monotonic() - heard_at < AWAY_S:
            try:
                found = asked().call("job.backfills", job=job)
                plans = [plan for plan in found if plan["plan"] == ident]
                if not plans:
                    return f"was replaced by plan {found[0]['plan']}" if found else "is no longer there"
                heard_at = time.monotonic()
            except UnavailableError:
                plans = []
            except RefusedError as exc:
                if exc.kind not in ("unavailable", "try_later"):
                    raise
                plans = []
            for plan in plans:
                now = line(plan, runs)
                bar.update(task, completed=plan["succeeded"] + plan["failed"], description=safe(f"{job} {now}"))
                if not terminal and now != told:
                    say(f"{job}: {now}")
                told = now
                if plan["state"] != RUNNING:
                    return dict(plan)
            time.sleep(POLL_S)
    finally:
        if terminal:
            bar.stop()
    return None
