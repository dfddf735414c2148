"""The ledger's Lua scripts, changed one place at a time: the contract tests must notice each change.

``edits`` makes the changes, ``recorder`` and ``conversation`` keep what the tests asked of the true scripts and ask a
changed one the same, ``survivors.toml`` lists the changes that nothing notices, each with its reason.
"""
