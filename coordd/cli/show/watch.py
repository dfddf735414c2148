"""coordctl watch: nodes, active runs and recent events, refreshed as they change."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from coordd.cli.client import Client
from coordd.cli.show import tables
from coordd.cli.show.brief import event_text
from coordd.cli.show.phrases import safe, some
from coordd.core.ledger.words import PENDING, RECEIVED, RETRY, STARTED, TERMINAL, UNKNOWN
from coordd.errors import CoorddError, RefusedError, UnavailableError

# What each refresh asks for, and how much of it is kept for the screen. The limit of runs is for each state: viewers
# are told no more.
RUNS_LOOKED_AT = 100
EVENTS_KEPT = 200
ENDED_SHOWN = 5

# The states of active runs: those that run are shown first.
ACTIVE = (STARTED, RECEIVED, UNKNOWN, RETRY, PENDING)

# The daemon sends all past events in one burst; after this silence (seconds) the burst is over.
QUIET_S = 0.3

# Heartbeats would push everything else off the screen.
DULL = frozenset(("worker-heartbeat", "worker-beat", "worker-hello-reply"))


class Screen:
    """The latest known state of the cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.listener = Client(client.path)
        self.status: dict[str, Any] = {}
        self.nodes: list[dict[str, Any]] = []
        self.active: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.more = False  # there may be more active runs
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.trouble = ""
        self._messages: Iterator[dict[str, Any]] | None = None

    def look(self) -> None:
        """Ask for everything once; a part that cannot be had keeps its old value, with a note."""
        try:
            self.status = self.client.call("status")
            self.nodes = self.client.call("node.list")
            self._look_at_runs()
            if self._messages is None:
                self._messages = self.listener.stream("events.subscribe", {"backlog": EVENTS_KEPT})
            self.trouble = ""
        except (UnavailableError, RefusedError) as exc:
            self.trouble = str(exc)

    def _look_at_runs(self) -> None:
        """A run that has run for long is not among the newest runs: so each state is asked for."""
        found: dict[str, dict[str, Any]] = {}
        more = False
        for state in ACTIVE:
            about: dict[str, Any] = {"state": state, "limit": RUNS_LOOKED_AT}
            runs = self.client.call("run.list", about | ({"progress": True} if state == STARTED else {}))
            more |= len(runs) >= RUNS_LOOKED_AT
            found |= {run["id"]: run for run in runs if run["id"] not in found}
        newest = self.client.call("run.list", {"limit": RUNS_LOOKED_AT})
        # Also invalid rows, which are in no state, and what has changed its state meanwhile.
        found |= {run["id"]: run for run in newest if run["state"] not in TERMINAL and run["id"] not in found}
        ended = [run for run in newest if run["state"] in TERMINAL and run["id"] not in found]
        self.active, self.ended, self.more = list(found.values()), ended[:ENDED_SHOWN], more

    def hear(self, quiet_s: float = 0.0) -> None:
        """Take the events that have arrived, until none arrives for ``quiet_s``."""
        try:
            while self._messages is not None and self._heard(quiet_s):
                item = next(self._messages, None)
                if item is None:
                    raise UnavailableError("the daemon has ended the stream of events")
                if "event" in item and item["event"].get("type") not in DULL:
                    self.events.append(item["event"])
        except CoorddError as exc:
            self.trouble = str(exc)
            self.listener.close()
            self._messages = None  # the next refresh subscribes again

    def _heard(self, quiet_s: float) -> bool:
        if self.listener.waiting():
            return True
        return self.listener.fileno() >= 0 and bool(select.select([self.listener], [], [], quiet_s)[0])

    def draw(self, height: int | None) -> RenderableType:
        """The whole screen, cut to the height of the terminal."""
        now = time.time()
        active, ended = self.active, self.ended
        parts: list[RenderableType] = [self._head()]
        if self.trouble:
            parts.append(Text(safe(self.trouble), style="bold red"))
        room = 1000 if height is None else max(6, height - 16 - len(ended))
        nodes, runs = self.nodes[: room // 3 or 1], active[: room // 3 or 1]
        parts.append(tables.table(tables.NODES[:5], nodes, now=now, title=_title("nodes", nodes, self.nodes)))
        shown = (
            _title("active runs", runs, active, more=self.more) if active else "no active runs; the latest ended runs"
        )
        parts.append(tables.table(tables.WATCHED, [*runs, *ended], now=now, title=shown))
        lines = max(3, room - len(nodes) - len(runs))
        recent = list(self.events)[-lines:]
        parts.append(Text("events", style="italic"))
        parts += [Text(event_text(event, colour=False), no_wrap=True, overflow="ellipsis") for event in recent]
        return Group(*parts)

    def _head(self) -> Text:
        if not self.status:
            return Text("coordd", style="bold")
        members, runs = self.status["members"], self.status["runs"]
        return Text.assemble(
            (f"{safe(self.status['cluster'])} ", "bold"),
            f"seen from {safe(self.status['node'])}, which is ",
            tables.stated(self.status["state"]),
            f" · {some(members['alive'], 'node')} alive",
            f" · {some(runs['active'], 'run')} active here · ledger ",
            tables.stated(self.status["ledger"]["state"]),
            "   ",
            ("q quits", "dim"),
        )


def _title(name: str, shown: list[Any], of: list[Any], *, more: bool = False) -> str:
    if len(shown) == len(of) and not more:
        return name
    return f"{name} ({len(shown)} of {'at least ' if more else ''}{len(of)})"


def once(client: Client) -> None:
    """Print once, for a pipe or a file. Raises UnavailableError when no daemon is there."""
    client.call("ping")
    screen = Screen(client)
    with screen.listener:
        screen.look()
        screen.hear(QUIET_S)
        tables.show(screen.draw(None))


def watch_terminal(path: str, interval_s: float) -> None:
    """Draw until q or Ctrl-C. Raises UnavailableError when no daemon is there at the start."""
    client = Client(path)
    client.call("ping")
    screen = Screen(client)
    console = tables.console()
    with keys(), contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            screen.look()
            screen.hear()
            live.update(screen.draw(console.size.height), refresh=True)
            if _quit_within(interval_s):
                return


def _quit_within(seconds: float) -> bool:
    """Wait for the next refresh, or for the key that ends it."""
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0]:
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys or b"q" in keys.lower():
                return True
    return False


@contextlib.contextmanager
def keys() -> Iterator[None]:
    """Keys as they are pressed, without the Enter key and without an echo."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
