"""A stand-in for a namenode and a datanode: as much of WebHDFS as copies need, with the faults that a test asks for.

It follows the WebHDFS REST API of Apache Hadoop 3: CREATE and OPEN answer 307 with the address of a datanode; RENAME
answers {"boolean": false} if the target exists; errors are a RemoteException in JSON.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

# Entries of one answer to LISTSTATUS_BATCH.
PAGE = 3

PREFIX = "/webhdfs/v1"


class Hdfs:
    """Used as a context. ``files`` has what is stored, by path. ``broken`` is the status that every answer has."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.changed: dict[str, int] = {}  # path -> milliseconds since 1970
        self.asked: list[tuple[str, str]] = []  # (method, operation)
        self.users: set[str] = set()
        self.broken = 0
        self.standby = False
        self.denied: set[str] = set()  # paths that the user may not read
        self.says: bytes | None = None  # the body that every answer has, with status 200
        self.redirects_to = ""  # instead of a datanode
        self.drops_data = False  # the datanode closes the connection before it has confirmed
        hdfs = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                hdfs.answer(self)

            do_GET = do_DELETE = do_PUT  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"webhdfs://{self.address}/logs?user.name=coordd"

    def _status(self, path: str, suffix: str = "") -> dict[str, Any]:
        kind = "FILE" if path in self.files else "DIRECTORY"
        size = len(self.files.get(path, b""))
        changed = self.changed.get(path, 1_700_000_000_000)
        return {"type": kind, "length": size, "modificationTime": changed, "pathSuffix": suffix, "permission": "644"}

    def _listed(self, directory: str) -> list[dict[str, Any]]:
        names = {
            path.removeprefix(f"{directory}/").partition("/")[0]
            for path in self.files
            if path.startswith(f"{directory}/")
        }
        return [self._status(f"{directory}/{name}", name) for name in sorted(names)]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = unquote(parts.path).removeprefix(PREFIX)
        op = query.get("op", "")
        self.asked.append((request.command, op))
        self.users.add(query.get("user.name", ""))
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if self.broken:
            _say(request, self.broken, b"<html>try later</html>")
        elif self.says is not None:
            _say(request, 200, self.says)
        elif self.standby:
            _refuse(request, 403, "StandbyException", "Operation category WRITE is not supported in state standby")
        elif path in self.denied:
            _refuse(request, 403, "AccessControlException", f"Permission denied: user=etl, inode={path}")
        elif op in ("CREATE", "OPEN") and "datanode" not in query:
            if op == "OPEN" and path not in self.files:
                _refuse(request, 404, "FileNotFoundException", f"File {path} not found.")
                return
            request.send_response(307)
            there = self.redirects_to or f"http://{self.address}{request.path}&datanode=true"
            request.send_header("Location", there)
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif op == "CREATE":
            if self.drops_data:
                request.close_connection = True
                return
            self.files[path] = body
            _say(request, 201, b"")
        elif op == "OPEN":
            first = int(query.get("offset", 0))
            _say(request, 200, self.files[path][first : first + int(query["length"])])
        elif op == "RENAME":
            done = path in self.files and query["destination"] not in self.files
            if done:
                self.files[query["destination"]] = self.files.pop(path)
            _say(request, 200, json.dumps({"boolean": done}).encode())
        elif op == "DELETE":
            _say(request, 200, json.dumps({"boolean": self.files.pop(path, None) is not None}).encode())
        elif op == "GETFILESTATUS" and path in self.files:
            _say(request, 200, json.dumps({"FileStatus": self._status(path)}).encode())
        elif op == "LISTSTATUS_BATCH" and (found := self._listed(path)):
            _say(request, 200, json.dumps(_page(found, query.get("startAfter", ""))).encode())
        else:
            _refuse(request, 404, "FileNotFoundException", f"File does not exist: {path}")


def _page(found: list[dict[str, Any]], after: str) -> dict[str, Any]:
    left = [one for one in found if one["pathSuffix"] > after]
    page = {"FileStatuses": {"FileStatus": left[:PAGE]}}
    return {"DirectoryListing": {"partialListing": page, "remainingEntries": len(left[PAGE:])}}


def _say(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _refuse(request: BaseHTTPRequestHandler, status: int, kind: str, message: str) -> None:
    _say(request, status, json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode())
