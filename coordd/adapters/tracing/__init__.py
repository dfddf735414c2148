"""The way of spans to a receiver: OpenTelemetry's SDK and its OTLP exporter over HTTP.

Nothing here is loaded unless traces are configured.
"""
