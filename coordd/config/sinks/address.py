"""Where the logs of attempts and the closed segments of the journal are copied: the settings of [history], checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from coordd.config import values

if TYPE_CHECKING:
    from coordd.config.sections import HistoryConfig

# Stores with a client of their own. Every other scheme is a command's.
BUILT_IN = ("file", "webhdfs", "swebhdfs")

EXAMPLE = 'sink_put = ["/usr/bin/aws", "s3", "cp", "{source}", "{target}"]'


def read_url(value: object) -> str:
    """The address of a sink, or ""."""
    said = values.text(value)
    if not said:
        return ""
    scheme, mark, rest = said.partition("://")
    try:
        parts = urlsplit(said)
    except ValueError:
        parts = None
    if not mark or not scheme.isascii() or not scheme.isalnum() or not rest or parts is None or " " in said:
        raise ValueError(f"expected an address such as file:///mnt/logs or webhdfs://nn:9870/logs, found {said!r}")
    if "@" in parts.netloc:
        raise ValueError("expected an address without user and password")
    if scheme == "file" and (not rest.startswith("/") or "?" in rest):
        raise ValueError(f"expected file:// and an absolute path, found {said!r}")
    if scheme in BUILT_IN[1:]:
        _check_webhdfs(said, parts.netloc, parts.path, parts.query)
    return said


def _check_webhdfs(said: str, hosts: str, path: str, query: str) -> None:
    wrong = [host for host in hosts.split(",") if not _is_host(host)]
    if wrong or not path.startswith("/"):
        raise ValueError(f"expected webhdfs://HOST[:PORT][,HOST[:PORT]]/DIRECTORY, found {said!r}")
    unknown = [name for name, _ in parse_qsl(query, keep_blank_values=True) if name != "user.name"]
    if unknown:
        raise ValueError(f"expected only user.name after the question mark, found {unknown[0]!r}")


def _is_host(text: str) -> bool:
    host, colon, port = text.partition(":")
    return bool(host) and (not colon or (port.isascii() and port.isdecimal() and 0 < int(port) < 65536))


def read_command(value: object) -> tuple[str, ...]:
    """A program and its arguments; empty: no command."""
    words = values.texts(value)
    if words and not words[0].startswith("/"):
        raise ValueError("expected a program with its absolute path, and its arguments")
    if words and not any("{target}" in word for word in words[1:]):
        raise ValueError("expected {target}, the address of the copy, among the arguments")
    return words


def conflicts(history: HistoryConfig) -> Iterator[tuple[str, str]]:
    """(setting, sentence) for each sink that nothing can write."""
    if history.sink_put and not any("{source}" in word for word in history.sink_put[1:]):
        yield "history.sink_put", f"expected {{source}}, the file that is copied, among the arguments: {EXAMPLE}"
    for setting in ("log_sink", "journal_sink"):
        url = getattr(history, setting)
        scheme = url.partition("://")[0]
        if url and scheme not in BUILT_IN and not history.sink_put:
            known = ", ".join(f"{name}://" for name in BUILT_IN)
            why = f"{scheme}:// needs a command, and only {known} do not"
            yield f"history.{setting}", f"{why}: set history.sink_put, such as {EXAMPLE}"
