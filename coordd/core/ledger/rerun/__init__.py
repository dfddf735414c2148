"""Re-runs with children: after a parent that a person has run once more, its children run once more too.

Here belong the plan as a ledger keeps it (plan.py), what becomes of its runs (fate.py), and the rule that opens one
after the other (rule.py), and which runs follow a run (descendants.py). Who asks for the next one does not: that is in
core/node/plans/reruns.py.
"""
