"""What `[tracing]` and the OTEL_ variables of the environment say about traces.

Which spans a run has, and how they are sent, is not here: services/tracing and adapters/tracing.
"""
