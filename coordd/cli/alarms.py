"""coordctl alarm: double launches that were detected, and their clearing by a person."""

from __future__ import annotations

from typing import Any

import click

from coordd.cli.options import Group, asked


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
