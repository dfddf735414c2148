"""What a node asks for because a plan in the ledger says so: the children of a run that a person has run once more.

Not here: the plan and the rule (core/ledger/rerun). Backfills are beside them (backfills.py).
"""
