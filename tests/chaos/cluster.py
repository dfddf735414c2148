"""The cluster under chaos: each daemon, the broker, each Redis and each sentinel in a namespace of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import servers
from support.netns import inside
from support.skew import skew_library, skewed
from system.lab.cluster import Cluster, Node
from system.lab.processes import processes

from chaos.net import Net

PAYLOAD = Path(__file__).with_name("payload")
BROKER = "mq"
SENTINEL_HOSTS = ("r1", "r2", "r3", "s1", "s2", "s3")
LEDGER_HOSTS = {"redis": ("r1",), "sentinel": SENTINEL_HOSTS}
SETUPS = tuple(LEDGER_HOSTS)

# As short as the configuration allows, with enough kill_grace for a program to end.
TIMING = {"lease": 8.0, "renew": 1.0, "ledger_timeout": 1.0, "kill_grace": 3.0, "heartbeat": 1.0}

STATE_DISK = "size=32m"  # of each node's own disk; a small disk is filled at once
RUNTIME_DISK = "size=8m"
BALLAST = "ballast"
PATIENCE_S = 4.0  # seconds that a client waits for one node
BUDGET = 12

# A Redis that lost its replicas refuses writes after min_replicas_max_lag. This limits the loss in a failover.
SENTINEL_SETTINGS: dict[str, Any] = {
    "appendfsync": "always",
    "min_replicas_to_write": "1",
    "min_replicas_max_lag": "3",
    "repl_ping_replica_period": "1",
}


class Member(Node):
    """A daemon in its own namespace, with a small disk. If there is a compiler, its wall clock can be moved."""

    def __init__(self, cluster: Arena, name: str) -> None:
        super().__init__(cluster, name)
        self.netns = cluster.net.netns(name)
        self.patience_s = PATIENCE_S
        self.skew_path = Path(f"{cluster.path}/{name}.skew")
        if cluster.skew_library:
            self.env = {"LD_PRELOAD": str(cluster.skew_library), "SKEW_FILE": str(self.skew_path)}
        for directory, size in ((self.state_dir, STATE_DISK), (self.runtime_dir, RUNTIME_DISK)):
            directory.mkdir(mode=0o700)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"{size},mode=700", "tmpfs", str(directory)], check=True)

    def launch(self) -> subprocess.Popen[bytes]:
        with inside(self.netns):
            return super().launch()

    def set_clock(self, ahead_s: float) -> None:
        """Set its wall clock ahead of the machine's by that many seconds."""
        skewed(None, self.skew_path, ahead_s)

    def fill(self, directory: Path) -> None:
        """Fill the disk of its state directory or of its runtime directory."""
        with (directory / BALLAST).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 65536)
        with (directory / BALLAST).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0")

    def empty(self) -> None:
        """Free both disks again."""
        for directory in (self.state_dir, self.runtime_dir):
            (directory / BALLAST).unlink(missing_ok=True)

    def family(self) -> set[int]:
        """The daemon's processes, and the children that its programs left behind: a power cut ends those too."""
        return super().family() | processes([f"chaos-child-of-{self.name}"])


class Arena(Cluster):
    """Five members with RabbitMQ and Redis, or with Redis under Sentinel."""

    nodes: list[Member]  # type: ignore[assignment]  # a Member is a kind of Node

    def __init__(self, net: Net, setup: str, size: int) -> None:
        self.net = net
        self.skew_library = skew_library(net.home)
        at = {host: servers.Place(net.address(host), net.netns(host), str(net.home)) for host in net.hosts}
        options: dict[str, Any] = {"rabbit": servers.Rabbit(place=at[BROKER])}
        if setup == "sentinel":
            places = [at[host] for host in SENTINEL_HOSTS]
            options["sentinels"] = servers.Sentinels(
                places=places, down_after_ms=1500, failover_timeout_ms=6000, **SENTINEL_SETTINGS
            )
        else:
            options["redis_server"] = servers.Redis(place=at["r1"], appendfsync="always")
        super().__init__(0, backend="production", parent=str(net.home), budget=BUDGET, **TIMING, **options)
        self.timing["allow_insecure"] = True
        self.count_dir = self.path / "count"
        for name in ("locks", "beats", "children"):
            (self.count_dir / name).mkdir(parents=True)
        self.log_path = self.count_dir / "launches"
        self.program = self.path / "program.py"
        shutil.copy(PAYLOAD / "program.py", self.program)
        self.nodes = [Member(self, host) for host in member_names(size)]

    @property
    def rabbit(self) -> servers.Rabbit:
        return self.production.rabbit

    @property
    def redises(self) -> list[servers.Redis]:
        under = self.production.sentinels
        return [under.primary, *under.replicas] if under else [self.production.redis]

    def master(self) -> servers.Redis:
        """The Redis that is the ledger now."""
        under = self.production.sentinels
        return under.master() if under else self.production.redis

    def host_of(self, server: servers.Server) -> str:
        """Its host's name."""
        return next(host for host in self.net.hosts if self.net.address(host) == server.host)

    @property
    def ledger_hosts(self) -> list[str]:
        return [host for host in self.net.hosts if host in SENTINEL_HOSTS]

    def chaos_job(
        self, name: str, *, longest_s: float, fails: int = 0, deaf: int = 0, child: int = 0, **keys: Any
    ) -> None:
        """Write a job file. In percent: ``fails``, ``deaf`` (ignores SIGTERM), ``child`` (leaves a daemon behind)."""
        alone = name if keys.get("overlap", "forbid") != "allow" else ""
        argv = [
            sys.executable,
            "-I",
            "-S",
            "-E",
            str(self.program),
            str(self.count_dir),
            alone,
            str(longest_s),
            str(fails),
            str(deaf),
            str(child),
        ]
        tables = {"command": {"argv": argv}} | {key: keys.pop(key) for key in list(keys) if isinstance(keys[key], dict)}
        lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
        for table, items in tables.items():
            lines += [f"[{table}]", *[f"{key} = {_toml(value)}" for key, value in items.items()]]
        self.job_file(name, "\n".join(lines) + "\n")

    def close(self) -> None:
        """End everything at once; the net removes what is left."""
        for node in self.nodes:
            if node.process is not None:
                node.kill()
        self.backend.close()

    def beats(self) -> dict[tuple[int, int], float]:
        """(token, pid) -> when that program was last alive, on CLOCK_BOOTTIME."""
        return {(token, pid): at for (token, pid, *_), at in self._last_signs("beats")}

    def children(self) -> list[tuple[int, int, float]]:
        """(token, pid of the program, when its child was last alive) of each child that made itself a daemon."""
        return [(token, pid, at) for (token, pid, *_), at in self._last_signs("children")]

    def _last_signs(self, kind: str) -> Iterator[tuple[tuple[int, ...], float]]:
        for path in (self.count_dir / kind).iterdir():
            if text := path.read_text():
                yield tuple(int(part) for part in path.name.split("-")), float(text)


def member_names(size: int) -> list[str]:
    return [f"n{number}" for number in range(1, size + 1)]


def hosts(setup: str, size: int) -> list[str]:
    """All hosts of a set-up."""
    return [*member_names(size), BROKER, *LEDGER_HOSTS[setup]]


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join([_toml(item) for item in value])}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
