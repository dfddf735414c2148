"""Sends spans over OTLP in a thread of its own: a receiver that is slow or away holds nothing up.

A bounded queue, a bounded number of tries: what does not fit, or is not taken, is dropped and counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from coordd.core.redaction import redact_text
from coordd.core.trace import Span

# Spans that wait; one run has about seven.
WAITING_MAX = 4096
BATCH = 256

# A batch is tried this often, with pauses (seconds) that double up to the second value. Each try of the exporter has
# its own deadline (OTEL_EXPORTER_OTLP_TIMEOUT, 10 s), within which it repeats by itself.
TRIES = 4
PAUSE_S = 1.0
PAUSE_MAX_S = 8.0

# With one of these variables, the session comes from a plug-in of the site, and keeps its own rules.
PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)

LIBRARIES = ("opentelemetry", "urllib3")


class OtlpExporter:
    """A port's SpanExporter."""

    def __init__(self, endpoint: str, *, cluster: str, node: str, version: str) -> None:
        own = {
            "service.name": "coordd",
            "service.version": version,
            "service.instance.id": node,
            "host.name": node,
            "coordd.cluster": cluster,
        }
        self._resource = Resource(own).merge(OTELResourceDetector().detect())  # the environment's word counts
        self._sampler = TracerProvider(
            resource=self._resource, shutdown_on_exit=False
        ).sampler  # as OTEL_TRACES_SAMPLER
        self._scope = InstrumentationScope("coordd", version)
        self.counts: Counter[str] = Counter()
        self.problem = ""  # why the last batch was not taken
        self._said = _Said()
        for name in LIBRARIES:  # they would write to stderr what `problem` says
            library = logging.getLogger(name)
            library.addHandler(self._said)
            library.propagate = False
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=_session())
        self._waiting: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing_at = 0.0  # CLOCK_MONOTONIC
        self._thread = threading.Thread(target=self._serve, name="traces", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Spans that are not sent yet."""
        return len(self._waiting)

    def sampled(self, trace: str) -> bool:
        """True if this trace is recorded; the same on nodes with the same OTEL_TRACES_SAMPLER."""
        return self._sampler.should_sample(None, int(trace, 16), "run").decision is Decision.RECORD_AND_SAMPLE

    def offer(self, spans: Sequence[Span]) -> None:
        """Send them some time. Never waits, never raises."""
        wanted = [span for span in spans if self.sampled(span.trace)]
        with self._changed:
            room = max(0, WAITING_MAX - len(self._waiting))
            self._waiting.extend(wanted[:room])
            self.counts["dropped"] += len(wanted) - min(room, len(wanted))
            self._changed.notify()

    def close(self, within_s: float) -> None:
        """Send what waits, within this time (seconds); blocks."""
        with self._changed:
            self._closing_at = time.monotonic() + within_s
            self._changed.notify()
        self._thread.join(within_s)

    # ---- the thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing_at:
                    self._changed.wait()
                if not self._waiting:
                    return
                batch = [self._waiting[place] for place in range(min(BATCH, len(self._waiting)))]
            sent = self._sent(batch)
            with self._changed:
                for _ in batch:
                    self._waiting.popleft()
                self.counts["sent" if sent else "dropped"] += len(batch)

    def _sent(self, batch: Sequence[Span]) -> bool:
        """Try, a few times; False if nobody took it."""
        pause_s = PAUSE_S
        for _ in range(TRIES):
            self._said.last = ""
            try:
                if self._exporter.export([self._made(span) for span in batch]) is SpanExportResult.SUCCESS:
                    self.problem = ""
                    return True
                self.problem = self._said.last or "the receiver did not take the spans"
            except Exception as exc:  # the library's boundary: this thread must go on
                self.problem = redact_text(f"{type(exc).__name__}: {exc!s:.300}")
            with self._changed:
                if not self._closing_at:
                    self._changed.wait_for(lambda: self._closing_at, pause_s)
                if self._closing_at and time.monotonic() >= self._closing_at - pause_s:
                    return False
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return False

    def _made(self, span: Span) -> ReadableSpan:
        """As the library has it."""
        status = Status() if span.good is None else Status(StatusCode.OK)
        if span.good is False:
            status = Status(StatusCode.ERROR, span.reason)
        return ReadableSpan(
            span.name,
            _context(span.trace, span.id),
            _context(span.trace, span.parent) if span.parent else None,
            self._resource,
            span.attributes,
            links=[Link(_context(span.trace, other)) for other in span.links],
            status=status,
            start_time=round(span.start * 1e9),
            end_time=round(max(span.start, span.end) * 1e9),
            instrumentation_scope=self._scope,
        )


def _session() -> requests.Session | None:
    """A session that takes an answer of 300 to 399 for a failure: the exporter would count it as success."""
    if any(os.environ.get(name) for name in PROVIDERS):
        return None
    session = requests.Session()
    session.hooks["response"].append(_refuse_redirect)
    return session


def _refuse_redirect(answer: requests.Response, **_: Any) -> None:
    if 300 <= answer.status_code < 400:
        answer.close()
        said = f"the receiver answered {answer.status_code} {answer.reason}"
        raise requests.HTTPError(f"{said}, so it is at another address: correct [tracing] otlp")


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class _Said(logging.Handler):
    """Keeps the last complaint of the libraries."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.last = redact_text(record.getMessage())[:400]
