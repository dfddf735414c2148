"""Plans that the ledger keeps: backfills, and re-runs with children. A node asks for their runs.

A new kind of plan belongs here. What the ledger answers is tested in tests/contract.
"""
