"""SQLite and Redis compared with the rules in memory, in cases that a random search seldom reaches.

Each call goes to both under one clock. The answers, and all rows after the call, must be equal. Short sequences of
calls belong here. Tests of a single ledger, and searches, do not.
"""
