"""The configuration as frozen types: one class per section of the file."""

from __future__ import annotations

from typing import Any

import msgspec

from coordd.config import addresses
from coordd.config.hooks.hook import Hook
from coordd.config.hooks.publisher import Publisher
from coordd.config.hooks.sink import SinkHook, shown as shown_address
from coordd.config.plugged.boot import BootStep
from coordd.config.plugged.services import ServiceTable
from coordd.config.values import parse_size
from coordd.core.breaker import Rule
from coordd.core.checks.check import Check
from coordd.core.jobs.schedule import parse_duration
from coordd.core.redaction import HIDDEN, is_secret_name, redact_text

# The configuration backends of coordd itself.
FILES, REDIS, PYTHON = "files", "redis", "python"
BACKENDS = (FILES, REDIS, PYTHON)


class Budget(msgspec.Struct, frozen=True):
    """The maximum number of active runs: drivers that compute here (client), drivers that only wait (cluster).

    ``client`` can be the name of a strategy, which says how many at present, from ``min`` to ``max``.
    """

    client: int | str = 2
    cluster: int = 20
    min: int = 1
    max: int = 8


class NodeConfig(msgspec.Struct, frozen=True):
    """This node. ``name`` is never empty after ``load``."""

    name: str = ""
    tags: tuple[str, ...] = ()
    state_dir: str = "/var/lib/coordd"
    runtime_dir: str = "/run/coordd"
    jobs_dir: str = "/etc/coordd/jobs.d"
    budget: Budget = Budget()
    fast_start: bool = True
    units: str = "auto"


class ClusterConfig(msgspec.Struct, frozen=True):
    """Settings that all nodes share; durations in seconds.

    ``gossip`` False: there is no bus. ``bus`` is one address, or several separated by commas; ``bus_urls`` is the list
    of them. ``fast_path``: claims of a Redis ledger, and gossip over RabbitMQ, cross no thread.
    """

    name: str = "default"
    bus: str = "unix:///run/coordd/bus"
    ledger: str = "sqlite:////var/lib/coordd/ledger.db"
    bus_password_file: str = ""
    ledger_password_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    keyring: str = "/etc/coordd/keys.toml"
    unsigned: bool = False
    allow_insecure: bool = False
    mingle: bool = True
    gossip: bool = True
    heartbeat_interval: float = 2.0
    election_timeout: float = 1.0
    mingle_timeout: float = 1.0
    lease: float = 60.0
    renew_interval: float = 5.0
    ledger_timeout: float = 2.0
    kill_grace: float = 10.0
    priority: str = ""
    fast_path: bool = True

    @property
    def bus_urls(self) -> tuple[str, ...]:
        """The addresses of the bus, tried in turn; all have the same scheme. () without gossip."""
        return addresses.split(self.bus) if self.gossip else ()

    @property
    def bus_scheme(self) -> str:
        """unix, amqp, amqps, redis or rediss."""
        return self.bus.partition("://")[0]

    @property
    def ledger_scheme(self) -> str:
        """sqlite, redis, rediss, redis+sentinel or rediss+sentinel."""
        return self.ledger.partition("://")[0]

    @property
    def is_embedded(self) -> bool:
        """True for the bus of a single machine: the mode of its directory protects it, and messages are not signed."""
        return self.bus_scheme == "unix"

    @property
    def is_signed(self) -> bool:
        """True if messages are sealed in envelopes."""
        return self.gossip and not self.is_embedded and not self.unsigned

    @property
    def verifies_ledger(self) -> bool:
        """True if the ledger's certificate is verified. (Each address of the bus has its own answer.)"""
        return not addresses.unverified(self.ledger)

    @property
    def bus_path(self) -> str:
        """The directory of a unix bus."""
        return self.bus.partition("://")[2]

    @property
    def ledger_path(self) -> str:
        """The file of an SQLite ledger."""
        return self.ledger.partition(":///")[2]


class SparkConfig(msgspec.Struct, frozen=True):
    """How Spark is started here; jobs may override it. Durations in seconds.

    ``settle``: within this time a submitted application is shown by the cluster manager. ``retention``: how long driver
    pods that have ended are kept; 0.0: nobody knows. ``yarn_command``: Hadoop's `yarn`, which is asked for applications
    in place of the REST interface. ``prepared``: how many servers of Spark Connect
    may wait for their runs. ``conf_allow``: the keys of conf that job files may set, perhaps with ``*``; (): all.
    """

    submit: str = ""
    master: str = "local[*]"
    env: dict[str, str] = {}
    env_file: str = ""
    properties_file: str = ""
    settle: float = 1200.0
    retention: float = 0.0
    yarn_command: str = ""
    prepared: int = 1
    conf_allow: tuple[str, ...] = ()


class JobsConfig(msgspec.Struct, frozen=True):
    """Where the job definitions come from; durations in seconds.

    ``backend``: ``files`` ([node] jobs_dir), ``redis`` (published revisions), ``python``, or the name of one that a
    package brings. ``url``: of the Redis with the revisions; "": the ledger's. ``call``: MODULE:FUNCTION, for
    ``python``. ``refresh``: how often a module or a package is asked; 0.0: only at the start and by a reload.
    """

    backend: str = "files"
    url: str = ""
    password_file: str = ""
    call: str = ""
    timeout: float = 10.0
    refresh: float = 60.0

    @property
    def published(self) -> bool:
        """True if the definitions are revisions, which come into force in the whole cluster at once."""
        return self.backend == REDIS

    @property
    def called(self) -> bool:
        """True if this node asks a function for them."""
        return self.backend not in BACKENDS or self.backend == PYTHON


class ControlConfig(msgspec.Struct, frozen=True):
    """The control socket, and who may use it."""

    socket: str = "/run/coordd/coordd.sock"
    operator_group: str = "coordd-operators"
    viewer_group: str = ""


