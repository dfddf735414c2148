"""What a node does for its runs: fire times, triggers, pursuit, the sweep, ends, and witnesses.

Here belongs what a node decides about one run or one row. The rules of the ledger stand in core/ledger, the runner's
own decisions in core/attempt.py.
"""
