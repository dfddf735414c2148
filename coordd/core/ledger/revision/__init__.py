"""Revisions: the job definitions of a whole cluster under one number, in force from one instant of the ledger's clock.

Here belong what the ledger keeps of the revision in force (text.py) and the rule that replaces it (rule.py). The texts
of the job files do not: a configuration backend keeps them.
"""
