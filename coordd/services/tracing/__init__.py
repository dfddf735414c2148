"""Traces of runs, if they are configured: the spans of a run as the ledger has it, and the service that offers them.

How spans are sent belongs to adapters/tracing.
"""
