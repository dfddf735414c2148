"""The addresses of buses and ledgers: well-formed, and safe to send a password to."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, parse_qsl, urlsplit

from coordd.config.values import found, texts

# A comma separates addresses only if an address follows: a password may contain a comma.
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z][a-z+]*://)")

# scheme -> an example of a valid address.
EXAMPLES = {
    "unix": "unix:///run/coordd/bus",
    "sqlite": "sqlite:////var/lib/coordd/ledger.db (four slashes)",
    "amqp": "amqp://user@broker:5672/vhost",
    "amqps": "amqps://user@broker:5671/vhost",
    "postgresql": "postgresql://user@host:5432/database?sslmode=verify-full",
    "redis": "redis://host:6379/0",
    "rediss": "rediss://host:6379/0",
    "redis+sentinel": "redis+sentinel://host1:26379,host2:26379/MASTER/0",
    "rediss+sentinel": "rediss+sentinel://host1:26379,host2:26379/MASTER/0",
}
ENCRYPTED = frozenset(("amqps", "rediss", "rediss+sentinel"))
# Schemes without encryption, and what to use instead.
PLAIN = {"amqp": "amqps", "redis": "rediss", "redis+sentinel": "rediss+sentinel", "http": "https"}
_VERIFIED_TLS = {("sslmode", "verify-full"), ("sslmode", "verify-ca")}
LOCAL = frozenset(("unix", "sqlite"))

# URL parameters that switch off the verification of certificates, with the values that leave it on.
UNVERIFIED = {
    "no_verify_ssl": frozenset(("0", "false", "no")),
    "verify_ssl": frozenset(("1", "true", "yes")),
    "ssl_cert_reqs": frozenset(("required",)),
    "ssl_check_hostname": frozenset(("1", "true", "yes")),
}


def split(text: str) -> tuple[str, ...]:
    """Split a text into its addresses, at commas."""
    return tuple([url for url in _BETWEEN.split(text.strip().rstrip(", ")) if url])


# A name of DNS, with the underscore that containers have in theirs.
_LABELS = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
NAME_LENGTH_MAX = 253

_LISTENING = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", re.ASCII)


def listening(value: object) -> str:
    """Host and port to listen on, or ""."""
    if value == "":
        return ""
    match = _LISTENING.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[1]) < 65536:
        raise ValueError(f"expected HOST:PORT such as 127.0.0.1:9530 or [::1]:9530, found {found(value)}")
    return match[0]


LISTENERS_MAX = 16


def all_listening(value: object) -> tuple[str, ...]:
    """Where nodes listen, one after the other."""
    read = tuple([listening(one) for one in texts(value)])
    if len(read) > LISTENERS_MAX or not all(read):
        raise ValueError(f"expected up to {LISTENERS_MAX} times HOST:PORT, found {len(read)}, or an empty one")
    return read


def check(url: str, schemes: tuple[str, ...]) -> None:
    """Raise ValueError with the expected and the found value, without passwords."""
    scheme, separator, rest = url.partition("://")
    if scheme not in schemes or not separator:
        raise ValueError(f"expected a URL that starts with one of {', '.join(schemes)} and ://, found {found(url)}")
    wrong = f"as in {EXAMPLES[scheme]}, found {found(url)}"
    if scheme in LOCAL:
        prefix = "unix:///" if scheme == "unix" else "sqlite:////"
        if not url.startswith(prefix) or url == prefix:
            raise ValueError(f"expected an absolute path {wrong}")
        return
    if any(character.isspace() for character in rest):
        raise ValueError(f"expected a URL without spaces {wrong}")
    try:
        parts = urlsplit(url)
        listed = hosts(url)
    except ValueError as exc:
        raise ValueError(f"expected a host and a port from 1 to 65535 {wrong}") from exc
    if not listed or not all(listed):
        raise ValueError(f"expected a host {wrong}")
    unknown = [host for host in listed if not _can_be_looked_up(host)] if scheme != "postgresql" else []  # or a socket
    if unknown:
        raise ValueError(
            f"expected a host that can be looked up {wrong}: {found(unknown[0])} is not a name or an address"
        )
    if parts.fragment or "#" in url:
        raise ValueError(f"expected no # (in a password or a vhost it is written %23) {wrong}")
    _check_path(scheme, parts, wrong)


def _check_path(scheme: str, parts: SplitResult, wrong: str) -> None:
    path = parts.path.removeprefix("/")
    if scheme in ("amqp", "amqps"):
        if "/" in path:
            raise ValueError(f"expected one vhost (a slash in its name is written %2F) {wrong}")
        return
    if scheme == "postgresql":
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", path, re.ASCII):
            raise ValueError(f"expected the name of a database {wrong}")
        return
    if scheme.endswith("+sentinel"):
        master, _, path = path.partition("/")
        if not master:
            raise ValueError(f"expected the name of the master behind the sentinels {wrong}")
    if path and not re.fullmatch(r"[0-9]{1,5}", path, re.ASCII):
        raise ValueError(f"expected the number of a database {wrong}")


def hosts(url: str) -> tuple[str, ...]:
    """The hosts of a URL: several for sentinels. Raises ValueError for an invalid host or port."""
    listed = urlsplit(url).netloc.rpartition("@")[2].split(",")
    several = url.partition("://")[0].endswith("+sentinel")
    if len(listed) > 1 and not several:
        raise ValueError("one host")
    said = []
    for one in listed:
        parts = urlsplit(f"//{one}")
        if parts.port == 0:  # reading it checks it
            raise ValueError("port 0")
        said.append(parts.hostname or "")
    return tuple(said)


def insecure(url: str) -> list[str]:
    """Reasons not to send a password or a message to that address, as sentences; empty if it is safe."""
    scheme = url.partition("://")[0]
    if scheme in LOCAL:
        return []
    reasons = [clear] if (clear := in_clear(url)) else []
    name = unverified(url)
    if name:
        reasons.append(f"{name} in the URL believes any server's certificate: set tls_ca to the authority instead")
    return reasons


def in_clear(url: str) -> str:
    """Why others on the network could read what is sent to that address, as a sentence; "" if they cannot."""
    scheme = url.partition("://")[0].lower()
    better = PLAIN.get(scheme)
    if scheme == "postgresql" and not _VERIFIED_TLS & set(parse_qsl(urlsplit(url).query)):
        better = "postgresql"
    far = [host for host in hosts(url) if not is_loopback(host)] if better else []
    if not far:
        return ""
    how = "…?sslmode=verify-full" if scheme == "postgresql" else ""
    return (
        f"{scheme}:// to {', '.join(far)} is not encrypted, and others on the network read passwords and "
        f"change messages: use {better}://{how}, or a tunnel on this machine"
    )


def unverified(url: str) -> str:
    """The URL parameter that switches verification off, or ""."""
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name.lower() in UNVERIFIED and value.lower() not in UNVERIFIED[name.lower()]:
            return name
    return ""


def has_password(url: str) -> bool:
    """True if the URL contains a password."""
    if url.partition("://")[0] in LOCAL:
        return False
    parts = urlsplit(url)
    return ":" in parts.netloc.rpartition("@")[0] or any(name == "password" for name, _ in parse_qsl(parts.query))


def _can_be_looked_up(host: str) -> bool:
    """True for an IP address, and for a name that a resolver can be asked for."""
    try:
        ipaddress.ip_address(host.partition("%")[0])  # %: the zone of IPv6
        return True
    except ValueError:
        pass
    if host.isascii():
        return len(host) <= NAME_LENGTH_MAX and _LABELS.fullmatch(host) is not None
    try:
        return bool(host.encode("idna")) and "_" not in host  # which no international name has
    except UnicodeError:
        return False


def is_loopback(host: str) -> bool:
    """True if only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
