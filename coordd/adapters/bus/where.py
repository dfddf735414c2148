"""Addresses of brokers, as their URLs say them: light, so that a call of a sink loads little beside its library."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from coordd.config.addresses import UNVERIFIED
from coordd.core.redaction import redact_text
from coordd.errors import ConfigError

PORTS = {"amqp": 5672, "amqps": 5671}
REDIS_PORT = 6379


class Where(NamedTuple):
    """One broker address, as its URL says it."""

    shown: str  # for people, without the password
    host: str
    port: int
    user: str
    password: str
    space: str  # RabbitMQ's virtual host, the number of Redis' database


def of_amqp(url: str) -> Where:
    """Split a broker's URL into its parts. Raises ConfigError when it cannot be used."""
    shown = redact_text(url)
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError) as exc:
        raise ConfigError(f"[cluster] bus: {shown} is not amqp(s)://[USER@]HOST[:PORT][/VHOST]") from exc
    if not parts.hostname:
        raise ConfigError(f"[cluster] bus: {shown} names no host")
    _says_no_more(parts, shown)
    vhost = unquote(parts.path[1:]) or "/"
    return Where(
        f"RabbitMQ at {parts.hostname}:{port}",
        parts.hostname,
        port,
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        vhost,
    )


def of_redis(url: str) -> Where:
    """Split a Redis URL into its parts. Raises ConfigError when it cannot be used."""
    shown = redact_text(url)
    try:
        parts = urlsplit(url)
        port = parts.port or REDIS_PORT
        database = int(parts.path[1:] or 0)
    except ValueError as exc:
        raise ConfigError(f"[cluster] bus: {shown} is not redis(s)://[USER@]HOST[:PORT][/DATABASE]") from exc
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or database < 0:
        raise ConfigError(f"[cluster] bus: {shown} is not redis(s)://[USER@]HOST[:PORT][/DATABASE]")
    _says_no_more(parts, shown)
    return Where(
        f"Redis at {parts.hostname}:{port}",
        parts.hostname,
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        str(database),
    )


def _says_no_more(parts: SplitResult, shown: str) -> None:
    """Raises ConfigError if the URL has parameters that are settings of their own, or a fragment."""
    unknown = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if name.lower() not in UNVERIFIED]
    if unknown or parts.fragment:
        raise ConfigError(
            f"[cluster] bus: {shown}: {unknown or '#'} is not supported there; use the settings for TLS and passwords"
        )


def split(url: str) -> tuple[str, dict[str, str]]:
    """The address of a sink or a destination: as the buses take it, and what is meant there."""
    to, _, query = url.partition("?")
    return to, dict(parse_qsl(query, keep_blank_values=True))
