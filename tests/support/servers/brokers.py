"""RabbitMQ: one broker, or a cluster of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.servers.certs import Certificates
from support.servers.server import HERE, Place, Server, free_port, wait

# the rabbitmq programs in PATH start as another user, with the machine's own settings
RABBIT_BIN = Path("/usr/lib/rabbitmq/bin")


class PortMapper(Server):
    """Erlang's name service for the nodes of one test. It is never the machine's own service on port 4369."""

    program, package = "epmd", "erlang-base"

    def argv(self) -> list[str]:
        return ["epmd", "-port", str(self.port), "-address", self.host]

    def answers(self) -> bool:
        return len(self.asked(b"\0\x01n", 4)) == 4  # NAMES_REQ: its own port, then the names


class Rabbit(Server):
    """One RabbitMQ node; user guest, password guest, virtual host "/"."""

    program, package = "rabbitmq-server", "rabbitmq-server"

    def __init__(
        self,
        *,
        config: str = "",
        plugins: Sequence[str] = (),
        tls: Certificates | None = None,
        mapper: PortMapper | None = None,
        place: Place = HERE,
    ) -> None:
        """``config``: more lines of rabbitmq.conf. With ``tls`` the node also listens on ``tls_port``."""
        super().__init__(place)
        self.dist_port = free_port()
        self.tls_port = free_port() if tls else 0
        self._own_mapper = mapper is None
        self.mapper = mapper or PortMapper(place)
        self.name = f"rabbit{self.port}@{self.host}"
        self._write("env.conf", "")
        self._write("enabled_plugins", f"[{','.join(plugins)}].")
        self._write(".erlang.cookie", "COORDDTESTS").chmod(0o400)
        self._write("advanced.config", "[].")
        self.config = [
            "loopback_users = none",
            "log.console = false",
            "log.file.level = info",
            "vm_memory_high_watermark.absolute = 512MB",
            "disk_free_limit.absolute = 50MB",
            "cluster_partition_handling = pause_minority",
            *config.splitlines(),
        ]
        if tls:
            self.config += [
                f"listeners.ssl.1 = {self.host}:{self.tls_port}",
                f"ssl_options.cacertfile = {tls.ca}",
                f"ssl_options.certfile = {tls.cert}",
                f"ssl_options.keyfile = {tls.key}",
                "ssl_options.verify = verify_peer",
                "ssl_options.fail_if_no_peer_cert = false",
            ]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@{self.host}:{self.tls_port}/"

    def argv(self) -> list[str]:
        return [str(RABBIT_BIN / "rabbitmq-server")]

    def environment(self) -> dict[str, str]:
        here = self.directory
        return {
            **super().environment(),
            "RABBITMQ_CONF_ENV_FILE": f"{here}/env.conf",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "ERL_EPMD_PORT": str(self.mapper.port),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_MNESIA_BASE": f"{here}/mnesia",
            "RABBITMQ_LOG_BASE": f"{here}/log",
            "RABBITMQ_PID_FILE": f"{here}/beam.pid",
            "RABBITMQ_CONFIG_FILE": f"{here}/rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{here}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/enabled_plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{here}/feature_flags",
            # Two schedulers that sleep when there is nothing to do, because the tests need the CPU.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            f" -kernel inet_dist_use_interface {{{self.host.replace('.', ',')}}}",
            # then the script replaces itself by the node, so the process that we know is the node
            "RUNNING_UNDER_SYSTEMD": "1",
        }

    def launch(self) -> None:
        if not self.mapper.up:
            self.mapper.start()
        self._write("rabbitmq.conf", "\n".join(self.config) + "\n")
        super().launch()

    def answers(self) -> bool:
        return self.asked(b"AMQP\x00\x00\x09\x01", 11)[7:] == b"\0\x0a\0\x0a"  # Connection.Start

    def said(self) -> str:
        logs = sorted((self.directory / "log").glob("*.log"))
        return "".join([super().said(), *[path.read_text(errors="replace")[-4000:] for path in logs]])

    def close(self) -> None:
        super().close()
        if self._own_mapper:
            self.mapper.close()

    def ctl(self, *args: str) -> str:
        """Run rabbitmqctl; about a second per call. Raises ServerError."""
        return self.output_of([str(RABBIT_BIN / "rabbitmqctl"), "-q", *args], self.environment())

    def vhost(self, name: str) -> str:
        """Make a virtual host in which guest may do everything; returns its URL."""
        self.ctl("add_vhost", name)
        self.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return f"{self.url}{name}"

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path


class RabbitCluster:
    """RabbitMQ nodes that form one cluster."""

    def __init__(self, size: int = 3, **options: object) -> None:
        self.mapper = PortMapper()
        self.nodes = [Rabbit(mapper=self.mapper, **options) for _ in range(size)]  # type: ignore[arg-type]  # passed on
        for node in self.nodes:
            node.config.append("cluster_formation.peer_discovery_backend = classic_config")
            node.config += [
                f"cluster_formation.classic_config.nodes.{number} = {other.name}"
                for number, other in enumerate(self.nodes, 1)
            ]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def start(self) -> None:
        """Start all nodes, and wait until each one sees all of them."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.ready()
        count = "length(rabbit_mnesia:cluster_nodes(running))."
        size = str(len(self.nodes))
        for node in self.nodes:
            wait(lambda node=node: node.ctl("eval", count) == size, f"{node.name} sees all", node.said)  # type: ignore[misc]  # a default binds the loop's variable

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.mapper.close()


@contextlib.contextmanager
def rabbit(**options: object) -> Iterator[Rabbit]:
    """A running broker. The options are those of Rabbit."""
    server = Rabbit(**options)  # type: ignore[arg-type]  # passed on
    with contextlib.closing(server):
        server.start()
        yield server


@contextlib.contextmanager
def rabbit_cluster(size: int = 3, **options: object) -> Iterator[RabbitCluster]:
    cluster = RabbitCluster(size, **options)
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster
