"""A replayed incident, for people: one table of its steps, then what differs, and what no journal has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordd.cli.show.phrases import safe, some
from coordd.cli.show.tables import console

if TYPE_CHECKING:
    from coordd.history.replay.replay import Replayed

# The states of a run in journals before it has ended.
OPEN = ("pending", "received", "started", "retry")

VERBS = {"heard": "blue", "decided": "cyan", "did": "", "asked": "magenta"}


def show(replayed: Replayed) -> None:
    """Print it."""
    console().print(_drawn(replayed), soft_wrap=False)


def _drawn(replayed: Replayed) -> RenderableType:
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{safe(replayed.run)}, step by step", title_justify="left", pad_edge=False
    )
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("clock", justify="right", no_wrap=True)
    table.add_column("node", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what the journals say", ratio=3, overflow="fold")
    table.add_column("what the rules say", ratio=2, overflow="fold")
    for step in replayed.steps:
        record = step.record
        rules = Text(safe(step.rules), style="bold red" if step.difference else "green" if step.rules else "")
        if step.difference:
            rules = Text.assemble((f"DIFFERS ({step.difference}): ", "bold red"), rules)
        if step.assumed:
            rules.append(f" (assumed: {safe(step.assumed)})", style="dim")
        at = datetime.fromtimestamp(record.at, UTC).strftime("%m-%d %H:%M:%S.%f")[:-3]
        verb = Text(step.verb, style=VERBS.get(step.verb, ""))
        table.add_row(at, str(record.clock), safe(record.host), verb, safe(step.said), rules)
    return Group(table, *[Text(line, style=style) for line, style in _sentences(replayed)])


def _sentences(replayed: Replayed) -> Iterator[tuple[str, str]]:
    differences = replayed.differences
    for difference in differences:
        yield f"difference {safe(difference)}", "bold red"
    for finding in replayed.findings:
        if finding.severity != "breach":
            yield f"notice {finding.kind}: {safe(finding.detail)}", "yellow"
    if replayed.damaged:
        yield f"notice damaged: {some(replayed.damaged, 'line')} of this run cannot be read", "yellow"
    if replayed.recorded in OPEN:
        why = "it may run still, its end may be in another node's journal, or a full disk has refused it"
        told = f"no journal here tells how {safe(replayed.run)} ended; `coordctl why` asks the ledger"
        yield f"notice no end: {told} ({why})", "yellow"
    yield f"not in any journal: {'; '.join(replayed.not_recorded)}", "dim"
    agreed = "the record is what the rules decide" if not differences else some(len(differences), "difference")
    yield f"{safe(replayed.run)} is {replayed.recorded}: {some(len(replayed.steps), 'step')}, {agreed}", ""
