"""Arrivals at triggers: which of them are complete, which are new, which run each of them is, and who polls.

Here belong the decisions; the file system, sockets and servers belong in `services/triggering` and `adapters/triggers`.
"""
