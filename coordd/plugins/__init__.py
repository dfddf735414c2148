"""What plug-ins get: the context of each kind that runs in a process of its own, and the names of the entry points.

Not here: how such a process is started and watched (services). A plug-in may import this module anywhere; it loads
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

BOOT_STEPS = "coordd.boot_steps"
CHECKS = "coordd.checks"
COMMANDS = "coordd.commands"
CONFIG_BACKENDS = "coordd.config_backends"
SERVICES = "coordd.services"
SINKS = "coordd.sinks"
STRATEGIES = "coordd.strategies"
TOPICS = "coordd.topics"
TRIGGERS = "coordd.triggers"
# Every group, and what one of it is.
GROUPS = {
    BOOT_STEPS: "a boot step",
    CHECKS: "a check",
    COMMANDS: "a command",
    CONFIG_BACKENDS: "a configuration backend",
    SERVICES: "a service",
    SINKS: "a sink",
    STRATEGIES: "a strategy",
    TOPICS: "a topic",
    TRIGGERS: "a trigger",
}


class CheckContext(NamedTuple):
    """Of a check: its name, the node that looks, how long (seconds) it may take, and what its table says else."""

    name: str
    node: str
    timeout_s: float
    url: str = ""
    address: str = ""
    argv: tuple[str, ...] = ()
    path: str = ""


# What a check may answer: a state, or a state and a line for people, or also figures as monitoring plug-ins print them.
Answer = str | tuple[str, str] | tuple[str, str, str]

# The exit code of the process of a check, by state; another one is: it could not look.
CODES = {"healthy": 0, "degraded": 1, "unhealthy": 2, "insecure": 4, "unavailable": 5}
COULD_NOT_LOOK = 3


# What the process of a service or of a boot step says: a word and a text, a line each. PROBLEM: why it ends. A step
# is ready when it is done.
READY, STATUS, PROBLEM = "ready", "status", "problem"


class ServiceContext:
    """Of a service: its name, the node and the cluster, and the daemon's control socket (coordd.client connects)."""

    def __init__(self, name: str, node: str, cluster: str, socket: str, say: Callable[[str], None]) -> None:
        self.name = name
        self.node = node
        self.cluster = cluster
        self.socket = socket
        self._say = say

    def ready(self, text: str = "") -> None:
        """It works now; until then it is starting, and is ended after its start_timeout."""
        self._say(f"{READY} {text}")

    def status(self, text: str) -> None:
        """A line for people, and a sign of life for the watchdog."""
        self._say(f"{STATUS} {text}")


class TopicContext(NamedTuple):
    """Of an election's handler: the election and its topic, the node, which is first in it, the cluster, and the
    daemon's control socket.
    """

    id: str
    topic: str
    node: str
    cluster: str
    socket: str


class BootContext:
    """Of a boot step: its name, the node and the cluster, the daemon's control socket, which try this is (from 1), and
    ``args``, as its table has them.
    """

    def __init__(
        self,
        name: str,
        node: str,
        cluster: str,
        socket: str,
        attempt: int,
        args: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.node = node
        self.cluster = cluster
        self.socket = socket
        self.attempt = attempt
        self.args = args
        self._say = say

    def status(self, text: str) -> None:
        """A line for people: what it waits for."""
        self._say(f"{STATUS} {text}")


class SinkContext(NamedTuple):
    """Of a sink: how one run ended (``outcome``), and where to: ``path`` and ``query`` of ``to``, which is
    plugin://NAME/PATH?KEY=VALUE. ``name``: of the sink. ``timeout_s``: how long (seconds) it may take. The files are
    those that its table names.
    """

    name: str
    to: str
    path: str
    query: Mapping[str, str]
    timeout_s: float
    outcome: Mapping[str, Any]
    password_file: str = ""
    token_file: str = ""
    tls_ca: str = ""


class TriggerContext(NamedTuple):
    """Of a trigger: its name, the job that it starts, the node that polls, how long (seconds) a look may take, and what
    its table says else.
    """

    name: str
    job: str
    node: str
    timeout_s: float
    url: str = ""
    path: str = ""
    query: str = ""
    argv: tuple[str, ...] = ()
    password_file: str = ""


# What a trigger may say of the arrivals that are there: the id of each, or also its fields, {trigger.body.NAME}.
Arrivals = Iterable[str | tuple[str, Mapping[str, Any]]]
