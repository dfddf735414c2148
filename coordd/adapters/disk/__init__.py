"""A node's files: its journal, its backlog, and a few small files that survive a crash.

Data that a node needs after a restart. Data that all nodes share is in the ledger (adapters/ledger); runner/facts.py
writes a runner's files.
"""
