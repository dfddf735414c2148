"""The ledger: its rows, its requests and answers, its rules, the steps of a run, its identity.

Rules for both ledgers: SQLite runs this code, Redis runs scripts that must agree with it. Nothing here is about nodes,
buses or files: the callers are in core/node and runner/, the storage is in adapters/ledger. This file imports nothing:
a runner loads the room before it starts its program.
"""
