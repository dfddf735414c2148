"""`coordctl publish` hands a message to the daemon, which delivers it; `coordctl message list` shows what waits."""

from __future__ import annotations

import sys
from typing import Any

import click

from coordd.cli.options import Command, Group, asked


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


@click.group("message", cls=Group)
def message() -> None:
    """Messages of other processes ([publish.NAME] of coordd.toml)."""


@message.command("list")
def message_list() -> None:
    """Of each destination: how many messages wait, since when, how many were given up, and which addresses fail."""

    def draw(found: Any) -> None:
        from coordd.cli.show.tables import draw as draw_table
        from coordd.cli.triggers.drawing import MESSAGES

        draw_table(MESSAGES, found, "No [publish.NAME] in coordd.toml of this node.")

    asked().show(asked().call("message.list"), draw)
