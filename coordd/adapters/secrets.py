"""Passwords and TLS material from files and systemd credentials; read each time, so that a reload rotates them.

And the memory that they are read into.
"""

from __future__ import annotations

import os
import stat

from coordd.errors import ConfigError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

# The kernel's number (linux/prctl.h).
PR_SET_DUMPABLE = 4

# No password is longer; a longer file was named by mistake.
PASSWORD_BYTES_MAX = 4096


def password(path: str, credential: str) -> str:
    """The password in a file, or in the systemd credential of that name when ``path`` is empty; "" without either.

    A final line feed is not part of it.

    Raises:
        UnavailableError: it cannot be read, or contains no password. The message never contains the content.
    """
    from coordd.config import ownership  # a runner makes its TLS contexts here, and needs no more than that

    if not path:
        directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
        path = os.path.join(directory, credential) if directory else ""
        if not path or not os.path.exists(path):
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


def tls_context(ca: str = "", cert: str = "", key: str = "", *, verify: bool = True) -> ssl.SSLContext:
    """TLS 1.2 or newer, the server's chain and name verified.

    ``ca`` replaces the system's authorities; ``cert`` (with ``key``, unless it is in the same file) shows who we are.

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
    if cert:
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


def _why(exc: Exception) -> str:
    """SSLError is an OSError; its text names a line of C, its reason says what is wrong."""
    reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
    return str(reason).replace("_", " ").lower()


def close_memory() -> bool:
    """Close this process to others of its user: no ptrace, no /proc/PID/mem, environ or fd, no core dump.

    Programs that it starts are open again: the kernel resets this at exec. Runners and watchers stay open on purpose:
    where /proc hides what cannot be traced (ProtectProc=invisible), the daemon could not see whether they live.
    Returns False if the kernel refuses.
    """
    import ctypes

    return bool(ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
