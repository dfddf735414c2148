"""Where traces go: the setting, else the variables of OpenTelemetry."""

from __future__ import annotations

import pytest

from coordd.config.tracing import endpoint

BASE, EXACT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("otlp", "environ", "wanted"),
    [
        ("", {}, ""),
        ("http://h:4318", {}, "http://h:4318/v1/traces"),
        ("http://h:4318/", {}, "http://h:4318/v1/traces"),
        ("https://h/otlp/v1/traces", {}, "https://h/otlp/v1/traces"),
        ("", {BASE: "http://h:4318"}, "http://h:4318/v1/traces"),
        ("", {BASE: "http://h/otlp/"}, "http://h/otlp/v1/traces"),
        ("", {BASE: "http://h", EXACT: "http://t/here"}, "http://t/here"),
        ("http://own", {BASE: "http://h", EXACT: "http://t/here"}, "http://own/v1/traces"),
        ("http://own", {"OTEL_SDK_DISABLED": "true"}, ""),
        ("http://own", {"OTEL_TRACES_EXPORTER": "none"}, ""),
        ("http://own", {"OTEL_TRACES_EXPORTER": "otlp"}, "http://own/v1/traces"),
    ],
)
def test_the_address(otlp: str, environ: dict[str, str], wanted: str) -> None:
    assert endpoint.endpoint(otlp, environ) == wanted


def test_what_prevents_it_is_said_only_if_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    grpc = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert endpoint.problem("", grpc) == ""
    assert endpoint.problem("http://h", {}) == ""
    assert endpoint.problem("http://h", grpc) == ("expected the protocol http/protobuf, found grpc: no traces are sent")
    monkeypatch.setattr(endpoint, "MODULES", ("coordd", "no_such_package.sdk"))
    assert endpoint.problem("http://h", {}).startswith(
        "traces need the otel extra, and no_such_package.sdk cannot be imported"
    )
    assert endpoint.problem("", {}) == ""
