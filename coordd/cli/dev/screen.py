"""What `coordd dev` shows: a live table at a terminal, lines of events for a program."""

from __future__ import annotations

import os
import select
import sys
import time

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from coordd.cli.client import Client
from coordd.cli.dev.cluster import Cluster, Node
from coordd.cli.show import tables
from coordd.cli.show.brief import event_text
from coordd.cli.show.watch import Screen, keys
from coordd.errors import UnavailableError

REFRESH_S = 0.5
ANSWER_S = 2.0

# Lines above the screen of `coordctl watch`.
HEAD_LINES = 4

# The newest events that were printed: another node tells them once more when we begin to ask it.
PRINTED_KEPT = 2000


class Eyes:
    """The cluster as one of its nodes sees it: the first that runs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node: Node | None = None
        self._screen: Screen | None = None

    def screen(self) -> Screen:
        """The screen of a node that runs. Raises UnavailableError if every node was ended by somebody else."""
        if self._screen is None or self.node is None or not self.node.up or self._screen.trouble:
            found = next((node for node in self.cluster.nodes if node.up and node is not self.node), self.node)
            self.close()
            self.node = found or self.cluster.nodes[0]
            self._screen = Screen(Client(self.node.socket, ANSWER_S))
        return self._screen

    def close(self) -> None:
        if self._screen is not None:
            self._screen.client.close()
            self._screen.listener.close()
            self._screen = None


def show(cluster: Cluster) -> None:
    """Show the cluster until somebody ends it. Raises UnavailableError if it ends by itself."""
    eyes = Eyes(cluster)
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            _live(cluster, eyes)
        else:
            _lines(cluster, eyes)
    finally:
        eyes.close()


def _live(cluster: Cluster, eyes: Eyes) -> None:
    """Digits cut the power of a node, or start it again; q ends the cluster."""
    console = tables.console()
    with keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while not cluster.ending.asked():
            cluster.tend()
            screen = eyes.screen()
            screen.look()
            screen.hear()
            live.update(Group(*_head(cluster), screen.draw(console.size.height - HEAD_LINES)), refresh=True)
            for key in _pressed(cluster, REFRESH_S):
                if key in "qQ":
                    return
                if key.isdigit() and 0 < int(key) <= len(cluster.nodes):
                    cluster.toggle(cluster.nodes[int(key) - 1])


def _head(cluster: Cluster) -> list[RenderableType]:
    nodes = [
        f"{node.name} {f'pid {node.process.pid}' if node.up and node.process else 'off'}" for node in cluster.nodes
    ]
    first = cluster.nodes[0].socket
    return [
        Text.assemble(("coordd dev ", "bold"), f"{cluster.place} · jobs: {cluster.jobs} · {' · '.join(nodes)}"),
        Text(f"another terminal: export COORDD_SOCKET={first}; coordctl run trigger long", style="dim"),
        Text(f"keys: 1-{len(cluster.nodes)} cut the power of a node, or start it again; q or ^C ends all", style="dim"),
        Text(""),
    ]


def _lines(cluster: Cluster, eyes: Eyes) -> None:
    """One event a line."""
    looked_at = 0.0
    printed: dict[tuple[object, ...], None] = {}
    while not cluster.ending.asked():
        cluster.tend()
        if not any(node.up for node in cluster.nodes):
            raise UnavailableError("every node of the cluster has ended; start coordd dev again")
        screen = eyes.screen()
        if time.monotonic() - looked_at > REFRESH_S:
            looked_at = time.monotonic()
            screen.look()
        screen.hear()
        while screen.events:
            event = screen.events.popleft()
            name = tuple(event.get(key) for key in ("hostname", "incarnation", "clock", "type", "run"))
            if name not in printed:
                printed[name] = None
                click.echo(event_text(event, colour=False))
        while len(printed) > PRINTED_KEPT:
            del printed[next(iter(printed))]
        heard = [screen.listener.fileno()] if screen.listener.fileno() >= 0 else []
        select.select([cluster.ending.wake, *heard], [], [], REFRESH_S)


def _pressed(cluster: Cluster, seconds: float) -> str:
    """The keys that were pressed, waiting for ``seconds`` at most."""
    ready = select.select([sys.stdin, cluster.ending.wake], [], [], seconds)[0]
    if sys.stdin not in ready:
        return ""
    return os.read(sys.stdin.fileno(), 64).decode(errors="replace") or "q"
