"""HDFS over HTTP: `webhdfs://NAMENODE:9870[,NAMENODE2:9870]/DIRECTORY[?user.name=USER]`; `swebhdfs://` with TLS.

A write has two steps: the namenode answers CREATE with the address of a datanode, which takes the data. It goes to
`NAME.part`, which is renamed when the datanode has confirmed all of it. Kerberos is not spoken here: use a command.
"""

from __future__ import annotations

import getpass
import http.client
import json
import os
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from coordd.adapters.remote.content import Content, Deadline
from coordd.errors import CoorddError, RefusedError, UnavailableError

PORT = 9870
TLS_PORT = 9871

# No step of a copy waits longer than this (seconds) for bytes.
SILENCE_S = 30.0

# An answer of the namenode is some hundred bytes of JSON.
ANSWER_BYTES_MAX = 64 * 1024

# A page of a listing: a namenode tells of up to 1,000 files at a time (dfs.ls.limit).
PAGE_BYTES_MAX = 8 * 1024 * 1024

REDIRECTS = (301, 302, 303, 307, 308)

# The part of a server's error that is told (characters).
COMPLAINT_LENGTH = 200

# What reading a number or JSON may raise that a server made up: no number, infinity, one of a million digits, a nesting
# deeper than Python's stack.
UNREADABLE = (KeyError, TypeError, ValueError, OverflowError, RecursionError)


def _user() -> str:
    """The daemon's user; a number if no list of users has it, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class DeniedError(UnavailableError):
    """The namenode says that the user may not: no other one knows better."""


class WebHdfsStore:
    """ports.RemoteStore."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        self._secure = parts.scheme == "swebhdfs"
        self._tls = (tls or ssl.create_default_context()) if self._secure else None
        self._hosts = parts.netloc.split(",")
        self._root = parts.path.rstrip("/")
        said = dict(parse_qsl(parts.query))
        self._user = said.get("user.name") or _user()

    def put(self, name: str, paths: Sequence[str], timeout_s: float) -> int:
        """CREATE, write, and rename."""
        with Content(paths) as content:
            self._store(name, content, timeout_s)
            return content.size

    def _store(self, name: str, content: Content, timeout_s: float) -> None:
        deadline = Deadline(timeout_s, f"{self.url}: {name}")
        path = f"{self._root}/{name}"
        aside = f"{path}.part"
        for host in self._turns(deadline):
            with host:
                host.create(aside, content, deadline)
                if not host.asks("PUT", path=aside, op="RENAME", destination=path).get("boolean"):
                    host.asks(
                        "DELETE", path=path, op="DELETE"
                    )  # an earlier copy, which was perhaps confirmed to nobody
                    if not host.asks("PUT", path=aside, op="RENAME", destination=path).get("boolean"):
                        raise UnavailableError(f"{host.name} does not rename {aside} to {path}")
                return

    def end(self, name: str, limit: int, timeout_s: float) -> bytes:
        """The last bytes of a file."""
        deadline = Deadline(timeout_s, f"{self.url}: {name}")
        path = f"{self._root}/{name}"
        for host in self._turns(deadline):
            with host:
                status = host.asks("GET", path=path, op="GETFILESTATUS").get("FileStatus", {})
                try:
                    size = int(status.get("length", 0))
                except (AttributeError, *UNREADABLE) as exc:
                    raise UnavailableError(f"{host.name} does not tell the size of {path}") from exc
                return host.open(path, max(0, size - limit), min(limit, size), deadline)
        raise AssertionError("one of the hosts has raised")

    def status(self, path: str, deadline: Deadline) -> dict[str, Any]:
        """The namenode's FileStatus of one path. Raises RefusedError if it is not there."""
        for host in self._turns(deadline):
            with host:
                found = host.asks("GET", path=path, op="GETFILESTATUS").get("FileStatus", {})
                return found if isinstance(found, dict) else {}
        raise AssertionError("one of the hosts has raised")

    def statuses(self, directory: str, deadline: Deadline) -> Iterator[dict[str, Any]]:
        """The entries of a directory, each a FileStatus with its name as pathSuffix. Raises as ``status`` does."""
        after = ""
        while True:
            page, left = self._page(directory, after, deadline)
            yield from page
            if not left or not page or (last := str(page[-1].get("pathSuffix", ""))) == after:
                return
            after = last

    def _page(self, directory: str, after: str, deadline: Deadline) -> tuple[list[dict[str, Any]], int]:
        more = {"startAfter": after} if after else {}
        for host in self._turns(deadline):
            with host:
                said = host.asks("GET", path=directory, limit=PAGE_BYTES_MAX, op="LISTSTATUS_BATCH", **more)
                try:
                    listing = said["DirectoryListing"]
                    found = list(listing["partialListing"]["FileStatuses"]["FileStatus"])
                    return [one for one in found if isinstance(one, dict)], int(listing["remainingEntries"])
                except UNREADABLE as exc:
                    raise UnavailableError(f"{host.name} does not list {directory} as a namenode does") from exc
        raise AssertionError("one of the hosts has raised")

    def _turns(self, deadline: Deadline) -> Iterator[_Host]:
        """The namenodes in turn: the next one if one is away, or only stands by."""
        for number, name in enumerate(self._hosts, 1):
            yield _Host(name, self._user, self._tls, deadline, last=number == len(self._hosts))


