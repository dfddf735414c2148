"""SQLite and Redis beside the rules in memory, in corners that a random search seldom comes to.

Each call is made to both under one clock; its answer, and all rows after it, must be the same. Here belong short
stories of few calls; what a single ledger does, and searches, do not.
"""
