"""SQLite and Redis compared with the rules in memory, in cases that a random search rarely reaches.

Each call goes to both under one clock; the answers and all rows after it must be equal. Short sequences of calls belong
here. Tests of a single ledger, and searches, do not.
"""
