"""What every command of coordctl shares: its options, its errors and their exit codes, its output."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from coordd.adapters.control_line import DEFAULT_SOCKET
from coordd.cli.client import Client
from coordd.core.visible import visible_json
from coordd.errors import ConfigError, CoorddError, JobFileError, RefusedError, UnavailableError

TABLE = "table"
JSON = "json"
JSONL = "jsonl"

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BAD_JOB = 65
EXIT_UNAVAILABLE = 69
EXIT_TRY_LATER = 75
EXIT_NOT_PERMITTED = 77
EXIT_BAD_CONFIG = 78
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130

# The exit code for each error word of the daemon; every other word is EXIT_FAILED.
EXIT_CODES = {
    "invalid_params": EXIT_USAGE,
    "bad_argument": EXIT_USAGE,
    "bad_job": EXIT_BAD_JOB,
    "unavailable": EXIT_UNAVAILABLE,
    "try_later": EXIT_TRY_LATER,
    "not_permitted": EXIT_NOT_PERMITTED,
    "bad_config": EXIT_BAD_CONFIG,
}


class Asked:
    """The shared options, given on any level of the command line; the innermost one counts."""

    def __init__(self) -> None:
        self.socket = DEFAULT_SOCKET
        self.output = TABLE
        self.timeout_s: float | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = click.get_current_context().find_root().with_resource(Client(self.socket, self.timeout_s))
        return self._client

    def call(self, method: str, **params: Any) -> Any:
        """Call the daemon; parameters that are None or empty are left out."""
        return self.client.call(method, {key: value for key, value in params.items() if value not in (None, "", ())})

    def show(self, result: Any, draw: Callable[[Any], None]) -> None:
        """Print a result: ``draw`` makes the table; JSON is printed as it is."""
        if self.output == TABLE:
            draw(result)
        elif self.output == JSONL:
            for item in result if isinstance(result, list) else [result]:
                click.echo(json_line(item))
        else:
            click.echo(json_document(result))

    def item(self, item: Any, text: str) -> None:
        """Print one item of a stream: its text, or itself as one line of JSON."""
        click.echo(text if self.output == TABLE else json_line(item))


def json_line(item: Any) -> str:
    """One object on one line; control characters are escaped, so that a terminal shows the exact values."""
    return visible_json(json.dumps(item, ensure_ascii=False, separators=(",", ":")))


def json_document(item: Any) -> str:
    """One document, escaped in the same way."""
    return visible_json(json.dumps(item, indent=2, ensure_ascii=False))


def asked() -> Asked:
    """The shared options of the command that runs."""
    return click.get_current_context().ensure_object(Asked)


def say(text: str) -> None:
    """A message for the person; the program that reads the output does not see it."""
    click.echo(text, err=True)


class Failed(click.ClickException):
    """A failed command: one sentence, a hint, and the exit code."""

    exit_code: int  # type: ignore[misc]  # click's own is a class variable, ours differs from error to error

    def __init__(self, message: str, exit_code: int = EXIT_FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.hint = hint
        context = click.get_current_context(silent=True)
        self.program = context.find_root().info_name if context else None

    def show(self, file: Any = None) -> None:
        from coordd.cli.show.phrases import safe

        say(f"{self.program or 'coordd'}: {safe(self.message)}" + (f"\n  hint: {safe(self.hint)}" if self.hint else ""))


def failed(exc: CoorddError) -> Failed:
    """One of our exceptions as a failed command."""
    if isinstance(exc, RefusedError):
        return Failed(str(exc), EXIT_CODES.get(exc.kind, EXIT_FAILED), exc.hint)
    code = EXIT_FAILED
    if isinstance(exc, UnavailableError):
        code = EXIT_UNAVAILABLE
    elif isinstance(exc, JobFileError):
        code = EXIT_BAD_JOB
    elif isinstance(exc, ConfigError):
        code = EXIT_BAD_CONFIG
    return Failed(str(exc), code)


class Finite(click.FloatRange):
    """A range of numbers. click's own takes NaN, which is in no range, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a number in the range {self._describe_range()}, found {value}", param, ctx)
        return number


