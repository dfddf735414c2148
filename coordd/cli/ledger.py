"""coordctl ledger: show its status, export and import its rows, end its quarantine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import click

from coordd.cli.options import EXIT_FAILED, EXIT_UNAVAILABLE, TABLE, Failed, Group, asked, json_line, say
from coordd.errors import RefusedError

# Rows per request: well below the longest line that the daemon accepts.
PIECE_BYTES = 256 * 1024

# The daemon may write for two minutes.
IMPORT_S = 150.0

REPLACE_RISK = (
    "The ledger forgets every run and job that it holds now. Runs that the file does not contain are launched again. "
    "`coordctl ledger export` first keeps a copy."
)
IMPORT_RISK = (
    "The ledger then holds only the rows of the file. A run that was launched after the export is launched "
    "again, unless a living node or runner restores it."
)
CLOSE_RISK = (
    "The ledger then refuses every request: no node can launch, renew or report a run until "
    "the export is imported into another ledger and all nodes use that ledger. This ledger never opens again."
)
IDENTITY_RISK = (
    "This node then uses the ledger that [cluster] ledger names now, and forgets its previous ledger. If nodes still "
    "use the previous ledger, every job runs twice. Do this only when no node uses the previous ledger any more."
)
ACCEPT_RISK = (
    "The quarantine gives nodes and runners time to restore what the ledger has forgotten. If you end it now, a run "
    "that is still alive and not restored yet is launched a second time. Do this only when no node "
    "or runner is cut off from the ledger."
)


@click.group(cls=Group)
def ledger() -> None:
    """The ledger: it alone decides which node may launch a run."""


@ledger.command("status")
@click.pass_context
def status(context: click.Context) -> None:
    """Where the ledger is, how safe it is, and how many rows it holds."""
    answer = asked().call("ledger.status")

    def draw(said: Any) -> None:
        from coordd.cli.show import tables

        tables.draw_ledger(said)

    asked().show(answer, draw)
    if answer.get("state") == "unavailable":
        context.exit(EXIT_UNAVAILABLE)


@ledger.command("export")
@click.argument("file", metavar="[FILE|-]", default="-")
@click.option("--close", is_flag=True, help="Close the ledger first, to move it: it then refuses every request.")
@click.option("--force", is_flag=True, help="With --close: even while attempts hold leases.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def export(file: str, close: bool, force: bool, yes: bool) -> None:
    """Write every row as a line of JSON, to FILE or stdout: all rows, or nothing and an error."""
    if force and not close:
        raise click.UsageError("--force needs --close")
    if close:
        _confirm(CLOSE_RISK, yes)
    params = {"close": True, "force": force} if close else {}
    if file == "-":
        with tempfile.TemporaryFile() as spool:
            count = _receive(spool, params)
            spool.seek(0)
            shutil.copyfileobj(spool, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    else:
        count = _receive_into(file, params)
    say(f"{count} rows")


def _receive_into(path: str, params: dict[str, Any]) -> int:
    """Writes a file beside it first, then renames it: a file of that name is always complete. It holds arguments, so
    only its owner may read it.
    """
    draft = f"{path}.new-{os.urandom(4).hex()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            count = _receive(out, params)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, path)
    except OSError as exc:
        raise Failed(f"{path} cannot be written: {exc.strerror or exc}") from exc
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
    return count


def _receive(out: IO[bytes], params: dict[str, Any]) -> int:
    count, total = 0, -1
    for piece in asked().client.stream("ledger.export", params):
        for row in piece.get("rows", ()):
            out.write(json_line(row).encode() + b"\n")
            count += 1
        total = piece.get("total", total)
    if count != total:
        raise Failed(f"the export was not finished: {count} rows came", EXIT_UNAVAILABLE)
    return count


@ledger.command("import")
@click.argument("file", metavar="FILE|-")
@click.option("--replace", is_flag=True, help="Delete the ledger's present rows first.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def import_(file: str, replace: bool, yes: bool) -> None:
    """Import the rows of an export: all of them, or none if one is invalid. Refused if the ledger holds any row."""
    with tempfile.TemporaryFile() if file == "-" else _opened(file) as rows:
        if file == "-":
            shutil.copyfileobj(sys.stdin.buffer, rows)
        count = _check(rows, file)
        say(f"{count} rows, all of them valid")
        _confirm(REPLACE_RISK if replace else IMPORT_RISK, yes, can_ask=file != "-")
        answer = _send(rows, replace)
    asked().show(answer, lambda said: click.echo(f"{said['rows']} rows are in the ledger"))
    if asked().output == TABLE:
        say("a Redis ledger now grants nothing for a while; see: coordctl ledger status")


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as exc:
        raise Failed(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _check(file: IO[bytes], name: str) -> int:
    """Counts the rows and checks every one, before the daemon sees the first."""
    from coordd.adapters.ledger.dump import checked, take_head

    file.seek(0)
    try:
        _, rest = take_head(_parsed(file))
        jobs, runs, attempts, holds = checked(rest)
    except RefusedError as exc:
        raise Failed(f"{'stdin' if name == '-' else name}: {exc}; nothing was changed", EXIT_FAILED, exc.hint) from exc
    return len(jobs) + len(runs) + len(attempts) + len(holds)


def _parsed(file: IO[bytes]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise RefusedError(
                f"row {number}: not JSON: {exc}", kind="bad_row", hint="use a file that `ledger export` wrote"
            ) from exc


def _send(file: IO[bytes], replace: bool) -> Any:
    file.seek(0)
    piece: list[Any] = []
    size, ident = 0, ""
    for line in file:
        if size and size + len(line) > PIECE_BYTES:
            ident = asked().call("ledger.import", rows=piece, more=True, **{"import": ident})["import"]
            piece, size = [], 0
        piece.append(json.loads(line))
        size += len(line)
    params = {"rows": piece, "replace": replace, **({"import": ident} if ident else {})}
    return asked().client.call("ledger.import", params, timeout_s=IMPORT_S)


@ledger.command("accept-epoch")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def accept_epoch(yes: bool) -> None:
    """End a quarantine early: you know that the ledger has lost nothing that still matters."""
    _confirm(ACCEPT_RISK, yes)

    def draw(said: Any) -> None:
        from coordd.cli.show.phrases import duration

        if said["ended"]:
            click.echo(f"the quarantine is over, {duration(said['left_s'])} before its time")
        else:
            click.echo("the ledger is not recovering: nothing was changed")

    asked().show(asked().call("ledger.accept_epoch"), draw)


@ledger.command("accept-identity")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def accept_identity(yes: bool) -> None:
    """Use the ledger that answers now, although this node has used another one: you know that it was replaced."""
    _confirm(IDENTITY_RISK, yes)

    def draw(said: Any) -> None:
        click.echo(f"this node uses the ledger {said['identity']}; before: {said['before'] or 'none'}")
        if said["not_used"]:
            say(f"it launches nothing yet: {said['not_used']}")

    asked().show(asked().call("ledger.accept_identity"), draw)


def _confirm(risk: str, yes: bool, *, can_ask: bool = True) -> None:
    """Show the risk, and continue only if the person confirms."""
    say(risk)
    if yes:
        return
    if not (can_ask and _is_terminal()):
        raise click.UsageError("nothing was changed; repeat with --yes to confirm")
    if not click.confirm("Go on?", err=True):
        raise Failed("nothing was changed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
