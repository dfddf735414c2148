"""coordctl alarm, deadletter and orphans: double launches that were detected, runs that were given up, applications
without a run.
"""

from __future__ import annotations

from typing import Any

import click

from coordd.cli.jobs import complete_jobs, complete_runs
from coordd.cli.options import EXIT_FAILED, Command, Group, asked, say
from coordd.cli.runs import tell_again
from coordd.core.visible import visible


@click.group(cls=Group)
def alarm() -> None:
    """Alarms: something happened that must never happen. An alarm stays until a person clears it."""


@alarm.command("list")
def list_() -> None:
    """The alarms that are not cleared."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.ALARMS, found, "There are no alarms.")

    asked().show(asked().call("alarm.list"), draw)


@alarm.command("clear")
@click.argument("ident", metavar="[ID]", default="")
@click.option("--note", required=True, help="What you found, for later readers.")
def clear(ident: str, note: str) -> None:
    """Clear one alarm, or all, on every node: you have looked at them."""

    def draw(said: Any) -> None:
        click.echo(f"{len(said['cleared'])} cleared, {said['standing']} left")

    params = {"note": note, **({"id": ident} if ident else {})}
    asked().show(asked().call("alarm.clear", **params), draw)


# ---- dead letters


@click.group(cls=Group)
def deadletter() -> None:
    """Dead letters: runs that were given up after all their attempts. Each stays until a person replays or discards
    it, or until its run is forgotten.
    """


@deadletter.command("list")
@click.option("--job", shell_complete=complete_jobs, help="Only runs of this job.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many.")
def letters(job: str | None, limit: int) -> None:
    """The newest dead letters of the cluster."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.LETTERS, found, "There are no dead letters.")

    asked().show(asked().call("deadletter.list", job=job, limit=limit), draw)


@click.command(cls=Command)
def orphans() -> None:
    """Applications on the cluster that no live run knows, and runs whose application is gone (exit code 1)."""
    found = asked().call("orphans")

    def draw(found: Any) -> None:
        from coordd.cli.show import strays, tables

        for problem in found["problems"]:
            say(problem)
        tables.draw(strays.STRAYS, found["applications"], "Every living application has a live run.")
        tables.draw(strays.LONELY, found["runs"], "Every run that has started has its application.")

    asked().show(found, draw)
    if any(found.values()):
        raise click.exceptions.Exit(EXIT_FAILED)


@deadletter.command("show")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
def letter(ident: str) -> None:
    """One dead letter: its run with all attempts, and the last lines of its log."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        if found["shown"] is None:  # a file that was not copied
            for key in ("id", "at", "attempts", "node", "reason"):
                click.echo(visible(f"{key}: {found[key]}"))
            return
        tables.draw_run(found["shown"])
        if not found["dead"]:
            say(f"{found['id']} is not a dead letter any more: its run is {found['state']}")

    asked().show(asked().call("deadletter.show", id=ident), draw)


@deadletter.command("replay")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@click.option("--with-children", is_flag=True, help="The runs after it, and after those, run once more too.")
def replay(ident: str, with_children: bool) -> None:
    """One more attempt of the run, once, by the job file as it is now."""

    def draw(said: Any) -> None:
        if not said["run"]:
            click.echo(visible(f"{said['id']} is tried again"))
            return
        tell_again(said["run"], said, with_children)

    given = {"with_children": True} if with_children else {}
    asked().show(asked().call("deadletter.replay", id=ident, **given), draw)


@deadletter.command("discard")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@click.option("--note", required=True, help="Why nobody needs it, for later readers.")
def discard(ident: str, note: str) -> None:
    """Remove it from the list. The run stays in the history."""
    asked().show(
        asked().call("deadletter.discard", id=ident, note=note), lambda said: click.echo(f"{said['id']} is discarded")
    )
