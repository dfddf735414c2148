"""A RabbitMQ and a Redis for one throw-away cluster, with TLS, passwords and certificates made for it."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

from coordd.adapters.kernel.prctl import die_with_parent
from coordd.errors import ConfigError, UnavailableError

HOST = "127.0.0.1"
USER = "dev"

# The programs rabbitmq-server in PATH start as another user, with the machine's own settings.
RABBIT_PATH = "/usr/lib/rabbitmq/bin"

# Each is in the Debian package of its name.
NEEDED = ("rabbitmq-server", "redis-server", "openssl")

# The certificates are for one sitting.
DAYS = "30"

# More of a log does not help.
LOG_SHOWN = 600


class Server(NamedTuple):
    """A server that was started. ``answers``: True when it takes connections."""

    name: str
    process: subprocess.Popen[bytes]
    log: str
    answers: Callable[[], bool]

    def failed(self) -> str:
        """Why it has ended, or ""."""
        code = self.process.poll()
        return "" if code is None else f"{self.name} ended with {code}: {tail(self.log)}"


def needed() -> dict[str, str]:
    """The program files of a cluster with a broker. Raises ConfigError with the ones that are missing."""
    path = f"{RABBIT_PATH}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    found = {program: shutil.which(program, path=path) for program in NEEDED}
    missing = sorted(program for program, file in found.items() if file is None)
    if missing:
        raise ConfigError(
            f"--bus amqp starts servers of its own, and these are not installed: {', '.join(missing)}"
            f" (Debian: apt-get install {' '.join(missing)}); --bus unix needs none of them"
        )
    return {program: file for program, file in found.items() if file}


def certificates(openssl: str, place: str) -> None:
    """ca.pem, cert.pem and key.pem below ``place``. Raises UnavailableError."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    ca_key, request, extensions = f"{place}/ca-key.pem", f"{place}/request.pem", f"{place}/extensions"
    write(extensions, f"subjectAltName=IP:{HOST}\n")
    signed = ["-CA", f"{place}/ca.pem", "-CAkey", ca_key, "-CAcreateserial", "-days", DAYS, "-extfile", extensions]
    for argv in (
        [
            "req",
            "-x509",
            *curve,
            "-days",
            DAYS,
            "-keyout",
            ca_key,
            "-out",
            f"{place}/ca.pem",
            "-subj",
            "/CN=coordd dev",
        ],
        ["req", *curve, "-keyout", f"{place}/key.pem", "-out", request, "-subj", f"/CN={HOST}"],
        ["x509", "-req", "-in", request, *signed, "-out", f"{place}/cert.pem"],
    ):
        done = subprocess.run(
            [openssl, *argv], stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, check=False
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-LOG_SHOWN:]
            raise UnavailableError(f"openssl {argv[0]} failed with {done.returncode}: {said}")


def rabbitmq(program: str, place: str, certs: str, password: str, ports: list[int]) -> Server:
    """Start RabbitMQ. ``ports``: of the broker (TLS), of Erlang's distribution, of Erlang's name service."""
    os.makedirs(place, mode=0o700)
    write(f"{place}/.erlang.cookie", secrets.token_hex(16), 0o400)
    write(f"{place}/enabled_plugins", "[].")
    write(f"{place}/advanced.config", "[].")
    write(f"{place}/env.conf", "")
    lines = [
        "listeners.tcp = none",
        f"listeners.ssl.1 = {HOST}:{ports[0]}",
        f"ssl_options.cacertfile = {certs}/ca.pem",
        f"ssl_options.certfile = {certs}/cert.pem",
        f"ssl_options.keyfile = {certs}/key.pem",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
        f"default_user = {USER}",
        f"default_pass = {password}",
        "disk_free_limit.absolute = 50MB",
    ]
    write(f"{place}/rabbitmq.conf", "\n".join(lines) + "\n", 0o600)
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": place,
        "RABBITMQ_CONF_ENV_FILE": f"{place}/env.conf",
        "RABBITMQ_NODENAME": f"dev{ports[0]}@{HOST}",
        "RABBITMQ_USE_LONGNAME": "true",
        "RABBITMQ_DIST_PORT": str(ports[1]),
        "ERL_EPMD_PORT": str(ports[2]),  # never the machine's own name service
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_MNESIA_BASE": f"{place}/data",
        "RABBITMQ_LOG_BASE": f"{place}/log",
        "RABBITMQ_PID_FILE": f"{place}/pid",
        "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq",
        "RABBITMQ_ADVANCED_CONFIG_FILE": f"{place}/advanced.config",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/enabled_plugins",
        "RABBITMQ_FEATURE_FLAGS_FILE": f"{place}/feature_flags",
        # Threads that sleep when there is nothing to do; Erlang's distribution on the loopback only.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
        f" -kernel inet_dist_use_interface {{{HOST.replace('.', ',')}}}",
        "RUNNING_UNDER_SYSTEMD": "1",  # the script replaces itself by the broker
    }
    return _server("RabbitMQ", [program], place, env, ports[0])


def redis(program: str, place: str, certs: str, password: str, port: int) -> Server:
    """Start Redis as a ledger needs it."""
    os.makedirs(place, mode=0o700)
    lines = [
        "port 0",
        f"bind {HOST}",
        f"tls-port {port}",
        f"tls-ca-cert-file {certs}/ca.pem",
        f"tls-cert-file {certs}/cert.pem",
        f"tls-key-file {certs}/key.pem",
        "tls-auth-clients no",
        f"requirepass {password}",
        f"dir {place}",
        "appendonly yes",
        "maxmemory-policy noeviction",
        'save ""',
    ]
    write(f"{place}/redis.conf", "\n".join(lines) + "\n", 0o600)
    env = {"PATH": "/usr/bin:/bin", "HOME": place, "LANG": "C.UTF-8"}
    return _server("Redis", [program, f"{place}/redis.conf"], place, env, port)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    claims = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [claim.getsockname()[1] for claim in claims]
    finally:
        for claim in claims:
            claim.close()


def start(argv: list[str], log: str, env: dict[str, str], directory: str) -> subprocess.Popen[bytes]:
    """A child in a session of its own (^C on the terminal is for us), which the kernel kills if we are killed."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            argv,
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # this process has one thread
        )


def write(path: str, text: str, mode: int = 0o644) -> None:
    """A new file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def tail(log: str) -> str:
    """The end of a log."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            return file.read()[-LOG_SHOWN:].strip()
    except OSError:
        return ""


def _server(name: str, argv: list[str], place: str, env: dict[str, Any], port: int) -> Server:
    log = f"{place}/output"
    return Server(name, start(argv, log, env, place), log, lambda: _listens(port))


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 1.0):
            return True
    except OSError:
        return False
