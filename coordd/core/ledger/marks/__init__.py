"""Marks: what the nodes have heard of a ledger before it went back shows whether it lost a grant.

The runner of a SQLite ledger loads rule.py before it starts a job, so that imports only its neighbours.
"""
