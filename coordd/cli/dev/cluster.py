"""The throw-away cluster of `coordd dev`: its directory, its nodes, and how all of it goes away again."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from coordd.adapters.kernel import prctl
from coordd.cli.client import Client
from coordd.cli.dev import family, servers
from coordd.cli.keys import first_keyring
from coordd.config.keyring import render
from coordd.config.settings import load
from coordd.errors import CoorddError, UnavailableError

UNIX, AMQP = "unix", "amqp"

# Seconds. Short, so that a person sees a takeover: a node's runs move about 10 s after its power is cut.
LEASE_S, RENEW_S, LEDGER_TIMEOUT_S, KILL_GRACE_S = 8.0, 1.0, 1.0, 3.0

# Nothing may wait for ever (seconds): a server's start, a node's, an answer.
SERVER_S, READY_S, ANSWER_S = 90.0, 60.0, 5.0
LOOK_S = 0.1

# At the end: for the daemons to take leave of each other, for the programs of runs after TERM, for everything.
GOODBYE_S, GRACE_S, END_S = 10.0, 3.0, 20.0

TICK = """\
# Every 15 seconds, on one of the nodes.
description = "says where it runs"
schedule = "every 15s"

[command]
argv = ["/bin/sh", "-c", "echo hello from $COORDD_NODE; sleep 2"]
"""
LONG = """\
# Cut the power of the node that runs it: another one takes over. coordctl run trigger long
description = "takes a minute"
on_lost = "relaunch"
overlap = "allow"

[command]
argv = ["/bin/sleep", "60"]
"""


class Node:
    """One daemon of the cluster."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place
        self.socket = f"{place}/coordd.sock"
        self.config = f"{place}/coordd.toml"
        self.log = f"{place}/coordd.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("COORDD_")}
        argv = [sys.executable, "-P", "-m", "coordd", "run", "--config", self.config]
        self.process = servers.start(argv, self.log, env, self.place)

    def cut_power(self) -> None:
        """Kill the daemon, its runners and their programs, as the loss of a machine would."""
        family.cut_power(lambda: family.naming(self.place))
        if self.process is not None:
            self.process.wait()

    def status(self) -> dict[str, Any] | None:
        """The answer of the daemon; None while there is none."""
        with Client(self.socket, ANSWER_S) as client:
            try:
                answer: dict[str, Any] = client.call("status")
            except CoorddError:
                return None
            return answer


class Ending:
    """INT, TERM and HUP end the cluster. They only set a flag, so that nothing is left half made or half removed."""

    def __init__(self) -> None:
        self.count = 0
        self.wake, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked)

    def _asked(self, _number: int, _frame: object) -> None:
        self.count += 1
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")

    def asked(self) -> bool:
        return self.count > 0

    def hurry(self) -> bool:
        """Somebody has asked twice."""
        return self.count > 1


