"""Checks: what one is, the rule by which results become a state, and what a state means for jobs.

Pure. Who looks, and when, is in services/checks.
"""
