"""Backfill: fire times that are over, run because a person asks.

Here belong the plan as a ledger keeps it (plan.py) and the rule that opens one fire time after the other (rule.py).
Which fire times a job had, and who asks for the next one, does not: that is in core/node/plans/backfills.py.
"""
