"""coordctl alarm: what should never have happened, and that a person has looked at it."""

from __future__ import annotations

from typing import Any

import click

from coordd.cli.options import Group, asked


@click.group(cls=Group)
def alarm() -> None:
    """What should never happen, and has: it stands until a person has looked at it."""


@alarm.command("list")
def list_() -> None:
    """The alarms that stand."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.ALARMS, found, "No alarm stands.")

    asked().show(asked().call("alarm.list"), draw)


@alarm.command("clear")
@click.argument("ident", metavar="[ID]", default="")
@click.option("--note", required=True, help="What was found, for those who come later.")
def clear(ident: str, note: str) -> None:
    """You have looked at one alarm, or at all: they stand no more, on any node."""

    def draw(said: Any) -> None:
        click.echo(f"{len(said['cleared'])} cleared, {said['standing']} still stand")

    params = {"note": note, **({"id": ident} if ident else {})}
    asked().show(asked().call("alarm.clear", **params), draw)
