"""Programs that the daemon runs itself, for checks, triggers and services of packages: environment, limits, end.

Not here: what they say, and what that means. Runs of jobs are programs of their runners.
"""
