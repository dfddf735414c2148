"""Two clusters under load: their triggers, restarts and measurements."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from bench.cluster import Cluster, Node, memory_mb, until
from support import servers

from soak.bounds import HISTORY, LEAK, OF_A_DAEMON, OF_A_LEDGER, RESTART_EVERY_S, SITE, TRIGGER_EVERY_S
from soak.judge import Figure

TOP = Path(__file__).parents[2]

JOBS = {
    "quick": '[command]\nargv = ["/bin/echo", "{run}"]\n',
    "tick": 'schedule = "every 5s"\n[command]\nargv = ["/bin/true"]\n',
    "fails": '[command]\nargv = ["/bin/false"]\n',
}


class Soaked:
    """One cluster under load. The first daemon is never restarted: it shows growth. The others restart."""

    def __init__(self, name: str, nodes: Cluster, env: dict[str, str], ledger: Callable[[], dict[str, float]]) -> None:
        self.name = name
        self.nodes = nodes
        self._env = env
        self._ledger = ledger
        self.samples: dict[str, list[tuple[float, float]]] = {}
        self.triggered = self.refused = self.restarts = 0
        self._trigger_at = self._restart_at = 0.0
        self._next_node = 0

    def start(self) -> None:
        """All daemons, until each knows the others."""
        for node in self.nodes.nodes:
            node.start(**self._env)
        for node in self.nodes.nodes:
            until(partial(node.ready, len(self.nodes.nodes)), f"{node.name} is ready")

    def go_on(self, at: float) -> None:
        """Do what is due: a trigger, a restart."""
        if at >= self._trigger_at:
            self._trigger_at = at + TRIGGER_EVERY_S
            self._trigger()
        if at >= self._restart_at + RESTART_EVERY_S:
            self._restart_at = at
            self._restart()

    def sample(self, at: float) -> None:
        """Measure everything."""
        for node in self.nodes.nodes:
            for figure, value in _of_daemon(node).items():
                # A restart resets these figures; they make a line only for the daemon that is never restarted.
                if node is self.nodes.nodes[0] or figure not in ("RSS", "blocks", "descriptors", "threads"):
                    self.samples.setdefault(f"{node.name} {figure}", []).append((at, value))
        for figure, value in self._ledger().items():
            self.samples.setdefault(f"ledger {figure}", []).append((at, value))

    def figures(self) -> Iterator[tuple[str, Figure, Sequence[tuple[float, float]]]]:
        """(place, figure, samples) of all that was measured."""
        known = {figure.name: figure for figure in OF_A_DAEMON}
        for key, samples in self.samples.items():
            place, _, name = key.partition(" ")
            of = {figure.name: figure for figure in OF_A_LEDGER} if place == "ledger" else known
            yield f"{self.name} {place}", of[name], samples

    def _trigger(self) -> None:
        self.triggered += 1
        node = self.nodes.nodes[self.triggered % len(self.nodes.nodes)]
        try:
            job = "fails" if self.triggered % 10 == 0 else "quick"
            node.call("run.trigger", job=job, id=str(self.triggered))
        except (OSError, RuntimeError, ValueError):  # it is being restarted, or the runs before are not over
            self.refused += 1

    def _restart(self) -> None:
        others = self.nodes.nodes[1:]
        if not others:
            return
        node = others[self._next_node % len(others)]
        self._next_node += 1
        self.restarts += 1
        if self.restarts % 2:
            node.stop()
        else:
            assert node.process is not None
            node.process.kill()
            node.process.wait()
        node.start(**self._env)


def _of_daemon(node: Node) -> dict[str, float]:
    state_dir, found = f"{node.runtime_dir[: -len('run0')]}state{node.runtime_dir[-1]}", dict[str, float]()
    with contextlib.suppress(OSError, KeyError):  # it is being restarted
        found = {
            "RSS": memory_mb(node.pid)[0],
            "descriptors": len(os.listdir(f"/proc/{node.pid}/fd")),
            "threads": len(os.listdir(f"/proc/{node.pid}/task")),
        }
    with contextlib.suppress(OSError):
        found["blocks"] = float(Path(node.config).with_name("site").joinpath(str(node.pid)).read_text())
    files = _files(f"{state_dir}/journal")
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        backlog = node.call("status")["backlog"]
        found["outbox"] = float(backlog["waiting"] + backlog["in_flight"]) if backlog else 0.0
    return found | {
        "journal": sum(files) / 1e3,
        "journal files": len(files),
        "log files": len(_files(f"{state_dir}/logs")),
        "runners' directories": len(_names(f"{node.runtime_dir}/runs")),
    }


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _files(directory: str) -> list[int]:
    """The sizes of all files below."""
    sizes = []
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(os.path.getsize(os.path.join(parent, name)))
    return sizes


def _of_rows(nodes: Cluster) -> dict[str, float]:
    """Runs that the ledger holds, and how long ago the oldest of them ended."""
    rows = nodes.nodes[0].call("run.list", limit=10_000)
    ended = [datetime.fromisoformat(row["ended_at"]).timestamp() for row in rows if row["ended_at"]]
    return {"runs": len(rows), "oldest end": time.time() - min(ended) if ended else 0.0}


@contextlib.contextmanager
def embedded(root: Path, *, leak: bool = False) -> Iterator[Soaked]:
    """Two daemons of one machine: a unix bus, and SQLite."""
    path = root / "ledger.db"

    def ledger() -> dict[str, float]:
        size = sum(file.stat().st_size for file in root.glob("ledger.db*"))
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            [count] = db.execute("SELECT count(*) FROM attempts").fetchone()
        return {**_of_rows(nodes), "size": size / 1e3, "keys": count}

    nodes = _cluster(root, 2, "", f"unix://{root}/bus", f"sqlite:///{path}")
    with _running("one machine", root, nodes, ledger, leak) as soaked:
        yield soaked


@contextlib.contextmanager
def production(root: Path, *, leak: bool = False) -> Iterator[Soaked]:
    """Three daemons, RabbitMQ and Redis; envelopes are signed."""
    keys = root / "keys.toml"
    command = [sys.executable, "-m", "coordd", "keys", "new", "--output", str(keys)]
    subprocess.run(command, cwd=TOP, check=True, capture_output=True, timeout=60)
    with servers.redis() as redis, servers.rabbit() as rabbit:

        def ledger() -> dict[str, float]:
            memory = next(line for line in redis.cli("INFO", "memory").split() if line.startswith("used_memory:"))
            return {**_of_rows(nodes), "size": int(memory.partition(":")[2]) / 1e3, "keys": float(redis.cli("DBSIZE"))}

        nodes = _cluster(root, 3, f'name = "soak"\nkeyring = "{keys}"', rabbit.url, redis.url)
        with _running("cluster", root, nodes, ledger, leak) as soaked:
            yield soaked


def _cluster(root: Path, count: int, cluster_lines: str, bus: str, ledger: str) -> Cluster:
    return Cluster(str(root), count, JOBS, f"{cluster_lines}\n{HISTORY}", bus, ledger)


@contextlib.contextmanager
def _running(
    name: str, root: Path, nodes: Cluster, ledger: Callable[[], dict[str, float]], leak: bool
) -> Iterator[Soaked]:
    site = root / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE + LEAK * leak)
    soaked = Soaked(name, nodes, {"PYTHONPATH": f"{site}:{TOP}"}, ledger)
    try:
        soaked.start()
        yield soaked
    finally:
        for node in nodes.nodes:
            node.stop()
        nodes.end_runs()
