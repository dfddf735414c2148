"""coordd: the daemon, and the check of its configuration. Each command imports only what it needs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from coordd import __version__
from coordd.cli import options
from coordd.cli.crontab import import_crontab
from coordd.cli.dev.command import dev
from coordd.cli.history.command import history
from coordd.cli.keys import keys
from coordd.cli.nested.group import Nested
from coordd.cli.options import EXIT_BAD_CONFIG, EXIT_BAD_JOB, EXIT_USAGE, Finite, Strict, failed, say
from coordd.cli.setup.first import init
from coordd.errors import CoorddError

if TYPE_CHECKING:
    from coordd.config.sections import Config

# The user of the packaged unit. coordd.adapters.onhost has the same name, but is imported only on demand.
SERVICE_USER = "coordd"

# Nearly all that a daemon makes at its start stays: until it runs, a search for cycles would find little, often.
START_GC_THRESHOLD = 1_000_000

LEVELS = ("debug", "info", "warning", "error", "critical")

EPILOG = """\b
Exit codes: 0 done; 1 failed; 2 usage; 65 bad job file; 69 not available; 78 bad configuration.
\b
Shell completion, in ~/.bashrc (zsh_source and fish_source for the others):
  eval "$(_COORDD_COMPLETE=bash_source coordd)"
"""


@click.group(cls=Nested, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="coordd %(version)s")
def program() -> None:
    """Run every Spark job once, even when an edge node dies. The client is coordctl."""


@program.command("run", cls=Strict)
@click.option("--config", metavar="FILE", help="coordd.toml (or COORDD_CONFIG) [default: /etc/coordd/coordd.toml].")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, envvar="COORDD_LOG_LEVEL")
@click.pass_context
def run(context: click.Context, config: str | None, log_level: str) -> None:
    """Run the daemon in the foreground. TERM and INT stop it, HUP reloads, USR1 logs its state."""
    from coordd.adapters import logs  # first: it keeps rich out of the process

    logs.configure(level=log_level)
    from coordd.adapters.kernel.prctl import close_memory
    from coordd.config.settings import load

    close_memory()  # before it holds a secret; `doctor` says whether it is closed
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
    import gc

    gc.set_threshold(START_GC_THRESHOLD)  # Daemon._begin collects once, and sets another
    import trio

    from coordd.daemon import Daemon

    return trio.run(Daemon(config, path).run)


def _first(group: BaseExceptionGroup[CoorddError]) -> CoorddError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return cast("CoorddError", found)


@program.command("check-config", cls=Strict)
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
    if found.plug_ins:
        click.echo(f"plug-ins: {', '.join(found.plug_ins)}")


@program.command("exec", cls=Strict, context_settings={"allow_interspersed_args": False})
@click.option("--job", metavar="NAME", required=True, help="The name of the run; a job file of that name may exist.")
@click.option("--tick", metavar="CRON", help="Once per fire time of this cron line, in the cluster.")
@click.option(
    "--every", metavar="DURATION", help="Once per this period, at any time in it. Periods count from 1970-01-01T00:00Z."
)
@click.option("--id", "ident", metavar="ID", help="Once per id.")
@click.option("--timezone", metavar="ZONE", help="The time zone of --tick [default: CRON_TZ, TZ, this machine's].")
@click.option("--lease", metavar="SECONDS", type=Finite(0, min_open=True), help="[default: the cluster's]")
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
@click.option("--verbose", is_flag=True, help="Say why COMMAND is not run here.")
@click.option("--socket", metavar="PATH", help="The daemon's control socket (or COORDD_SOCKET).")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_(context: click.Context, /, tick: str | None, every: str | None, ident: str | None, **said: Any) -> None:
    """Run COMMAND on one of the machines that call this.

    With --tick, --every or --id, the callers on all machines agree on one run: one of them runs COMMAND, the others
    wait until it has ended and exit with CODE. If its machine dies, one of them takes over. Without these it is a lock:
    COMMAND is not run while a previous one runs.

    Exit codes: that of COMMAND; CODE if it was not run here; 69 no daemon; 65 a bad job file; 77 not permitted;
    2 usage.
    """
    from coordd.once.command import Options, run as run_once, say as told

    keys = {how: what for how, what in (("tick", tick), ("every", every), ("id", ident)) if what is not None}
    if len(keys) > 1:
        given = " and ".join([f"--{how}" for how in keys])
        told(f"expected one of --tick, --every and --id, found {given}: leave out all but one")
        context.exit(EXIT_USAGE)
    options = Options()
    options.job, options.command, options.code = said["job"], list(said["command"]), said["code"]
    options.lease_s, options.wait, options.verbose = said["lease"] or 0.0, said["wait"], said["verbose"]
    options.timezone, options.socket = said["timezone"] or "", said["socket"] or ""
    for how, what in keys.items():
        options.how, options.what = how, what
    context.exit(run_once(options))


program.add_command(init)
program.add_command(keys)
program.add_command(import_crontab)
program.add_command(dev)
program.add_command(history)


@program.command("version")
def version() -> None:
    """Print the version of this program, of Python and of the machine."""
    click.echo(f"coordd {__version__} (Python {sys.version.split(maxsplit=1)[0]})")


def main() -> NoReturn:
    """The program."""
    options.main(program, "coordd")
