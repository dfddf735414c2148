"""Limits: how many runs may be alive at a time, how many may start, how many may wait.

Here belong the text that a claim brings (text.py) and the rule that judges it (rule.py).
"""
