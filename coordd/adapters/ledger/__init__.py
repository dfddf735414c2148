"""Where rows are kept: one SQLite file, or one Redis through the scripts in lua/.

Here belongs how rows are stored and asked for. The rules are those of core/ledger; the scripts say the same in Lua.
This file imports nothing: a runner loads its ledger before it starts its program.
"""
