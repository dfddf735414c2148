"""The feed: what has changed in the open rows and in the states of jobs since a cursor.

Here belong the operations of a sweep (rule.py). Which changes get a number is said beside the rows (``changed_by`` in
core/ledger/rows.py), and each store numbers them as it writes. When a node reads everything all the same is not decided
here (core/runs/sweep.py).
"""
