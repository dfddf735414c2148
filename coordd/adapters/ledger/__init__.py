"""The storage of ledger rows: one SQLite file, or one Redis through the scripts in lua/.

Code that stores rows and performs requests. The rules are in core/ledger; the scripts contain the same rules in Lua.
This file imports nothing: a runner loads its ledger before it starts its program.
"""