class HistoryConfig(msgspec.Struct, frozen=True):
    """How long data is kept, and where it goes then."""

    keep: str = "90d"
    logs_keep: str = "90d"
    journal_keep: str = "90d"
    keep_runs: int = 1_000_000
    logs_size: str = "10G"
    journal_size: str = "10G"
    journal_sink: str = ""
    log_sink: str = ""
    sink_put: tuple[str, ...] = ()
    sink_get: tuple[str, ...] = ()

    @property
    def keep_s(self) -> float:
        return parse_duration(self.keep)

    @property
    def logs_bytes(self) -> int:
        return parse_size(self.logs_size)

    @property
    def journal_bytes(self) -> int:
        return parse_size(self.journal_size)

    @property
    def logs_keep_s(self) -> float:
        return parse_duration(self.logs_keep)

    @property
    def journal_keep_s(self) -> float:
        return parse_duration(self.journal_keep)


class MetricsConfig(msgspec.Struct, frozen=True):
    """Where metrics are read: an address (HOST:PORT) that answers HTTP, a file for node-exporter; "": not at all."""

    listen: str = ""
    textfile: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class GuardConfig(msgspec.Struct, frozen=True):
    """Where drivers on other machines ask whether they own their run.

    ``listen``: HOST:PORT of this node, or "". ``addresses``: HOST:PORT of all nodes that listen, as drivers reach them.
    ``tls``: by tls_cert and tls_key of [cluster]; drivers check it by tls_ca.
    """

    listen: str = ""
    addresses: tuple[str, ...] = ()
    tls: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def told(self, node: str) -> str:
        """What drivers are told, "" without a listener. ``node``: the name of this one."""
        scheme, host = "tls" if self.tls else "tcp", self.listen.rpartition(":")[0]
        everywhere = host in ("0.0.0.0", "[::]")  # noqa: S104  # what a person has written
        own = f"{node}:{self.listen.rpartition(':')[2]}" if everywhere else self.listen
        return ",".join([f"{scheme}://{address}" for address in self.addresses or ((own,) if self.listen else ())])


class TriggersConfig(msgspec.Struct, frozen=True):
    """Where HTTP calls start runs: HOST:PORT of this node, or "". ``tls``: by tls_cert and tls_key of [cluster]."""

    listen: str = ""
    tls: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class TracingConfig(msgspec.Struct, frozen=True):
    """Where traces go: an address for OTLP over HTTP; "": as the OTEL_ variables say, else nowhere."""

    otlp: str = ""


class LineageConfig(msgspec.Struct, frozen=True):
    """Where OpenLineage's events of runs go (``url``; "": nowhere), and whether Spark jobs are told of their parent.

    ``namespace``: that of all jobs; "": the cluster's name. ``spark``: unless a job says otherwise.
    """

    url: str = ""
    namespace: str = ""
    token_file: str = ""
    spark: bool = False


class MirrorConfig(msgspec.Struct, frozen=True):
    """Copies of events for Celery's monitors. ``url``: a RabbitMQ, ``bus`` (that of [cluster] bus), or "": none."""

    url: str = ""
    password_file: str = ""
    exchange: str = ""
    args: bool = False

    @property
    def on_bus(self) -> bool:
        """True if the exchange is on the broker of the bus."""
        return self.url == "bus"


class Config(msgspec.Struct, frozen=True):
    """The whole configuration from coordd.toml and the environment. ``path``: its file, or "". ``called_by_host``:
    nobody has set the node's name, so it is what the machine calls itself now.
    """

    node: NodeConfig = NodeConfig()
    cluster: ClusterConfig = ClusterConfig()
    spark: SparkConfig = SparkConfig()
    control: ControlConfig = ControlConfig()
    history: HistoryConfig = HistoryConfig()
    metrics: MetricsConfig = MetricsConfig()
    guard: GuardConfig = GuardConfig()
    triggers: TriggersConfig = TriggersConfig()
    tracing: TracingConfig = TracingConfig()
    lineage: LineageConfig = LineageConfig()
    mirror: MirrorConfig = MirrorConfig()
    jobs: JobsConfig = JobsConfig()
    pools: dict[str, int] = {}
    hooks: tuple[Hook, ...] = ()
    checks: dict[str, Check] = {}
    breakers: dict[str, Rule] = {}
    sinks: tuple[SinkHook, ...] = ()
    publishers: tuple[Publisher, ...] = ()
    services: tuple[ServiceTable, ...] = ()
    boot: tuple[BootStep, ...] = ()
    path: str = ""
    called_by_host: bool = False

    @property
    def lineage_namespace(self) -> str:
        """The namespace of all jobs in OpenLineage."""
        return self.lineage.namespace or self.cluster.name

    def redacted(self) -> dict[str, Any]:
        """The settings for logs and people: without passwords in URLs or values of variables that look secret."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        for section in shown.values():
            if isinstance(section, dict):
                section.update({key: redact_text(said) for key, said in section.items() if isinstance(said, str)})
        shown["cluster"]["bus"] = ",".join([redact_text(url) for url in self.cluster.bus_urls])
        for hook in shown["hooks"]:  # addresses of chats are secrets
            hook["url"] = HIDDEN if hook["url"] else ""
        for sink in shown["sinks"]:
            sink["to"] = shown_address(sink["to"])
        for publisher in shown["publishers"]:
            publisher["to"] = [shown_address(one) for one in publisher["to"]]
        shown["lineage"]["url"] = HIDDEN if self.lineage.url else ""
        env = shown["spark"]["env"]
        shown["spark"]["env"] = {key: HIDDEN if is_secret_name(key) else redact_text(env[key]) for key in env}
        return shown
