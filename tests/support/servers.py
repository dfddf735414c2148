"""Throw-away RabbitMQ, Redis and Sentinel servers on free loopback ports: private to one test run, gone with it.

A server keeps its ports and its data over kill() and start(). It dies with the thread that started it (the
kernel sees to that), so start servers in the main thread. With a Place it lives in a network namespace, at an
address of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from support.netns import inside

READY_S = 120.0  # a broker starts in 5 s on an idle machine; three at a time on a loaded one take their time
ASK_S = 120.0  # one command of rabbitmqctl or redis-cli; on a loaded machine the former takes its time to start
LOOK_S = 0.05
HOST = "127.0.0.1"

# Below the range from which the kernel takes the ports of outgoing connections: one of those could sit on a
# server's port while it is down, even connected to itself.
PORTS = range(20000, 32000)

RABBIT_BIN = Path("/usr/lib/rabbitmq/bin")  # the one in PATH starts as another user, with the machine's own settings

_claims = contextlib.ExitStack()
atexit.register(_claims.close)


class ServerError(Exception):
    """A server does not start or does not answer."""


def free_port() -> int:
    """A port that nobody has, and that no other test run on this machine will get while this process lives."""
    for _ in range(1000):
        port = random.SystemRandom().choice(PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0coordd-tests-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            claim.close()
            continue
        _claims.enter_context(claim)  # kept until this process ends
        return port
    raise ServerError("no free port")


class Place(NamedTuple):
    """Where a server lives: its address, its network namespace ("": the caller's), what its directory is made in."""

    host: str = HOST
    netns: str = ""
    parent: str = "/tmp"


HERE = Place()


class Server:
    """One process with a directory of its own."""

    program = ""
    package = ""

    def __init__(self, place: Place = HERE) -> None:
        self.place = place
        self.host = place.host
        self.directory = Path(tempfile.mkdtemp(prefix="cd-srv-", dir=place.parent))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    # ---- what each kind says of itself

    def argv(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": str(self.directory)}

    def answers(self) -> bool:
        """It speaks its protocol."""
        raise NotImplementedError

    # ---- life

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        """Start the process, without waiting for anything."""
        assert not self.up, "it runs"
        argv = self.argv()
        if shutil.which(argv[0]) is None:
            raise ServerError(f"{self.program} is not installed (Debian: apt-get install {self.package})")
        with (self.directory / "output").open("ab") as output, inside(self.place.netns):
            # A session of its own: ^C on the terminal is for the tests, which then end their servers.
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                cwd=self.directory,
                env=self.environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def ready(self) -> None:
        """Wait until it answers."""

        def look() -> bool:
            if not self.up:
                raise ServerError(f"{self.program} ended with {self.process and self.process.poll()}:\n{self.said()}")
            return self.answers()

        wait(look, f"{self.program} on port {self.port} answers", self.said)

    def start(self) -> None:
        """Start it and wait until it answers; with the same ports and data as before."""
        self.launch()
        self.ready()

    def stop(self) -> None:
        """End it as a service manager does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It hangs: connections stay, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.close)

    def asked(self, question: bytes, size: int) -> bytes:
        """What it answers to one question on a connection of its own; b"" when it does not."""
        with inside(self.place.netns):
            return asked((self.host, self.port), question, size)

    def output_of(self, argv: Sequence[str], environment: dict[str, str]) -> str:
        """What a command says, where the server lives. Raises ServerError when it fails."""
        with inside(self.place.netns):
            return output_of(argv, environment)

    def said(self) -> str:
        """The end of what it has written."""
        path = self.directory / "output"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        if self.up:
            self.process.send_signal(number)
        try:
            self.process.wait(ASK_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(ASK_S)


def wait(true: Callable[[], object], what: str, said: Callable[[], str] = lambda: "") -> None:
    """Look until something is true. Raises ServerError after READY_S."""
    limit = time.monotonic() + READY_S
    while not true():
        if time.monotonic() > limit:
            raise ServerError(f"not within {READY_S:g} s: {what}\n{said()}")
        time.sleep(LOOK_S)


def asked(address: tuple[str, int], question: bytes, size: int) -> bytes:
    """What a server answers to one question on a connection of its own; b"" when it does not."""
    try:
        with socket.create_connection(address, 1.0) as sock:
            sock.settimeout(2.0)
            sock.sendall(question)
            answer = b""
            while len(answer) < size and (more := sock.recv(size - len(answer))):
                answer += more
            return answer
    except OSError:
        return b""


def output_of(argv: Sequence[str], environment: dict[str, str]) -> str:
    """What a command says. Raises ServerError when it fails."""
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S, check=False
    )
    if done.returncode:
        raise ServerError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


# ---- certificates


class Certificates(NamedTuple):
    """Paths of a certificate authority, and of a certificate of it that servers and clients may use."""

    ca: str
    cert: str
    key: str


def certificates(directory: Path, name: str = HOST) -> Certificates:
    """A new authority, and a certificate for ``name`` (an address or a host)."""
    kind = "IP" if name.replace(".", "").isdigit() else "DNS"
    made = Certificates(*[str(directory / file) for file in ("ca.pem", "cert.pem", "key.pem")])
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    request, ca_key = str(directory / "request.pem"), str(directory / "ca-key.pem")
    extensions = directory / "extensions"
    extensions.write_text(f"subjectAltName={kind}:{name}\n")
    for argv in (
        ["openssl", "req", "-x509", *curve, "-keyout", ca_key, "-out", made.ca, "-subj", "/CN=tests"],
        ["openssl", "req", *curve, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}"],
        [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            made.ca,
            "-CAkey",
            ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            str(extensions),
            "-out",
            made.cert,
        ],
    ):
        output_of(argv, {"PATH": os.environ["PATH"], "HOME": str(directory)})
    return made


# ---- RabbitMQ


class PortMapper(Server):
    """Erlang's name service, for the nodes of one test: never the machine's own on 4369."""

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
        """``config``: more lines of rabbitmq.conf; with ``tls`` it listens on ``tls_port`` too."""
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
            # Two schedulers that sleep when there is nothing to do: the tests need the machine themselves.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            f" -kernel inet_dist_use_interface {{{self.host.replace('.', ',')}}}",
            "RUNNING_UNDER_SYSTEMD": "1",  # then the script becomes the node, which is the process we know
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
        """rabbitmqctl; about a second a call. Raises ServerError."""
        return self.output_of([str(RABBIT_BIN / "rabbitmqctl"), "-q", *args], self.environment())

    def vhost(self, name: str) -> str:
        """Make a virtual host of which guest may do everything; its URL."""
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
        """Start all, and wait until each counts all of them."""
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


# ---- Redis


class Redis(Server):
    """One Redis server, with an append-only file; ``settings`` are those of redis.conf, "_" for "-"."""

    program, package = "redis-server", "redis-server"

    def __init__(self, *, tls: Certificates | None = None, place: Place = HERE, **settings: str) -> None:
        super().__init__(place)
        self.settings = {"appendonly": "yes", "save": "", **settings}
        self.tls_port = free_port() if tls else 0
        if tls:
            self.settings |= {
                "tls_port": str(self.tls_port),
                "tls_ca_cert_file": tls.ca,
                "tls_cert_file": tls.cert,
                "tls_key_file": tls.key,
                "tls_auth_clients": "optional",
            }

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def tls_url(self) -> str:
        return f"rediss://{self.host}:{self.tls_port}/0"

    def argv(self) -> list[str]:
        named = [
            word
            for key, value in self.settings.items()
            for word in (f"--{key.replace('_', '-')}", *(value.split() or [""]))
        ]
        return [
            self.program,
            "--port",
            str(self.port),
            "--bind",
            self.host,
            "--protected-mode",
            "no",
            "--dir",
            str(self.directory),
            "--repl-diskless-sync-delay",
            "0",
            *named,
        ]

    def answers(self) -> bool:
        return self.asked(b"PING\r\n", 7)[:7] in (b"+PONG\r\n", b"-NOAUTH")

    def cli(self, *args: str) -> str:
        """redis-cli. Raises ServerError when it cannot connect; an error of the server is in the answer."""
        password = self.settings.get("requirepass")
        environment = self.environment() | ({"REDISCLI_AUTH": password} if password else {})
        return self.output_of(["redis-cli", "-h", self.host, "-p", str(self.port), *args], environment)

    def replicates(self, other: Redis | None) -> None:
        """Become a replica of ``other``; of nobody: a primary."""
        self.cli("REPLICAOF", *((other.host, str(other.port)) if other else ("NO", "ONE")))


class Sentinel(Server):
    """One sentinel, which watches the primary under the name "m"."""

    program, package = "redis-sentinel", "redis-sentinel"

    def __init__(self, primary: Redis, down_after_ms: int, failover_timeout_ms: int, place: Place = HERE) -> None:
        super().__init__(place)
        lines = [
            f"port {self.port}",
            f"bind {self.host}",
            "protected-mode no",
            f"dir {self.directory}",
            f"sentinel monitor m {primary.host} {primary.port} 2",
            f"sentinel down-after-milliseconds m {down_after_ms}",
            f"sentinel failover-timeout m {failover_timeout_ms}",
            "sentinel parallel-syncs m 1",
        ]
        (self.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def argv(self) -> list[str]:
        return [self.program, str(self.directory / "sentinel.conf")]

    def answers(self) -> bool:
        return self.asked(b"PING\r\n", 7) == b"+PONG\r\n"

    def cli(self, *args: str) -> str:
        return self.output_of(["redis-cli", "-h", self.host, "-p", str(self.port), *args], self.environment())


class Sentinels:
    """A primary, its replicas, and three sentinels that watch them (by default with Sentinel's own timings)."""

    def __init__(
        self,
        replicas: int = 2,
        *,
        down_after_ms: int = 30_000,
        failover_timeout_ms: int = 180_000,
        places: Sequence[Place] = (),
        **settings: str,
    ) -> None:
        """``places``: of the primary, the replicas and the sentinels, in this order."""
        first, *others = places or [HERE] * (replicas + 4)
        self.primary = Redis(tls=None, place=first, **settings)
        following = {"replicaof": f"{self.primary.host} {self.primary.port}", **settings}
        self.replicas = [Redis(tls=None, place=place, **following) for place in others[:replicas]]
        self.sentinels = [
            Sentinel(self.primary, down_after_ms, failover_timeout_ms, place) for place in others[replicas:]
        ]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join([f'{one.host}:{one.port}' for one in self.sentinels])}/m/0"

    def start(self) -> None:
        """Start all, and wait until the replicas follow and each sentinel knows all others."""
        for server in (self.primary, *self.replicas):
            server.start()
        count = f"connected_slaves:{len(self.replicas)}"
        wait(lambda: count in self.primary.cli("INFO", "replication").split(), "the replicas follow")
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            wait(lambda sentinel=sentinel: self._knows_all(sentinel), "the sentinels know each other")  # type: ignore[misc]  # a default binds the loop's variable

    def _knows_all(self, sentinel: Sentinel) -> bool:
        words = sentinel.cli("SENTINEL", "MASTER", "m").split()
        known = dict(zip(words[::2], words[1::2], strict=False))
        return (known.get("num-slaves"), known.get("num-other-sentinels")) == (str(len(self.replicas)), "2")

    def master(self) -> Redis:
        """The server that the sentinels name now."""
        for sentinel in self.sentinels:
            if sentinel.up:
                host, port = sentinel.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m").split()
                return next(one for one in (self.primary, *self.replicas) if (one.host, str(one.port)) == (host, port))
        raise ServerError("no sentinel is up")

    def close(self) -> None:
        for server in (*self.sentinels, self.primary, *self.replicas):
            server.close()


# ---- for a `with`


@contextlib.contextmanager
def rabbit(**options: object) -> Iterator[Rabbit]:
    """A broker that is up; the options of Rabbit."""
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


@contextlib.contextmanager
def redis(**settings: object) -> Iterator[Redis]:
    """A Redis that is up; the settings of redis.conf."""
    server = Redis(**settings)  # type: ignore[arg-type]  # passed on
    with contextlib.closing(server):
        server.start()
        yield server


@contextlib.contextmanager
def sentinels(replicas: int = 2, **options: object) -> Iterator[Sentinels]:
    """A replicated Redis under Sentinel that is up; the options of Sentinels."""
    made = Sentinels(replicas, **options)  # type: ignore[arg-type]  # passed on
    with contextlib.closing(made):
        made.start()
        yield made
