"""What a node asks for because a plan in the ledger says so: fire times that are over (backfills.py), and the runs that
follow a run that a person has run once more (reruns.py).

Not here: the plans and their rules (core/ledger/backfill, core/ledger/rerun).
"""
