"""What one node keeps on its disk: its journal, its backlog, and a few small files that survive a crash.

Here belongs what a node must find again after a restart. What all nodes share is in the ledger (adapters/ledger);
what a runner leaves is written by runner/facts.py.
"""
