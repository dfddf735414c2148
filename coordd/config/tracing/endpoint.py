"""Where traces go: the setting, else the variables that OpenTelemetry names; and what prevents it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from urllib.parse import urlsplit

from coordd.config import values

PATH = "/v1/traces"
PROTOCOL = "http/protobuf"

# What the `otel` extra brings.
MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def read_url(value: object) -> str:
    """An address for OTLP over HTTP, or "". Raises ValueError."""
    said = values.text(value)
    if not said:
        return ""
    parts = urlsplit(said)
    if any(character.isspace() for character in said) or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an address such as http://127.0.0.1:4318, found {values.found(said)}")
    if parts.username or parts.password:
        raise ValueError("expected an address without a password: set OTEL_EXPORTER_OTLP_HEADERS in the environment")
    return said


def endpoint(otlp: str, environ: Mapping[str, str]) -> str:
    """The address that spans are posted to; "" if nobody wants them. ``otlp``: the setting."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environ.get("OTEL_TRACES_EXPORTER", "").strip() not in ("", "otlp"):
        return ""
    if otlp:
        return _complete(otlp)
    exact = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    return exact or (base.rstrip("/") + PATH if base else "")


def _complete(url: str) -> str:
    """An address without a path gets the usual one."""
    return url.rstrip("/") + PATH if urlsplit(url).path in ("", "/") else url


def problem(otlp: str, environ: Mapping[str, str]) -> str:
    """Why wanted traces cannot be sent; "" if they can, or if nobody wants them."""
    if not endpoint(otlp, environ):
        return ""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((environ[name].strip() for name in names if environ.get(name, "").strip()), PROTOCOL)
    if protocol != PROTOCOL:
        return f"expected the protocol {PROTOCOL}, found {values.printable(protocol)}: no traces are sent"
    if absent := [module for module in MODULES if not _is_there(module)]:
        return (
            f"traces need the otel extra, and {' and '.join(absent)} cannot be imported: no traces are sent;"
            " pip install 'coordd[otel]'"
        )
    return ""


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # a package above it is missing
        return False
