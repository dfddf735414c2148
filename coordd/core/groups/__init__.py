"""Groups: one run of a job for each value that `expand` names, which others wait for as a whole.

Here: what `expand` says, the ids and arguments of the members, and how a group ended. A group has no row and no
counter: it is its members' rows. Not here: what opens them (core/runs/planner.py, core/node/following.py), who waits
for them (core/jobs/after.py).
"""
