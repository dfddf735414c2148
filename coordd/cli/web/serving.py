"""Starts the pages, or asks running ones for another address."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
import trio

from coordd.cli.options import Failed, asked, say
from coordd.cli.web.door import Door
from coordd.cli.web.http import Server
from coordd.cli.web.site import Site
from coordd.cli.web.source import Source

HOST = "127.0.0.1"

# Bytes of an address that a running coordctl web prints, and how long (seconds) to wait for them.
ADDRESS_BYTES_MAX = 512
ADDRESS_S = 5.0


def serve(port: int) -> None:
    """Serve until Ctrl-C. ``port`` 0: any free one. Raises Failed."""
    asked().call("ping")  # without a daemon there is nothing to see
    try:
        trio.run(_serve, asked().socket, port)
    except* KeyboardInterrupt:
        say("coordctl web has ended")


async def _serve(path: str, port: int) -> None:
    try:
        [listener] = await trio.open_tcp_listeners(port, host=HOST)
    except OSError as exc:
        raise Failed(
            f"coordctl web: {HOST}:{port} cannot be opened: {exc.strerror}; --port 0 takes a free one"
        ) from exc
    port = listener.socket.getsockname()[1]
    door, source = Door(port, lambda: secrets.token_urlsafe(32)), Source(path)
    site = Site(source, door)
    with _local_socket(port) as local:
        say(f"coordctl web listens on {HOST}:{port}; this address opens it once, in one browser:")
        click.echo(address(port, door))
        say("Ctrl-C ends it; coordctl web --print-token prints another address")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.hear)
            nursery.start_soon(_print_tokens, local, port, door)
            nursery.start_soon(Server(site.handle, _failed).serve, listener)


def address(port: int, door: Door) -> str:
    """An address that opens a session."""
    return f"http://{HOST}:{port}{door.root}/?token={door.token()}"


def _failed(exc: BaseException) -> None:
    traceback.print_exception(exc, file=sys.stderr)


# ---- another token, from the same person only


def _folder() -> Path:
    """Where running pages of this user can be asked: nobody else can come in. Raises Failed."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given, "coordctl-web") if given else Path("/tmp", f"coordctl-web-{os.getuid()}")  # noqa: S108 - its owner and mode are checked
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise Failed(f"coordctl web: {folder} must belong to uid {os.getuid()} with mode 0700; remove it")
    return folder


@contextlib.contextmanager
def _local_socket(port: int) -> Iterator[trio.SocketListener]:
    """The socket of the pages on one port; removed at the end."""
    path = _folder() / f"{port}.sock"
    path.unlink(missing_ok=True)  # of a process that was killed: the port is ours now
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(4)
        try:
            yield trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        finally:
            path.unlink(missing_ok=True)


async def _print_tokens(local: trio.SocketListener, port: int, door: Door) -> None:
    """Give another address to each client that is the same user."""

    async def give(stream: trio.SocketStream) -> None:
        _, uid, _ = struct.unpack("3i", stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        with trio.move_on_after(ADDRESS_S):
            if uid == os.getuid():
                await stream.send_all(address(port, door).encode())
            await stream.aclose()

    await trio.serve_listeners(give, [local])


def print_tokens(port: int) -> None:
    """Print another address of the pages on this port; 0: of all that run. Raises Failed."""
    found = 0
    for path in sorted(_folder().glob(f"{port or '*'}.sock")):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(ADDRESS_S)
            try:
                sock.connect(str(path))
                click.echo(sock.recv(ADDRESS_BYTES_MAX).decode())
                found += 1
            except OSError:
                path.unlink(missing_ok=True)  # it was killed
    if not found:
        raise Failed(
            "coordctl web: none is running" + (f" on port {port}" if port else "") + "; start one: coordctl web"
        )
