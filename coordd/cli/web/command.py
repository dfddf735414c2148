"""coordctl web, without what only running pages need."""

from __future__ import annotations

import click

from coordd.cli.options import Command


@click.command("web", cls=Command)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port on 127.0.0.1; 0 takes a free one.")
@click.option("--print-token", is_flag=True, help="Ask the pages that run for another address.")
def web(*, port: int, print_token: bool) -> None:
    """Pages for a browser on this machine: now, jobs, runs, cluster. You have your own rights there."""
    from coordd.cli.web import serving

    if print_token:
        serving.print_tokens(port)
    else:
        serving.serve(port)
