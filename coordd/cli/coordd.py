"""coordd: the daemon, and the check of its configuration. Each command imports only what it needs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn, cast

import click

from coordd import __version__
from coordd.cli import options
from coordd.cli.crontab import import_crontab
from coordd.cli.keys import keys
from coordd.cli.options import EXIT_BAD_CONFIG, EXIT_BAD_JOB, EXIT_FAILED, Failed, failed, say
from coordd.errors import CoorddError

if TYPE_CHECKING:
    from coordd.config.sections import Config

# The user of the packaged unit. coordd.adapters.onhost has the same name, but is imported only on demand.
SERVICE_USER = "coordd"

LEVELS = ("debug", "info", "warning", "error", "critical")

EPILOG = """\b
Exit codes: 0 done; 1 failed; 2 usage; 65 bad job file; 69 not available; 78 bad configuration.
\b
Shell completion, in ~/.bashrc (zsh_source and fish_source for the others):
  eval "$(_COORDD_COMPLETE=bash_source coordd)"
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="coordd %(version)s")
def program() -> None:
    """Run every Spark job once, even when an edge node dies. The client is coordctl."""


@program.command("run")
@click.option("--config", metavar="FILE", help="coordd.toml (or COORDD_CONFIG) [default: /etc/coordd/coordd.toml].")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, envvar="COORDD_LOG_LEVEL")
@click.pass_context
def run(context: click.Context, config: str | None, log_level: str) -> None:
    """Run the daemon in the foreground. TERM and INT stop it, HUP reloads, USR1 logs its state."""
    from coordd.adapters import logs  # first: it keeps rich out of the process

    logs.configure(level=log_level)
    from coordd.config.settings import load

    try:
        code = _daemon(load(config, os.environ), config)
    except CoorddError as exc:
        raise failed(exc) from exc
    except BaseExceptionGroup as group:
        ours, others = group.split(CoorddError)
        if ours is None or others is not None:
            raise
        raise failed(_first(ours)) from group
    context.exit(code)


def _daemon(config: Config, path: str | None) -> int:
    import trio

    from coordd.daemon import Daemon

    return trio.run(Daemon(config, path).run)


def _first(group: BaseExceptionGroup[CoorddError]) -> CoorddError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return cast("CoorddError", found)


@program.command("check-config")
@click.argument("file", required=False)
@click.option(
    "--as-service",
    "user",
    metavar="[USER]",
    is_flag=False,
    flag_value=SERVICE_USER,
    help="Check as the daemon's user, which needs root [default USER: coordd].",
)
@click.pass_context
def check_config(context: click.Context, file: str | None, user: str | None) -> None:
    """Validate the configuration and every job file: prints ok, or one problem per line and exits with 78 or 65."""
    from coordd.cli.checking import look, look_as
    from coordd.cli.show.phrases import some

    if user is not None and ("/" in user or user.endswith(".toml")) and file is None:
        file, user = user, SERVICE_USER  # `--as-service FILE`
    try:
        found = look(file) if user is None else look_as(user, file)
    except CoorddError as exc:
        raise failed(exc) from exc
    for line in found.lines:
        click.echo(line)
    if found.errors:
        say(f"coordd: {some(len(found.errors), 'error')}")
        context.exit(EXIT_BAD_CONFIG if "config" in found.errors else EXIT_BAD_JOB)
    click.echo(f"ok: {found.jobs} jobs")


@program.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--job", metavar="NAME", required=True, help="The name of the run.")
@click.option("--tick", metavar="CRON", help="Once per fire time of this cron line.")
@click.option("--every", metavar="DURATION", help="Once per this duration.")
@click.option("--id", "ident", metavar="ID", help="Once per id.")
@click.option("--lease", metavar="SECONDS", type=float, help="How long the lock is held without a sign of life.")
@click.option("--wait", is_flag=True, help="Wait for the lock instead of exiting.")
@click.option(
    "-E",
    "code",
    metavar="CODE",
    type=click.IntRange(0, 255),
    default=75,
    show_default=True,
    help="The exit code if COMMAND was not run here.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(**_said: object) -> None:
    """Run COMMAND once in the cluster. Not available in this version: nothing is run."""
    raise Failed("coordd exec: not available in this version; COMMAND was not run", EXIT_FAILED)


program.add_command(keys)
program.add_command(import_crontab)


@program.command("version")
def version() -> None:
    """Print the version of this program, of Python and of the machine."""
    click.echo(f"coordd {__version__} (Python {sys.version.split(maxsplit=1)[0]})")


def main() -> NoReturn:
    """The program."""
    options.main(program, "coordd")
