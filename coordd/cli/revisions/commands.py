"""`coordctl config`: publish, list, show and roll back revisions of the job definitions."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from coordd.cli.jobs import seconds
from coordd.cli.options import EXIT_FAILED, EXIT_TIMED_OUT, Failed, Group, asked, say
from coordd.errors import RefusedError

# How long to wait for a revision to come into force, and how often to look (seconds).
WAIT = "30s"
LOOK_S = 0.5

# A revision has at most this many bytes: the limit of a call on the control socket, less the rest of the call.
BYTES_MAX = 1024 * 1024 - 4096


@click.group("config", cls=Group)
def config() -> None:
    """Job definitions of the whole cluster, published as numbered revisions ([jobs] backend = "redis")."""


def waiting(command: Any) -> Any:
    """The options of a command that makes a revision."""
    command = click.option("--note", metavar="TEXT", help="Why; others see it.")(command)
    command = click.option("--no-wait", is_flag=True, help="Do not wait until it is in force.")(command)
    return click.option(
        "--wait",
        "wait_s",
        metavar="DURATION",
        default=WAIT,
        show_default=True,
        callback=seconds,
        help="Exit 124 after waiting this long.",
    )(command)


@config.command("publish")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@waiting
def publish(directory: str, note: str | None, no_wait: bool, wait_s: float) -> None:
    """Publish the job files of DIRECTORY as the next revision, and wait until it is in force.

    It comes into force on all nodes at one instant, once every node that is alive can read it. Exit 124 if that takes
    too long: the revision before stays in force, and the reasons are shown.
    """
    said = asked().call("config.publish", files=read_directory(directory), note=note)
    _made(said, no_wait, wait_s)


@config.command("rollback")
@click.argument("number", type=click.IntRange(min=1), required=False)
@waiting
def rollback(number: int | None, note: str | None, no_wait: bool, wait_s: float) -> None:
    """Publish an earlier revision again, under a new number. Without NUMBER: the last one before this change."""
    _made(asked().call("config.rollback", number=number, note=note), no_wait, wait_s)


@config.command("list")
def listed() -> None:
    """The published revisions, newest first, and what the newest waits for."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.REVISIONS, found, "Nothing was published yet: coordctl config publish DIRECTORY")

    asked().show(asked().call("config.list"), draw)


@config.command("show")
@click.argument("number", type=click.IntRange(min=1), required=False)
def show(number: int | None) -> None:
    """The job files of a revision. Without NUMBER: those in force."""

    def draw(said: Any) -> None:
        from coordd.cli.show.phrases import safe

        say(f"revision {said['number']}, {said['state']}, published by {safe(said['by'])} at {said['at']}")
        for name in sorted(said["files"]):
            click.echo(f"# ---- {safe(name)}.toml")
            click.echo("\n".join([safe(line) for line in said["files"][name].splitlines()]))

    asked().show(asked().call("config.show", number=number), draw)


def read_directory(directory: str) -> dict[str, str]:
    """The texts of the job files by job name. Raises RefusedError if they cannot be published."""
    texts, size = {}, 0
    try:
        names = sorted([name for name in os.listdir(directory) if name.endswith(".toml") and not name.startswith(".")])
        for name in names:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                texts[name.removesuffix(".toml")] = file.read(BYTES_MAX)
            size += len(texts[name.removesuffix(".toml")])
    except (OSError, UnicodeDecodeError) as exc:
        raise RefusedError(f"{directory} cannot be read: {exc}", kind="bad_job") from exc
    if not texts:
        raise RefusedError(
            f"{directory}: expected job files (*.toml), found none", kind="bad_job", hint="name another directory"
        )
    if size > BYTES_MAX:
        raise RefusedError(
            f"{directory}: expected at most {BYTES_MAX} bytes of job files, found more",
            kind="too_large",
            hint="a larger set needs [jobs] backend = files, copied to each node",
        )
    return texts


def _made(said: Any, no_wait: bool, wait_s: float) -> None:
    number = said["number"]
    parts = [f"{len(said[word])} {word}" for word in ("added", "changed", "removed") if said[word]]
    say(f"revision {number} is published: {said['jobs']} jobs ({', '.join(parts) or 'no change'})")
    if not no_wait:
        _wait(number, wait_s)
    asked().show(said, lambda _: click.echo(f"revision {number}"))


def _wait(number: int, wait_s: float) -> None:
    """Until it is in force, and this node uses it. Raises Failed with the reasons."""
    until = time.monotonic() + wait_s
    while True:
        found = next((one for one in asked().call("config.list") if one["number"] == number), None)
        state = found["state"] if found is not None else "gone"
        source = asked().call("status").get("jobs_from") or {}
        if state == "in force" and source.get("revision") == number:
            say(f"revision {number} is in force")
            return
        if found is None or state not in ("waiting", "in force"):
            raise Failed(f"revision {number} is {state}: another came after it", EXIT_FAILED, "coordctl config list")
        if time.monotonic() > until:
            why = "; ".join(found["waits"]) or source.get("problem") or "no node has put it in force yet"
            raise Failed(
                f"revision {number} is {'not used here' if state == 'in force' else 'not in force'} after {wait_s:g} s:"
                f" {why}",
                EXIT_TIMED_OUT,
                "coordctl config list; correct it and publish again, or coordctl config rollback",
            )
        time.sleep(LOOK_S)