class _Host:
    """One namenode, as a context: unless it is the last one, its failure only means that the next one is tried."""

    def __init__(self, name: str, user: str, tls: ssl.SSLContext | None, deadline: Deadline, *, last: bool) -> None:
        self.name = name
        self._user = user
        self._tls = tls
        self._deadline = deadline
        self._last = last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> bool:
        return isinstance(exc, UnavailableError) and not isinstance(exc, DeniedError) and not self._last

    def asks(self, method: str, *, path: str, limit: int = ANSWER_BYTES_MAX, **query: str) -> dict[str, Any]:
        """One question to the namenode. Raises RefusedError or UnavailableError."""
        answer = self._exchange(self.name, method, self._target(path, query), None, limit=limit)
        try:
            said = json.loads(answer.body or b"{}")
        except (ValueError, RecursionError) as exc:
            raise UnavailableError(f"{self.name} does not answer in JSON: is it a namenode?") from exc
        if answer.status not in (200, 201):
            raise _error(self.name, answer)
        return said if isinstance(said, dict) else {}

    def create(self, path: str, content: Content, deadline: Deadline) -> None:
        """Both steps of a write."""
        where = self._sent_to("PUT", path, op="CREATE", overwrite="true")
        answer = self._exchange(*where[:1], "PUT", where[1], content.chunks(deadline), content.size)
        if answer.status != 201:
            raise _error(where[0], answer)

    def open(self, path: str, offset: int, length: int, deadline: Deadline) -> bytes:
        """Both steps of a read."""
        where = self._sent_to("GET", path, op="OPEN", offset=str(offset), length=str(length))
        answer = self._exchange(where[0], "GET", where[1], None, limit=length)
        deadline.left_s()
        if answer.status != 200:
            raise _error(where[0], answer)
        return answer.body

    def _sent_to(self, method: str, path: str, **query: str) -> tuple[str, str]:
        """The datanode that the namenode names, and what is asked of it."""
        answer = self._exchange(self.name, method, self._target(path, query), None)
        if answer.status not in REDIRECTS:
            raise _error(self.name, answer)
        try:
            parts = urlsplit(answer.location)
        except ValueError as exc:
            raise UnavailableError(f"{self.name} redirects to an invalid address: {exc}") from exc
        wanted = "http" if self._tls is None else "https"
        if parts.scheme != wanted or not parts.netloc:
            raise UnavailableError(f"{self.name} redirects to {parts.scheme or 'nothing'}://: expected {wanted}://")
        return parts.netloc, f"{parts.path}?{parts.query}"

    def _target(self, path: str, query: dict[str, str]) -> str:
        try:
            return f"/webhdfs/v1{quote(path)}?{urlencode({'user.name': self._user, **query})}"
        except UnicodeEncodeError as exc:  # a name that the namenode has told
            raise UnavailableError(f"{self.name} names a file that has no name in UTF-8: {path!a:.200}") from exc

    def _exchange(
        self,
        host: str,
        method: str,
        target: str,
        body: Iterator[bytes] | None,
        size: int = 0,
        *,
        limit: int = ANSWER_BYTES_MAX,
    ) -> _Answer:
        """One request on a connection of its own. Raises UnavailableError."""
        wait_s = min(SILENCE_S, self._deadline.left_s())
        try:
            connection = (
                http.client.HTTPConnection(host if ":" in host else f"{host}:{PORT}", timeout=wait_s)
                if self._tls is None
                else http.client.HTTPSConnection(
                    host if ":" in host else f"{host}:{TLS_PORT}", timeout=wait_s, context=self._tls
                )
            )
            try:
                headers = {"Content-Length": str(size)} if method == "PUT" else {}
                if body is not None:
                    headers["Content-Type"] = "application/octet-stream"
                connection.request(method, target, body, headers)
                answer = connection.getresponse()
                return _Answer(answer.status, answer.headers.get("Location", ""), answer.read(limit))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            raise UnavailableError(f"{host}: {reason}") from exc


class _Answer:
    def __init__(self, status: int, location: str, body: bytes) -> None:
        self.status = status
        self.location = location
        self.body = body


def _error(host: str, answer: _Answer) -> CoorddError:
    """An error answer: RefusedError if the file is not there; anything else may be better later."""
    try:
        said = json.loads(answer.body)["RemoteException"]
        kind, text = str(said["exception"]), str(said["message"]).partition("\n")[0]
    except UNREADABLE:
        kind, text = "", answer.body[:COMPLAINT_LENGTH].decode(errors="replace").partition("\n")[0]
    told = f"{host} answered {answer.status} {kind}: {text[:COMPLAINT_LENGTH]}".rstrip(": ")
    if kind == "AccessControlException":
        return DeniedError(told)
    return RefusedError(told, kind="no_copy") if kind == "FileNotFoundException" else UnavailableError(told)
