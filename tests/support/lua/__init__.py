"""What the files of the Redis scripts say of themselves, read by tests.

Here belongs what reads coordd/adapters/ledger/lua as text; what runs the scripts does not.
"""
