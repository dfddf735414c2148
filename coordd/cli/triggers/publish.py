"""`coordctl publish`: hand a message to the daemon, which delivers it."""

from __future__ import annotations

import sys

import click

from coordd.cli.options import Command, asked


@click.command("publish", cls=Command)
@click.argument("to", metavar="NAME")
@click.argument("body")
@click.option("--expires", metavar="DURATION", help="Do not deliver it later than this (90s, 1h).")
@click.option("--id", "ident", metavar="ID", help="A repeated message with the same id is delivered once.")
def publish(to: str, body: str, expires: str | None, ident: str | None) -> None:
    """Send BODY ("-": standard input) to [publish.NAME] of coordd.toml. Prints the message's id once it is recorded."""
    text = sys.stdin.read() if body == "-" else body
    ask = asked()
    ask.show(ask.call("publish", to=to, body=text, expires=expires, id=ident), lambda said: click.echo(said["id"]))