class Cluster:
    """All that `coordd dev` makes and starts. Use ``close`` in any case."""

    def __init__(self, count: int, bus: str, directory: str | None, jobs: str | None, ending: Ending) -> None:
        """Make the directory. Raises UnavailableError."""
        self.bus = bus
        self.ending = ending
        self.servers: list[servers.Server] = []
        self._programs = servers.needed() if bus == AMQP else {}
        self._kept = directory is not None and os.path.isdir(directory)  # it was there before, and stays
        self.place = _directory(directory)
        self.jobs = os.path.abspath(jobs) if jobs else f"{self.place}/jobs.d"
        self.nodes = [Node(f"n{number}", f"{self.place}/n{number}") for number in range(1, count + 1)]

    def prepare(self, say: Callable[[str], None]) -> None:
        """Write all files, and start the servers. Raises CoorddError."""
        os.umask(0o022)  # a node refuses job files that its group may write
        prctl.adopt_orphans()
        servers.write(f"{self.place}/keys.toml", render(first_keyring()), 0o600)
        if self.jobs == f"{self.place}/jobs.d":
            os.mkdir(self.jobs)
            servers.write(f"{self.jobs}/tick.toml", TICK)
            servers.write(f"{self.jobs}/long.toml", LONG)
        shared = self._embedded() if self.bus == UNIX else self._brokered(say)
        for node in self.nodes:
            os.mkdir(node.place, 0o700)
            servers.write(node.config, self._settings(node, shared))
            load(node.config, {})

    def start(self) -> None:
        """Start the nodes, and wait until each of them sees all. Raises UnavailableError."""
        for node in self.nodes:
            node.start()
        limit = time.monotonic() + READY_S
        for node in self.nodes:
            while not self.ending.asked():
                said = node.status() or {}
                if said.get("state") == "ready" and said["members"]["alive"] == len(self.nodes):
                    break
                if not node.up or time.monotonic() > limit:
                    how = f"is not ready within {READY_S:g} s" if node.up else "ended"
                    raise UnavailableError(f"{node.name} {how}; the end of its log: {servers.tail(node.log)}")
                time.sleep(LOOK_S)

    def toggle(self, node: Node) -> None:
        """Cut the power of a node, or start it again."""
        if node.up:
            node.cut_power()
        else:
            node.start()

    def tend(self) -> None:
        """Collect processes that have ended. Raises UnavailableError if a server is gone."""
        started = [*[node.process for node in self.nodes], *[server.process for server in self.servers]]
        family.reap([process.pid for process in started if process is not None])
        for server in self.servers:
            if server.failed():
                raise UnavailableError(server.failed())

    def close(self) -> set[int]:
        """End every process, and remove every file; returns the pids of processes that could not be ended."""
        for node in self.nodes:
            if node.process is not None and node.up:
                node.process.terminate()
        limit = time.monotonic() + GOODBYE_S
        while any(node.up for node in self.nodes) and time.monotonic() < limit and not self.ending.hurry():
            time.sleep(LOOK_S)
        left = family.end_all(GRACE_S, END_S, self.ending.hurry)
        if self._kept:
            for name in os.listdir(self.place):
                path = os.path.join(self.place, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.unlink(path)
        else:
            shutil.rmtree(self.place, ignore_errors=True)
        return left

    def _settings(self, node: Node, shared: dict[str, Any]) -> str:
        cluster = {
            "name": "dev",
            **shared,
            "keyring": f"{self.place}/keys.toml",
            "lease": LEASE_S,
            "renew_interval": RENEW_S,
            "ledger_timeout": LEDGER_TIMEOUT_S,
            "kill_grace": KILL_GRACE_S,
        }
        own = {
            "name": node.name,
            "state_dir": f"{node.place}/state",
            "runtime_dir": f"{node.place}/run",
            "jobs_dir": self.jobs,
        }
        sections: dict[str, dict[str, Any]] = {"node": own, "cluster": cluster, "control": {"socket": node.socket}}
        lines = ["# Made by coordd dev."]
        for section, settings in sections.items():
            lines += [f"[{section}]", *[f"{key} = {json.dumps(value)}" for key, value in settings.items()]]
        return "\n".join(lines) + "\n"

    def _embedded(self) -> dict[str, Any]:
        return {"bus": f"unix://{self.place}/bus", "ledger": f"sqlite:///{self.place}/ledger.db"}

    def _brokered(self, say: Callable[[str], None]) -> dict[str, Any]:
        say("starting a RabbitMQ and a Redis of its own …")
        certs, base = f"{self.place}/certificates", f"{self.place}/servers"
        os.mkdir(certs, 0o700)
        os.mkdir(base, 0o700)
        servers.certificates(self._programs["openssl"], certs)
        passwords = {name: secrets.token_hex(16) for name in ("bus", "ledger")}
        for name, password in passwords.items():
            servers.write(f"{self.place}/{name}.password", f"{password}\n", 0o600)
        ports = servers.free_ports(4)
        self.servers = [
            servers.rabbitmq(self._programs["rabbitmq-server"], f"{base}/rabbitmq", certs, passwords["bus"], ports[:3]),
            servers.redis(self._programs["redis-server"], f"{base}/redis", certs, passwords["ledger"], ports[3]),
        ]
        limit = time.monotonic() + SERVER_S
        for server in self.servers:
            while not self.ending.asked() and not server.answers():
                if server.failed() or time.monotonic() > limit:
                    late = f"{server.name} does not answer within {SERVER_S:g} s: {servers.tail(server.log)}"
                    raise UnavailableError(server.failed() or late)
                time.sleep(LOOK_S)
        return {
            "bus": f"amqps://{servers.USER}@{servers.HOST}:{ports[0]}/",
            "ledger": f"rediss://{servers.HOST}:{ports[3]}/0",
            "bus_password_file": f"{self.place}/bus.password",
            "ledger_password_file": f"{self.place}/ledger.password",
            "tls_ca": f"{certs}/ca.pem",
        }


def _directory(path: str | None) -> str:
    """The cluster's directory, empty. Raises UnavailableError."""
    if path is None:
        return tempfile.mkdtemp(prefix="coordd-dev-")
    path = os.path.abspath(path)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        there = os.listdir(path)
    except OSError as exc:
        raise UnavailableError(f"--dir {path} cannot be used: {exc.strerror or exc}") from exc
    if there:
        raise UnavailableError(
            f"--dir {path} is not empty ({there[0]}), and coordd dev removes everything in it at its end:"
            " name a new directory"
        )
    return path
