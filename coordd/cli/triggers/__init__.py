"""`coordctl trigger`: what starts jobs beside their schedules.

What `coordctl run trigger` does, a run by hand, belongs in `cli/runs.py`.
"""
