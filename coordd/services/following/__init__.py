"""Jobs after jobs for people: parents and children of runs, and what a child waits for.

Not here: the rule (core/jobs/after.py), and what a node does by it (core/node/following.py).
"""
