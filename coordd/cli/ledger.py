"""coordctl ledger: how it is, its rows as a file, the rows of a file as a ledger, and the end of a quarantine."""

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

# Rows that go to the daemon in one question: well below the longest line that it takes.
PIECE_BYTES = 256 * 1024

# The daemon writes for as long as two minutes.
IMPORT_S = 150.0

REPLACE_RISK = (
    "Every run and job that the ledger holds now is forgotten, and what the file does not know of is launched again. "
    "`coordctl ledger export` first keeps a copy."
)
IMPORT_RISK = (
    "The ledger then knows what the file says and nothing else: a run that was launched since the export is launched "
    "again, unless a node or a runner that still lives puts it back."
)
CLOSE_RISK = (
    "The ledger then answers nobody any more: nothing is launched, renewed or reported through it, on any node, until "
    "the export is imported into another ledger and the nodes are given that one. It is not opened again."
)
IDENTITY_RISK = (
    "This node then uses the ledger that [cluster] ledger names now, and forgets the one that it has used. Are both in "
    "use, by different nodes, every job runs twice. Do it only when no node uses the other one any more."
)
ACCEPT_RISK = (
    "The quarantine waits until whatever the ledger has forgotten is put back, or its lease is over. Ended now, a run "
    "that still lives somewhere, and that nobody has put back yet, is launched a second time. Do it only when no node "
    "or runner is cut off from the ledger."
)


@click.group(cls=Group)
def ledger() -> None:
    """The one authority over launches."""


@ledger.command("status")
@click.pass_context
def status(context: click.Context) -> None:
    """Where the ledger is, how safe it is, and what it holds."""
    answer = asked().call("ledger.status")

    def draw(said: Any) -> None:
        from coordd.cli.show import tables

        tables.draw_ledger(said)

    asked().show(answer, draw)
    if answer.get("state") == "unavailable":
        context.exit(EXIT_UNAVAILABLE)


@ledger.command("export")
@click.argument("file", metavar="[FILE|-]", default="-")
@click.option("--close", is_flag=True, help="Close the ledger first, to move it: it answers nobody from then on.")
@click.option("--force", is_flag=True, help="With --close: also while attempts hold leases of it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def export(file: str, close: bool, force: bool, yes: bool) -> None:
    """Every row as a line of JSON, into FILE or to stdout: all of them, or nothing and an error."""
    if force and not close:
        raise click.UsageError("--force says how to --close")
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
    """Beside its name, then under it: a file of that name is a whole one. It holds arguments: for its owner alone."""
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
@click.option("--replace", is_flag=True, help="Forget what the ledger holds now.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def import_(file: str, replace: bool, yes: bool) -> None:
    """Take the rows of an export: all of them, or none when one is wrong. A ledger that holds any is refused."""
    with tempfile.TemporaryFile() if file == "-" else _opened(file) as rows:
        if file == "-":
            shutil.copyfileobj(sys.stdin.buffer, rows)
        count = _check(rows, file)
        say(f"{count} rows, all of them sound")
        _confirm(REPLACE_RISK if replace else IMPORT_RISK, yes, can_ask=file != "-")
        answer = _send(rows, replace)
    asked().show(answer, lambda said: click.echo(f"{said['rows']} rows are in the ledger"))
    if asked().output == TABLE:
        say("a Redis ledger grants nothing for a while now: coordctl ledger status")


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as exc:
        raise Failed(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _check(file: IO[bytes], name: str) -> int:
    """How many rows there are; every one is looked at before the daemon sees the first."""
    from coordd.core.ledger.dump import checked, take_head

    file.seek(0)
    try:
        _, rest = take_head(_parsed(file))
        jobs, runs, attempts = checked(rest)
    except RefusedError as exc:
        raise Failed(f"{'stdin' if name == '-' else name}: {exc}; nothing was changed", EXIT_FAILED, exc.hint) from exc
    return len(jobs) + len(runs) + len(attempts)


def _parsed(file: IO[bytes]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise RefusedError(
                f"row {number}: not JSON: {exc}", kind="bad_row", hint="take a file that `ledger export` wrote"
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
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_epoch(yes: bool) -> None:
    """End a quarantine before its time: you know that the ledger has lost nothing that still matters."""
    _confirm(ACCEPT_RISK, yes)

    def draw(said: Any) -> None:
        from coordd.cli.show.phrases import duration

        if said["ended"]:
            click.echo(f"the quarantine is over, {duration(said['left_s'])} before its time")
        else:
            click.echo("the ledger is not recovering: nothing was changed")

    asked().show(asked().call("ledger.accept_epoch"), draw)


@ledger.command("accept-identity")
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_identity(yes: bool) -> None:
    """Use the ledger that is there now, though this node has used another one: you know that it was replaced."""
    _confirm(IDENTITY_RISK, yes)

    def draw(said: Any) -> None:
        click.echo(f"this node uses the ledger {said['identity']}; before: {said['before'] or 'none'}")
        if said["not_used"]:
            say(f"it launches nothing yet: {said['not_used']}")

    asked().show(asked().call("ledger.accept_identity"), draw)


def _confirm(risk: str, yes: bool, *, can_ask: bool = True) -> None:
    """Say what it risks; go on when a person says so."""
    say(risk)
    if yes:
        return
    if not (can_ask and _is_terminal()):
        raise click.UsageError("nothing was changed; say --yes when that is what you want")
    if not click.confirm("Go on?", err=True):
        raise Failed("nothing was changed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
