"""Reads the headers of the Redis scripts for the tests.

Code that reads coordd/adapters/ledger/lua as text belongs here. Code that runs the scripts does not.
"""