# Here an empty text is what it says: no note.
MAY_BE_EMPTY = frozenset(("note",))


class Strict(click.Command):
    """A command that refuses an empty text. It is a shell variable without a value, and if the command took it for
    an option that was not given, it would do something else: another run, another node, all alarms.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for parameter in [] if ctx.resilient_parsing else self.params:
            name = parameter.name or ""
            source = ctx.get_parameter_source(name)
            if ctx.params.get(name) == "" and source is ParameterSource.COMMANDLINE and name not in MAY_BE_EMPTY:
                how = "give one" if parameter.required else "give one, or leave it out"
                raise click.BadParameter(f'expected a text, found ""; {how}', ctx, parameter)
        return rest


def _set_socket(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value == "" and context.get_parameter_source("socket") is ParameterSource.COMMANDLINE:
        raise click.BadParameter(
            'expected the path of a socket, found ""; give one, or leave it out', context, parameter
        )
    if value:
        context.ensure_object(Asked).socket = value


def _set_output(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Asked).output = value


def _set_timeout(context: click.Context, _parameter: click.Parameter, value: float | None) -> None:
    if value is not None:
        context.ensure_object(Asked).timeout_s = value


def _shared(*, top: bool, own: Iterable[str | None] = ()) -> list[click.Option]:
    """The shared options. The environment counts only at the top level; below, it would override the options given
    there.

    ``own``: option names that the command defines itself.
    """
    variables = ["COORDD_SOCKET", "COORDD_CONTROL_SOCKET"] if top else None
    timeout = click.Option(
        ["--timeout"],
        metavar="SECONDS",
        type=Finite(0, 86_400, min_open=True),
        expose_value=False,
        callback=_set_timeout,
        is_eager=True,
        help="Timeout for each answer of the daemon [default: 10; for changes 30, for `check run` 310].",
    )
    return ([] if "timeout" in own else [timeout]) + [
        click.Option(
            ["--socket"],
            metavar="PATH",
            envvar=variables,
            expose_value=False,
            callback=_set_socket,
            is_eager=True,
            help=f"The daemon's control socket (or COORDD_SOCKET) [default: {DEFAULT_SOCKET}].",
        ),
        click.Option(
            ["--output", "-o"],
            type=click.Choice([TABLE, JSON, JSONL]),
            expose_value=False,
            callback=_set_output,
            is_eager=True,
            help="How data is printed; a table lacks columns where the terminal is narrow [default: table].",
        ),
    ]


class Command(Strict):
    """A command that accepts the shared options too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *_shared(top=False, own=[parameter.name for parameter in self.params])]


class Group(click.Group):
    """A group that accepts the shared options, before and after the names of its commands."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, top: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.top = top
        self.params = [*self.params, *_shared(top=top)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CoorddError as exc:
            if self.top:
                raise failed(exc) from exc
            raise


# What writing to a standard output fails with: its disk is full or broken, or it is closed.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def main(program: click.Group, name: str) -> NoReturn:
    """Run a command line to its exit code, without a traceback on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not cause an error
    if f"_{name}_complete".upper() in os.environ:
        from coordd.cli.completion import bash

        bash.register()
    try:
        try:
            code = program.main(prog_name=name, standalone_mode=False)
        finally:
            sys.stdout.flush()  # here its error can be told; at the interpreter's end it is a traceback
    except click.ClickException as exc:
        exc.show()
        code = exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except OSError as exc:
        if exc.filename is not None or exc.errno not in UNWRITABLE:
            raise
        say(f"{name}: the output cannot be written: {exc.strerror}")
        code = EXIT_FAILED
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it would be tried again at the end
    sys.exit(code if isinstance(code, int) else 0)
