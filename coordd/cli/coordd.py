"""coordd: the daemon, and what checks its configuration. Each command imports no more than it needs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn, cast

import click

from coordd import __version__
from coordd.cli import options
from coordd.cli.keys import keys
from coordd.cli.options import EXIT_BAD_CONFIG, EXIT_BAD_JOB, EXIT_FAILED, Failed, failed, say

if TYPE_CHECKING:
    from coordd.config import Config
    from coordd.errors import CoorddError

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
    """The daemon, in the foreground. TERM and INT stop it, HUP reloads, USR1 logs its state."""
    from coordd.adapters import logs  # first: it keeps rich out of the process

    logs.configure(level=log_level)
    from coordd.config import load
    from coordd.errors import CoorddError

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
@click.pass_context
def check_config(context: click.Context, file: str | None) -> None:
    """Validate the configuration and every job file: one problem a line, exit 78 or 65; or a line that says ok."""
    from coordd.cli.phrases import some
    from coordd.config import read_config
    from coordd.jobfile import check, load_jobs
    from coordd.safety import warnings

    config, _ = read_config(file, os.environ)
    problems = [*(warnings(config) if config else []), *check(file, os.environ)]
    for problem in problems:
        click.echo(str(problem))
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        say(f"coordd: {some(len(errors), 'error')}")
        context.exit(EXIT_BAD_CONFIG if any(error.kind == "config" for error in errors) else EXIT_BAD_JOB)
    assert config is not None, "its problems are errors"
    click.echo(f"ok: {len(load_jobs(config.node.jobs_dir, config).jobs)} jobs")


@program.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--job", metavar="NAME", required=True, help="What the run is known by.")
@click.option("--tick", metavar="CRON", help="Once per time of this cron line.")
@click.option("--every", metavar="DURATION", help="Once per this long.")
@click.option("--id", "ident", metavar="ID", help="Once per id.")
@click.option("--lease", metavar="SECONDS", type=float, help="How long it is held without a word.")
@click.option("--wait", is_flag=True, help="Wait for the lock instead of leaving.")
@click.option("-E", "code", metavar="CODE", type=click.IntRange(0, 255), default=75, show_default=True,
              help="The exit code when it was not run here.")  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(**_said: object) -> None:
    """Run COMMAND once in the cluster. Not available in this version: nothing is run."""
    raise Failed("coordd exec: not available in this version; COMMAND was not run", EXIT_FAILED)


program.add_command(keys)


@program.command("version")
def version() -> None:
    """The version of this program and of what it runs on."""
    click.echo(f"coordd {__version__} (Python {sys.version.split(maxsplit=1)[0]})")


def main() -> NoReturn:
    """The program."""
    options.main(program, "coordd")
