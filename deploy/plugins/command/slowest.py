"""`coordctl slowest JOB`: the runs of a job that took longest."""

import click

from coordd.cli.options import Command, asked


@click.command(cls=Command)  # so that it takes --socket, --timeout and --output, as all commands
@click.argument("job")
@click.option("--limit", default=5, show_default=True)
def slowest(job: str, limit: int) -> None:
    """The runs of JOB that took longest, among its last 1,000."""
    runs = [run for run in asked().call("run.list", job=job, limit=1000) if run["runtime_s"] is not None]
    runs.sort(key=lambda run: -float(run["runtime_s"]))

    def draw(found: list[dict[str, object]]) -> None:
        for run in found:
            click.echo(f"{run['runtime_s']:>10.1f} s  {run['state']:8}  {run['id']}")

    asked().show(runs[:limit], draw)
