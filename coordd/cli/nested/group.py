"""A group of commands that also has those of the entry points ``coordd.commands``.

A plug-in is imported only when it is called: no list of commands waits for one, and none fails for one. A command of
coordd itself comes before a plug-in of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from coordd.cli.options import Failed, Group
from coordd.errors import CoorddError
from coordd.plugins import COMMANDS
from coordd.plugins.installed import misfit

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


def _points() -> EntryPoints:
    from importlib import metadata  # here, because a command of coordd itself asks for none

    return metadata.entry_points(group=COMMANDS)


class Nested(click.Group):
    """A group with the plug-ins' commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of coordd's own, else a plug-in's."""
        own = super().get_command(ctx, cmd_name)
        point = None if own is not None else next(iter(_points().select(name=cmd_name)), None)
        return Plugged(point) if point is not None else own

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*super().list_commands(ctx), *_points().names})


class NestedTop(Nested, Group):
    """The same with the shared options of coordctl."""

    group_class = Group  # type: ignore[assignment]  # click takes both; the groups in it have only their own commands


class Plugged(click.Command):
    """Stands for the command of a plug-in until that is called."""

    def __init__(self, point: EntryPoint) -> None:
        self.point = point
        of = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no package"
        self.what = f"the plug-in {point.name} of {of}"
        super().__init__(point.name, short_help=f"A plug-in: {of}.")

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the plug-in's command, which runs in place of this one."""
        if wrong := misfit(self.point):
            raise Failed(f"{self.what} is not run: {wrong}")
        try:
            command = self.point.load()
        except (Exception, SystemExit) as exc:  # a plug-in's own code: whatever it raises is told
            raise Failed(f"{self.what} cannot be loaded: {type(exc).__name__}: {exc}") from exc
        if not isinstance(command, click.Command):
            raise Failed(f"{self.what}: expected a command of click, found {type(command).__name__}")
        command.invoke = self._contained(command.invoke)  # type: ignore[method-assign,assignment]  # of this object alone
        return command.make_context(info_name, args, parent, **extra)

    def _contained(self, invoke: Callable[[click.Context], Any]) -> Callable[[click.Context], Any]:
        def contained(context: click.Context) -> Any:
            try:
                return invoke(context)
            except (click.ClickException, click.exceptions.Exit, click.Abort, CoorddError):
                raise
            except Exception as exc:  # likewise
                raise Failed(f"{self.what} failed: {type(exc).__name__}: {exc}") from exc

        return contained
