"""A node's work for its runs: fire times, triggers, pursuit, the sweep, ends, and witnesses.

Decisions of a node about one run or one row. The ledger's rules are in core/ledger, the runner's decisions in
core/attempt.py.
"""
