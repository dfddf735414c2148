"""`coordctl trigger`: list and show the triggers of jobs."""

from __future__ import annotations

from typing import Any

import click

from coordd.cli.jobs import complete_jobs
from coordd.cli.options import Group, asked


@click.group("trigger", cls=Group)
def trigger() -> None:
    """What starts jobs beside their schedules: files, commands, calls, messages, events ([[trigger]] of job files)."""


@trigger.command("list")
@click.option("--job", metavar="JOB", shell_complete=complete_jobs, help="Only those of this job.")
def trigger_list(job: str | None) -> None:
    """The triggers of all jobs: which node polls each, how much it took, and what waits."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.TRIGGERS, found, "No job has a trigger.")

    asked().show(asked().call("trigger.list", job=job), draw)


@trigger.command("show")
@click.argument("job", shell_complete=complete_jobs)
@click.argument("name", required=False)
def trigger_show(job: str, name: str | None) -> None:
    """One trigger: the arrivals that wait, those that were refused and why, and the last ones that were taken."""

    def draw(shown: Any) -> None:
        from coordd.cli.triggers.drawing import trigger_text

        click.echo(trigger_text(shown))

    asked().show(asked().call("trigger.show", job=job, name=name), draw)
