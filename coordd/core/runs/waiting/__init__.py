"""Runs that wait for each other: who of them is first, as a node last looked, and the bounds of their patience.

What a run waits for, and what is done about it, is in pursued.py; what the ledger allows in core/ledger/limits.
"""
