"""What the ledger keeps, and the rules by which it answers: rows, requests, steps of a run, identity.

Here belongs what both ledgers obey, SQLite through this code and Redis through scripts that must agree with it.
Nothing of nodes, buses or files: those who ask are in core/node and runner/, those who store in adapters/ledger.
This file imports nothing: a runner loads the room before it starts its program.
"""
