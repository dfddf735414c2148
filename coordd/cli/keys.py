"""coordd keys: create the cluster's keyring, rotate it, and show it without its secrets."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from coordd.cli.options import EXIT_FAILED, Failed, Strict, failed, say
from coordd.errors import CoorddError

if TYPE_CHECKING:
    from coordd.core.wire.envelope import Key, Keyring


@click.group("keys")
def keys() -> None:
    """The keyring that signs the messages between the nodes."""


@keys.command("new", cls=Strict)
@click.option("--output", metavar="FILE", help="Path of the new file [default: the configuration's keyring].")
def new(output: str | None) -> None:
    """Create a keyring with one new key. An existing file is never overwritten."""
    from coordd.adapters.disk.files import sync_directory
    from coordd.config.keyring import render

    path = output or _path()
    ring = first_keyring()
    data = render(ring).encode()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError as exc:
        hint = "to change the keys of a cluster that runs: coordd keys rotate"
        raise Failed(f"{path} exists already, and is not overwritten", EXIT_FAILED, hint) from exc
    except (OSError, ValueError) as exc:
        raise Failed(f"{path} cannot be written: {getattr(exc, 'strerror', None) or exc}") from exc
    try:
        with open(fd, "wb") as file:
            _give_to_the_daemon(fd)
            file.write(data)
            file.flush()
            os.fsync(fd)
        sync_directory(os.path.dirname(path) or ".")
    except OSError as exc:
        os.unlink(path)  # a partial keyring would block the next try
        raise Failed(f"{path} cannot be written: {exc.strerror or exc}") from exc
    _show(path, ring, {ring.keys[0].id: "new, signs"})
    say(f"next: copy {path} to every node (mode 0600, owned by the daemon's user)")


@keys.command("rotate", cls=Strict)
@click.argument("file", required=False)
def rotate(file: str | None) -> None:
    """Move the keyring one step on: a new key is accepted; it signs; the old one is retired.

    After each step, copy the file to every node and reload it; then no message is ever refused. The file itself says
    which step is next.
    """
    from coordd.adapters.disk.files import write_atomic
    from coordd.config import keyring

    path = os.path.realpath(file or _path())  # if the path is a symbolic link, it stays one
    before = _loaded(path)
    fresh = _fresh()
    while any(key.id == fresh.id for key in before.keys):
        fresh = _fresh()
    step = keyring.rotate(before, fresh)
    try:
        owner = os.stat(path)
        if os.geteuid() not in (0, owner.st_uid):
            raise Failed(
                f"{path} belongs to another user, who could not read the new file: run this command as its owner"
            )
        # With its owner and mode before it has its name: the daemon may read it at any moment.
        write_atomic(path, keyring.render(step.keyring).encode(), like=owner)
    except OSError as exc:
        raise Failed(f"{path} cannot be written: {exc.strerror or exc}") from exc
    _show(path, step.keyring, step.did)
    say(f"step {step.number} of 3; next: {step.next}")


@keys.command("list", cls=Strict)
@click.argument("file", required=False)
def list_(file: str | None) -> None:
    """The keys with their states; never their secrets."""
    path = file or _path()
    _show(path, _loaded(path), {})


def first_keyring() -> Keyring:
    """A keyring with one new key, which signs."""
    from coordd.core.wire.envelope import SIGN, Keyring

    return Keyring((_fresh()._replace(state=SIGN),))


def _loaded(path: str) -> Keyring:
    from coordd.adapters import onhost
    from coordd.config import keyring

    onhost.trust_service()
    try:
        return keyring.load(path, os.environ)
    except CoorddError as exc:
        raise failed(exc) from exc


def _path() -> str:
    from coordd.config.settings import keyring_path

    return keyring_path(os.environ)


def _fresh() -> Key:
    from coordd.core.wire.envelope import ACCEPT, SECRET_BYTES_MIN, Key

    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Key(secrets.token_hex(4), ACCEPT, secrets.token_bytes(SECRET_BYTES_MIN), made)


def _give_to_the_daemon(fd: int) -> None:
    """The daemon's user must be able to read files that root creates."""
    from coordd.adapters import onhost

    user = onhost.service_user() if os.geteuid() == 0 else None
    if user is not None:
        os.fchown(fd, user.pw_uid, user.pw_gid)


def _show(path: str, ring: Keyring, did: dict[str, str]) -> None:
    from coordd.cli.show import tables

    columns = [
        tables.Column("KEY", tables.text("id"), whole=True),
        tables.Column("STATE", tables.state()),
        tables.Column("MADE", tables.text("made")),
    ]
    if did:
        columns.append(tables.Column("CHANGE", tables.text("did")))
    rows = [{"id": key.id, "state": key.state, "made": key.made, "did": did.get(key.id, "")} for key in ring.keys]
    tables.draw(columns, rows, f"{path} holds no key")
