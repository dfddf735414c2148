"""coordd init: coordd.toml, a first job, and for a cluster its keyring, its password and the set-up of its Redis."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterator

import click

from coordd.cli.options import EXIT_FAILED, Failed, Strict, say

# What the password of Redis is made of; in hex.
PASSWORD_BYTES = 32

DIRECTORY = "/etc/coordd"

HEAD = "# Made by coordd init. All settings with their defaults: man coordd.toml\n"
ELSEWHERE = """
[node]
jobs_dir = "{directory}/jobs.d"
"""
CLUSTER = """
[cluster]
name = "{name}"
bus = "redis://{redis}/0"
ledger = "redis://{redis}/0"
bus_password_file = "{directory}/redis.password"
ledger_password_file = "{directory}/redis.password"
keyring = "{directory}/keys.toml"
# Messages are signed, but password and messages cross the network in clear. Where others can listen: rediss://, tls_ca.
allow_insecure = true
"""
HELLO = """\
# A first job, run by hand: coordctl run trigger hello --wait
description = "says where it runs"
overlap = "allow"

[command]
argv = ["/bin/sh", "-c", "echo hello from $COORDD_NODE"]
"""

# What a ledger needs of its Redis: every write on the disk before it is acknowledged, and nothing evicted.
REDIS = (
    'config set bind "* -::*"',
    "config set requirepass {password}",
    "config set appendonly yes",
    "config set appendfsync always",
    "config set maxmemory-policy noeviction",
    "config rewrite",
)

ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", re.ASCII)


@click.command("init", cls=Strict)
@click.option("--redis", metavar="HOST[:PORT]", help="A cluster: the machine whose Redis is its bus and its ledger.")
@click.option("--name", metavar="NAME", default="prod", show_default=True, help="With --redis: the cluster's name.")
@click.option(
    "--to", "directory", metavar="DIR", default=DIRECTORY, show_default=True, help="Where the files are written."
)
def init(redis: str | None, name: str, directory: str) -> None:
    """Write a first configuration and a first job; nothing that exists is overwritten.

    With --redis the files are those of a cluster: make them on one machine, and copy the directory to the others. The
    commands that set up Redis are printed, for `| redis-cli`: they hold the new password.
    """
    directory = os.path.abspath(directory)
    if redis is not None and not _is_address(redis):
        expected = "expected HOST or HOST:PORT, with a port from 1 to 65535"
        raise click.BadParameter(f"{expected}, found {redis!r}", param_hint="--redis")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,62}", name):
        raise click.BadParameter(f"expected a name such as prod, found {name!r}", param_hint="--name")
    password = secrets.token_hex(PASSWORD_BYTES)
    files = list(_files(redis, name, directory, password))
    there = [path for path, _, _ in files if os.path.lexists(path)]
    if there:
        hint = "change these files by hand, or choose another directory with --to"
        raise Failed(f"{there[0]} exists already; nothing was written", EXIT_FAILED, hint)
    written: list[str] = []
    try:
        for path, text, mode in files:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            _write(path, text, mode)
            written.append(path)
    except OSError as exc:
        for path in written:
            os.unlink(path)  # half of it would block the next try
        raise Failed(f"{exc.filename or directory} cannot be written: {exc.strerror or exc}") from exc
    for path in written:
        say(f"wrote {path}")
    # The packaged unit reads the usual directory.
    start = "systemctl enable --now coordd"
    if directory != DIRECTORY:
        start = f"coordd run --config {shlex.quote(f'{directory}/coordd.toml')}"
    if redis is None:
        say(f"next: {start}")
        return
    for line in REDIS:
        click.echo(line.format(password=password))
    say(f"next: {start}; the same directory on every other node")


def _is_address(redis: str) -> bool:
    """True for a host, or host and port, that the configuration accepts."""
    from coordd.config.addresses import check

    try:
        check(f"redis://{redis}/0", ("redis",))
    except ValueError:
        return False
    return ADDRESS.fullmatch(redis) is not None


def _files(redis: str | None, name: str, directory: str, password: str) -> Iterator[tuple[str, str, int]]:
    """(path, text, mode) of each file."""
    from coordd.cli.keys import first_keyring
    from coordd.config.keyring import render

    head = HEAD + ("" if directory == DIRECTORY else ELSEWHERE.format(directory=directory))
    if redis is None:
        yield f"{directory}/coordd.toml", head, 0o644
    else:
        address = redis if re.search(r":[0-9]+$", redis) else f"{redis}:6379"
        yield f"{directory}/coordd.toml", head + CLUSTER.format(name=name, redis=address, directory=directory), 0o644
        yield f"{directory}/redis.password", f"{password}\n", 0o640
        yield f"{directory}/keys.toml", render(first_keyring()), 0o640
    yield f"{directory}/jobs.d/hello.toml", HELLO, 0o644


def _write(path: str, text: str, mode: int) -> None:
    """A new file, on the disk. A secret is the caller's alone; root's may be read by the daemon's group."""
    from coordd.adapters import onhost

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        service = onhost.service_user() if os.geteuid() == 0 else None
        if mode & 0o004:
            os.fchmod(fd, mode)
        elif service is not None:
            os.fchown(fd, 0, service.pw_gid)
            os.fchmod(fd, mode)
        file.write(text)
        file.flush()
        os.fsync(fd)
