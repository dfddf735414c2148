"""Passwords and TLS material from files and systemd credentials; read each time, so that a reload rotates them."""

from __future__ import annotations

import os
import stat

from coordd.errors import ConfigError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import Any

    from coordd.config.sections import ClusterConfig

# The names of systemd credentials.
BUS_PASSWORD = "bus_password"  # noqa: S105  # no secret
LEDGER_PASSWORD = "ledger_password"  # noqa: S105  # no secret
JOBS_PASSWORD = "jobs_password"  # noqa: S105  # no secret
MIRROR_PASSWORD = "mirror_password"  # noqa: S105  # no secret

# No password is longer; a longer file was named by mistake.
PASSWORD_BYTES_MAX = 4096


def password(path: str, credential: str) -> str:
    """The password in a file, or in the systemd credential of that name when ``path`` is empty; "" without either.

    A final line feed is not part of it.

    Raises:
        UnavailableError: it cannot be read, or contains no password. The message never contains the content.
    """
    from coordd.config import ownership  # a runner makes its TLS contexts here, and needs no more than that

    path = password_path(path, credential)
    if not path:
        return ""
    what = f"the password file {path}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block a reconnect
        with open(fd, "rb") as file:
            opened = os.fstat(fd)
            if not stat.S_ISREG(opened.st_mode):
                raise UnavailableError(f"{what}: expected a regular file")
            exposed = ownership.fault(path, opened)
            if not exposed and not ownership.is_credential(path, os.environ):
                exposed = ownership.secret_fault(path, opened)
            if exposed:
                raise UnavailableError(f"{what}: {exposed}")
            data = file.read(PASSWORD_BYTES_MAX + 1)
    except (OSError, ValueError) as exc:
        raise UnavailableError(f"{what} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if len(data) > PASSWORD_BYTES_MAX:
        raise UnavailableError(f"{what}: expected at most {PASSWORD_BYTES_MAX} bytes, found more")
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UnavailableError(f"{what}: expected UTF-8") from None  # the cause would contain the content
    if not text:
        raise UnavailableError(f"{what}: it is empty")
    if any(character in text for character in "\0\r\n"):
        raise UnavailableError(f"{what}: expected one line")
    return text


def password_path(path: str, credential: str) -> str:
    """The file of a password: ``path``, or the systemd credential of that name; "" without either."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if path or not directory:
        return path
    found = os.path.join(directory, credential)
    return found if os.path.exists(found) else ""


def bus_password(cluster: ClusterConfig) -> str:
    """The password for the bus; "" leaves that of the URL. Raises UnavailableError as ``password`` does."""
    return password(cluster.bus_password_file, BUS_PASSWORD)


def tls_of(url: str, cluster: ClusterConfig) -> ssl.SSLContext | None:
    """The TLS context for one connection to this address, or None. Raises ConfigError as ``tls_context`` does."""
    from coordd.config.addresses import ENCRYPTED, unverified

    if url.partition("://")[0] not in ENCRYPTED:
        return None
    return tls_context(cluster.tls_ca, cluster.tls_cert, cluster.tls_key, verify=not unverified(url))


def redis_tls(url: str, cluster: ClusterConfig) -> dict[str, Any]:
    """redis-py's parameters for a connection to this address; {} without encryption."""
    from coordd.config.addresses import ENCRYPTED, unverified

    if url.partition("://")[0] not in ENCRYPTED:
        return {}
    unsafe = bool(unverified(url))
    paths = {"ssl_ca_certs": cluster.tls_ca}
    if not unsafe:  # as in ``tls_context``
        paths |= {"ssl_certfile": cluster.tls_cert, "ssl_keyfile": cluster.tls_key}
    # redis-py 5 does not check the name in the certificate unless it is told to.
    checks = {"ssl_cert_reqs": "none" if unsafe else "required", "ssl_check_hostname": not unsafe}
    return {"ssl": True, **{name: path for name, path in paths.items() if path}, **checks}


def tls_context(ca: str = "", cert: str = "", key: str = "", *, verify: bool = True) -> ssl.SSLContext:
    """TLS 1.2 or newer, the server's chain and name verified.

    ``ca`` replaces the system's authorities; ``cert`` (with ``key``, unless it is in the same file) shows who we are. A
    server that is not verified does not get our certificate.

    Raises:
        ConfigError: a file cannot be used; it says which setting.
    """
    import ssl  # 10 ms, which a runner on a plain connection saves

    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"[cluster] tls_ca: {ca}: expected certificates in PEM: {_why(exc)}") from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert and verify:
        try:
            # The empty password prevents OpenSSL from asking for one on a terminal.
            context.load_cert_chain(cert, key or None, password="")
        except (OSError, ValueError) as exc:
            named = f"tls_key: {key}" if key else f"tls_cert: {cert}"
            raise ConfigError(
                f"[cluster] {named}: expected a certificate (tls_cert) and its key without a passphrase, in PEM: "
                f"{_why(exc)}"
            ) from exc
    return context


def tls_listener(cert: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or newer for connections that others open. Raises ConfigError: a file cannot be used."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key or None, password="")
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"[cluster] tls_cert: {cert}: expected a certificate and its key, in PEM: {_why(exc)}"
        ) from exc
    return context


def _why(exc: Exception) -> str:
    """SSLError is an OSError; its text names a line of C, its reason says what is wrong."""
    reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
    return str(reason).replace("_", " ").lower()
