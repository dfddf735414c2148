"""A receiver of traces: it reads OTLP over HTTP with the message classes of opentelemetry-proto."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status


class Got(NamedTuple):
    """One span that arrived. Instants in Unix seconds; ids in hexadecimal digits."""

    trace: str
    id: str
    parent: str
    name: str
    start: float
    end: float
    status: str
    message: str
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    resource: Mapping[str, Any]


class Receiver:
    """Listens on a free port of 127.0.0.1. ``answer``: the HTTP status of each answer."""

    def __init__(self) -> None:
        self.answer = 200
        self.spans: list[Got] = []
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.hold = threading.Event()  # set: answers are given
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.hold.wait(60)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.requests.append((self.path, dict(self.headers)))
                if receiver.answer == 200:
                    receiver.take(body)
                self.send_response(receiver.answer)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, body: bytes) -> None:
        for of in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {one.key: _value(one.value) for one in of.resource.attributes}
            for span in [span for scope in of.scope_spans for span in scope.spans]:
                self.spans.append(
                    Got(
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.name,
                        span.start_time_unix_nano / 1e9,
                        span.end_time_unix_nano / 1e9,
                        Status.StatusCode.Name(span.status.code),
                        span.status.message,
                        {one.key: _value(one.value) for one in span.attributes},
                        tuple([(link.trace_id.hex(), link.span_id.hex()) for link in span.links]),
                        resource,
                    )
                )

    def of_run(self, run: str) -> list[Got]:
        """The spans about a run."""
        return [span for span in self.spans if span.attributes.get("coordd.run") == run]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found
