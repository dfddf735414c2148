"""The exporter of spans: bounded, in a thread of its own, and honest about what it lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from support.servers.otlp import Receiver

from coordd.adapters.tracing import otlp
from coordd.adapters.tracing.otlp import OtlpExporter
from coordd.config.sections import Config, TracingConfig
from coordd.core.trace import Span, span_id, trace_id
from coordd.launching import make_exporter

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "PAUSE_S", 0.01)
    monkeypatch.setattr(otlp, "PAUSE_MAX_S", 0.02)
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def exporter(receiver: Receiver) -> OtlpExporter:
    return OtlpExporter(f"{receiver.url}/v1/traces", cluster="c", node="edge-1", version="9")


def span(number: int, **fields: Any) -> Span:
    trace = trace_id("c", f"x#{number}")
    made = Span(trace, span_id(trace, "run"), "", "run x", NOW, NOW + 1.5, {"coordd.run": f"x#{number}"})
    return made._replace(**fields)


def until(what: Callable[[], object]) -> None:
    limit = time.monotonic() + 30
    while not what():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_spans_arrive_as_they_are() -> None:
    with Receiver() as receiver:
        sender = exporter(receiver)
        trace = trace_id("c", "x#1")
        other = span_id(trace, "attempt", 0)
        sender.offer([span(1, parent=other, good=False, reason="failure: 3", links=(other,)), span(2, good=True)])
        until(lambda: len(receiver.spans) == 2)
        first, second = receiver.spans
        assert (first.trace, first.id, first.parent) == (trace, span_id(trace, "run"), other)
        assert (first.start, first.end) == (NOW, NOW + 1.5)
        assert (first.status, first.message) == ("STATUS_CODE_ERROR", "failure: 3")
        assert first.links == ((trace, other),)
        assert (second.status, second.parent, second.attributes) == ("STATUS_CODE_OK", "", {"coordd.run": "x#2"})
        named = ("service.name", "service.instance.id", "service.version", "coordd.cluster")
        assert [second.resource[key] for key in named] == ["coordd", "edge-1", "9", "c"]
        until(lambda: sender.counts == {"sent": 2, "dropped": 0})
        assert (sender.waiting, sender.problem) == (0, "")
        sender.close(5.0)


def test_what_nobody_takes_is_tried_a_few_times_then_dropped_and_named() -> None:
    with Receiver() as receiver:
        receiver.answer = 400
        sender = exporter(receiver)
        sender.offer([span(1)])
        until(lambda: sender.counts["dropped"] == 1)
        assert len(receiver.requests) == otlp.TRIES
        assert "400" in sender.problem
        receiver.answer = 200
        sender.offer([span(2)])
        until(lambda: sender.counts["sent"] == 1)
        assert sender.problem == ""
        sender.close(5.0)


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 308])
def test_an_answer_that_names_another_address_is_no_success(status: int) -> None:
    with Receiver() as receiver:
        receiver.answer = status
        sender = exporter(receiver)
        sender.offer([span(1)])
        until(lambda: sender.counts["sent"] + sender.counts["dropped"])
        assert (sender.counts["sent"], sender.counts["dropped"]) == (0, 1)
        assert f"the receiver answered {status}" in sender.problem
        assert len(receiver.requests) == otlp.TRIES
        sender.close(5.0)


def test_the_session_of_a_credential_provider_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "no-such-provider")
    with Receiver() as receiver, pytest.raises(RuntimeError, match="no-such-provider"):
        exporter(receiver)


def test_the_queue_is_bounded_and_nobody_waits_for_a_receiver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "WAITING_MAX", 10)
    with Receiver() as receiver:
        receiver.hold.clear()
        sender = exporter(receiver)
        for number in range(100):
            sender.offer([span(number)])
        assert sender.waiting == 10
        assert sender.counts["dropped"] == 90
        sender.close(0.1)
        assert sender.waiting <= 10


def test_a_close_sends_what_waits() -> None:
    with Receiver() as receiver:
        sender = exporter(receiver)
        sender.offer([span(number) for number in range(600)])
        sender.close(20.0)
        assert len(receiver.spans) == 600
        assert len(receiver.requests) == 3, "in batches"


def test_a_span_that_cannot_be_written_does_not_end_the_thread() -> None:
    with Receiver() as receiver:
        sender = exporter(receiver)
        sender.offer([span(1, start=-5.0)])
        until(lambda: sender.counts["dropped"] == 1)
        sender.offer([span(2)])
        until(lambda: sender.counts["sent"] == 1)
        sender.close(5.0)


def test_a_password_in_the_address_is_in_no_complaint() -> None:
    sender = OtlpExporter("http://me:hunter2@127.0.0.1:99999/v1/traces", cluster="c", node="edge-1", version="9")
    sender.offer([span(1)])
    until(lambda: sender.problem)
    assert "127.0.0.1:99999" in sender.problem
    assert "hunter2" not in sender.problem
    sender.close(5.0)


def test_the_environment_chooses_traces_and_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "batch")
    with Receiver() as receiver:
        sender, same = exporter(receiver), exporter(receiver)
        traces = [trace_id("c", f"x#{number}") for number in range(200)]
        chosen = [trace for trace in traces if sender.sampled(trace)]
        assert 60 < len(chosen) < 140
        assert chosen == [trace for trace in traces if same.sampled(trace)], "every node chooses the same ones"
        sender.offer([span(number) for number in range(200)])
        sender.close(20.0)
        same.close(5.0)
        assert {got.trace for got in receiver.spans} == set(chosen)
        assert {got.resource["service.name"] for got in receiver.spans} == {"batch"}


def test_an_environment_that_opentelemetry_does_not_take_leaves_the_daemon_without_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Jobs do not depend on traces."""
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc")
    config = Config(tracing=TracingConfig(otlp="http://127.0.0.1:9/"))
    with structlog.testing.capture_logs() as told:
        assert make_exporter(config) is None
    assert [line["event"] for line in told] == ["tracing.off"]
    assert "abc" in told[0]["reason"]
